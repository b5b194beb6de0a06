"""How long a benchmark waits for a quiet moment."""

from __future__ import annotations

import pytest

import openhtp as htp
from openhtp.bench import quiet


def test_a_machine_that_never_becomes_quiet_is_measured_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(quiet.PATIENCE_SWITCH, "0")
    gate, looks = quiet.QuietGate(), []
    monkeypatch.setattr(gate, "lost", lambda: looks.append(1) or 1.0)
    sample = gate.measure(lambda: 7.0, tries=1)
    assert (sample.value, sample.quiet, gate.dropped, len(looks)) == (7.0, False, 1, 1)


@pytest.mark.parametrize("given", ["soon", "-1", "nan", "inf"])
def test_patience_is_a_number_of_seconds(monkeypatch: pytest.MonkeyPatch, given: str) -> None:
    monkeypatch.setenv(quiet.PATIENCE_SWITCH, given)
    with pytest.raises(htp.InvalidArgument, match=f"OPENHTP_BENCH_PATIENCE_S is '{given}'; expected seconds"):
        quiet.QuietGate()
