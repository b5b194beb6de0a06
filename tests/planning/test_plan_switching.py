"""Graph switching in plans: the document's retention cases with what each switch costs."""

from __future__ import annotations

from pathlib import Path

import pytest

from openhtp.core.errors import QnnError
from openhtp.planning import plan

SCENARIO = """
device: {{vtcm_mb: 8, hvx: 4, hmx: 1, eviction: 0}}
clients:
- {{name: A, run: 10, size_mb: 100, load: 50}}
- {{name: B, run: 10, size_mb: 100, load: 50}}
- {{name: C, run: 10, size_mb: 100, load: 50}}
- {{name: D, run: 10, size_mb: 100, load: 50}}
switching: [{{graphs: [A, B, C, D], retained: {retained}, room_mb: {room}}}]
events:
{events}
"""


def scenario(folder: Path, order: str, retained: str = "[A, B]", room: int = 200, gap: int = 1000) -> Path:
    events = "\n".join(f"- {{client: {name}, at: {place * gap}}}" for place, name in enumerate(order))
    path = folder / "scenario.yaml"
    path.write_text(SCENARIO.format(retained=retained, room=room, events=events))
    return path


@pytest.mark.parametrize(
    ("order", "loads"),
    [("ABAB", "0000"), ("ABCD", "0011"), ("ABCABD", "0111"), ("ABCDCD", "0022")],
    ids=["case 1", "case 2", "case 3", "back and forth"],
)
def test_loads_of_the_documents_cases(tmp_path: Path, order: str, loads: str) -> None:
    planned = plan(scenario(tmp_path, order)).clients
    assert [planned[name].loads for name in "ABCD"] == [int(count) for count in loads]
    for name in "ABCD":
        assert planned[name].loading == 50 * planned[name].loads
    assert planned["A"].max == 10
    if "C" in order:
        assert planned["C"].max == 60


def test_without_retention_every_change_is_a_switch(tmp_path: Path) -> None:
    planned = plan(scenario(tmp_path, "ABABA", retained="[]", room=4000)).clients
    assert (planned["A"].loads, planned["B"].loads) == (2, 2)


def test_switched_graphs_run_one_after_the_other_in_order(tmp_path: Path) -> None:
    """All asked for at once: two are loaded, two have to be."""
    planned = plan(scenario(tmp_path, "CABD", gap=0)).clients
    assert [planned[name].max for name in "CABD"] == [60, 70, 130, 190]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("[A, B]", "[A, B, C]"), "do not fit into 200 MiB together"),
        (("room_mb: 200", "room_mb: 50"), "'A' does not fit into 50 MiB"),
        (("graphs: [A, B, C, D]", "graphs: [A, X]"), "client 'X' does not exist"),
        (("graphs: [A, B, C, D]", "graphs: [B, C]"), "'A' is not among the graphs"),
        (("graphs: [A, B, C, D]", "graphs: [A, B, A]"), "'A' is switched twice"),
    ],
)
def test_mistakes_are_told(tmp_path: Path, change: tuple[str, str], said: str) -> None:
    path = scenario(tmp_path, "AB")
    path.write_text(path.read_text().replace(*change))
    with pytest.raises(QnnError, match=said):
        plan(path)
