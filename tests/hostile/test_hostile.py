"""The short form of every attack, with a fixed seed; ``make hostile`` is the long one."""

from __future__ import annotations

import importlib
import inspect

import pytest

import openhtp as htp
from tests.hostile.running import attacks, run_attack
from tests.hostile.scenes import all_doors, missing, scenes
from tests.hostile.surface import doors, public_classes
from tests.hostile.tally import Budget, Tally, Watch, stray_text

SEED = 20260
LONGEST = 30.0


@pytest.mark.hostile
@pytest.mark.parametrize("name", attacks())
def test_attack(name: str) -> None:
    module = importlib.import_module(f"tests.hostile.fuzz_{name}")
    tally = run_attack(name, SEED, seconds=LONGEST, calls=module.SHORT)
    assert not tally.defects, tally.report()
    assert tally.calls


def test_an_attack_that_was_long_in_preparing_makes_one_round() -> None:
    assert sum(1 for _ in iter(Budget(0.0).__bool__, False)) == 1
    assert sum(1 for _ in iter(Budget(1e9, 3).__bool__, False)) == 3


def test_all_public_methods_are_attacked() -> None:
    titles = {door.title for door in doors()}
    assert {"Graph.execute_async", "Execution.result", "Context.register_memory", "Backend", "estimate"} <= titles
    for name, cls in public_classes().items():
        for attribute, item in vars(cls).items():
            if not attribute.startswith("_") and inspect.isfunction(item) and name != "Log":
                assert f"{name}.{attribute}" in titles


def test_every_public_call_is_swept() -> None:
    """A call that needs arguments, or ends its object, gets a scene in the table of ``scenes.py``."""
    assert missing() == []
    titles = {door.title for door in all_doors()}
    assert {"Graph.execute_async", "Creation.result", "Generator.complete", "IOBinding.bind_output"} <= titles
    assert {title for title in scenes() if "(" not in title} - titles <= {"PreparedModel", "Generator"}


def _raised(error: Exception) -> Exception:
    try:
        raise error
    except Exception as caught:
        return caught


def test_what_counts_as_stray() -> None:
    assert stray_text(_raised(htp.InvalidArgument("x"))) is None
    assert stray_text(_raised(htp.DeviceLost("the device process went away"))) is not None
    assert stray_text(_raised(htp.DeviceLost("the device process went away")), may_be_lost=True) is None
    assert stray_text(_raised(htp.InternalError("x"))) is not None
    assert stray_text(ValueError("from nowhere")) is not None


def test_defects_are_counted_and_told() -> None:
    tally = Tally("api", 7)
    watch = Watch(tally)
    try:
        with watch.call("len(5)"):
            len(5)  # type: ignore[arg-type]
        with watch.call("len([])"):
            len([])
    finally:
        watch.close()
    assert tally.outcomes == {"TypeError": 1, "returned": 1}
    assert tally.defects == 1
    again = Tally.from_json(tally.to_json())
    assert "len(5)" in again.report()
    assert "--seed 7" in again.report()
