"""The measurement of calls from C: that it runs and tells, not how quick anything is."""

from __future__ import annotations

import pytest

from openhtp.bench import c_calls
from openhtp.bench.c_calls import CallPiece, CCallsResult
from openhtp.core.errors import UnsupportedFeature


def test_it_runs_and_tells() -> None:
    *_, result = c_calls.run(pieces=1, samples=20, network="small_cnn")
    assert isinstance(result, CCallsResult)
    assert [row.openhtp_us > 0 for row in result.calls] == [True] * 6
    assert [row.samples + row.disturbed > 0 for row in result.urgent] == [True] * 3
    assert result.ratio_to_later("fresh") > 0
    assert result.long_ms > 0


def test_quiet_pieces_count_where_there_are_any() -> None:
    pieces = [CallPiece("sync", 9.0, True), CallPiece("sync", 90.0, False), CallPiece("later", 50.0, False)]
    assert c_calls._times_of(pieces, "sync") == [9.0]
    assert c_calls._times_of(pieces, "later") == [50.0]


def test_without_a_compiler_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("CC", raising=False)
    with pytest.raises(UnsupportedFeature, match="install gcc"):
        next(iter(c_calls.run(pieces=1)))
