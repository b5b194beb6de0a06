"""The measurement of calls from C: that it runs and tells, not how quick anything is."""

from __future__ import annotations

import pytest

from openhtp.bench import c_calls
from openhtp.bench.c_calls import CallPiece, CCallsResult
from openhtp.core.errors import UnsupportedFeature


def test_it_runs_and_tells() -> None:
    *_, result = c_calls.run(pieces=1, samples=20, network="small_cnn", graph_mib=1)
    assert isinstance(result, CCallsResult)
    assert [row.openhtp_us > 0 for row in result.calls] == [True] * 7
    assert [row.samples + row.disturbed > 0 for row in result.urgent] == [True] * 3
    assert result.ratio_to_later("fresh") > 0
    assert result.long_ms > 0
    assert result.resident_mib > 0
    assert set(result.late_ms) == {"from bytes", "from a path", "from C"}
    assert [goal.unit for goal in result.goals()] == [
        "us",
        *["x a later"] * 2,
        *["% of the long run"] * 2,
        "MiB",
        *["ms"] * 3,
    ]


@pytest.mark.parametrize(
    ("row", "quiet"),
    [((5, 10, 10), True), ((5, 10, 11), False), ((5, 10, 10, 112), True), ((5, 10, 10, 114), False)],
)
def test_a_piece_is_quiet_if_the_loops_and_the_long_run_are(row: tuple[float, ...], quiet: bool) -> None:
    assert c_calls.piece_of("sync", *row, most_us=10.6, alone_us=100).quiet is quiet


def test_quiet_pieces_count_where_there_are_any() -> None:
    pieces = [CallPiece("sync", 9.0, True), CallPiece("sync", 90.0, False), CallPiece("later", 50.0, False)]
    assert c_calls.numbers_of(pieces, "sync") == [9.0]
    assert c_calls.numbers_of(pieces, "later") == [50.0]


def test_without_a_compiler_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(UnsupportedFeature, match="install gcc"):
        next(iter(c_calls.run(pieces=1)))
