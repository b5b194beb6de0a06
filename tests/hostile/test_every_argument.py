"""Every argument of everything public, each with values of the wrong kind and size: an error that says which."""

from __future__ import annotations

import inspect
import math
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import openhtp as htp
from openhtp import llm, zoo
from tests.conftest import ramp, relu_graph
from tests.hostile.surface import Door, doors
from tests.hostile.tally import stray_text

VALUES: tuple[Any, ...] = (
    *(10**5000, -(10**5000), 10**400, 2**64, -1, math.nan, math.inf, 1e308, 1 + 2j, True, None),
    *(Decimal("1e999999"), Fraction(10**400, 3), np.float64("inf"), np.datetime64("2020")),
    # Comparing an array gives another array, which is neither true nor false.
    *(np.zeros(3), np.array([1, 2]), np.array(5), np.zeros(0), np.array(["a", "b"]), np.array([None, 1], object)),
    *([], {}, (), "\ud800", "\x1b", b"x", "7" * 5000, "z/" * 3000, object()),
    *([10**5000], (10**5000, 1), {"x": 10**5000}, {"x": np.zeros(3)}, [np.zeros(3)]),
)
# What ends the objects of this test, or waits.
_ENDS = {"free", "close", "deregister", "destroy", "abort", "detach"}
_MODEL = zoo.tiny_mlp()
_GOOD = {
    "name": "q",
    "inputs": {"x": ramp()},
    "shape": (1, 8),
    "dtype": "float32",
    "nbytes": 64,
    "tensor": "x",
    "op": "Relu",
    "level": "basic",
    "kind": "native",
    "soc": "SM8650",
    "infer": lambda *inputs: (),
    # A file that is not there would end the call before it looks at the others.
    "model": _MODEL,
    "path_or_bytes": _MODEL,
    "scenario": Path(__file__).parents[2] / "examples" / "base-1.1-same-priority.yaml",
    "study": "no such study.yaml",
}


@pytest.fixture(scope="module")
def owners() -> Iterator[dict[type, Any]]:
    with htp.Backend() as backend:
        device = backend.create_device()
        context = device.create_context(queue_depth=5)
        graph = relu_graph(context)
        profile = backend.create_profile("detailed")
        graph.execute({"x": ramp()}, profile=profile)
        memory = context.register_memory(4096)
        memory.array("x")
        made = (backend, device, context, graph, profile, memory, graph.inputs[0], device.create_power_config())
        # While one session is open, others share its device, and need not start one each.
        with htp.InferenceSession(_MODEL) as session:
            others = (backend.create_signal(), context.create_app("app", hvx=1), session)
            yield {type(each): each for each in (*made, *others)}
        assert device.restarts == 0


@pytest.mark.hostile
@pytest.mark.parametrize("door", doors(), ids=lambda door: door.title)
def test_an_argument_of_the_wrong_kind(owners: dict[type, Any], door: Door) -> None:
    if door.title.split(".")[-1] in _ENDS or (door.owner is not None and door.owner not in owners):
        pytest.skip("needs an object that is not made here, or ends one")
    for parameter in door.parameters:
        for place, value in enumerate(VALUES):
            problem = _tried(owners, door, parameter.name, value)
            assert problem is None, f"{door.title}({parameter.name}=VALUES[{place}]): {problem}"


_SIZES = {"layers": 1, "hidden": 64, "heads": 1, "kv_heads": 1, "head_dim": 64, "vocab": 96, "ffn": 96}


@pytest.fixture(scope="module")
def bundle() -> llm.Bundle:
    return llm.export(llm.Llama(**_SIZES, context=256), context=256, ar=(32, 1))


@pytest.mark.hostile
@pytest.mark.parametrize("title", ["Generator", "Bundle.at", "Bundle.save", "load", "load_adapter", "Llama"])
def test_an_argument_of_a_language_model(
    shared_device: htp.Device, bundle: llm.Bundle, title: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)  # some values are names of folders, which are made
    right = {
        "Generator": (llm.Generator, {"bundle": bundle, "device": shared_device}),
        "Bundle.at": (llm.Bundle.at, {}),
        "Bundle.save": (bundle.save, {}),
        "load": (llm.load, {}),
        "load_adapter": (llm.load_adapter, {"folder": "none", "config": llm.Llama(**_SIZES).config}),
        "Llama": (llm.Llama, _SIZES),
    }
    call, good = right[title]
    parameters = [
        each.name for each in inspect.signature(call).parameters.values() if each.kind is not each.VAR_KEYWORD
    ]
    for name in parameters:
        for index, value in enumerate(VALUES):
            try:
                made = call(**{**good, name: value})
            except Exception as error:
                problem = stray_text(error)
                assert problem is None, f"{title}({name}=VALUES[{index}]): {problem}"
            else:
                if isinstance(made, llm.Generator):
                    made.free()


def _tried(owners: dict[type, Any], door: Door, name: str, value: Any) -> str | None:
    """What is wrong with the way in which a call ended; None if nothing is."""
    given = [] if door.owner is None else [owners[door.owner]]
    named = {
        each.name: value if each.name == name else _GOOD.get(each.name, 1)
        for each in door.parameters
        if each.name == name or each.default is inspect.Parameter.empty
    }
    first = [each.name for each in door.parameters if each.kind is inspect.Parameter.POSITIONAL_ONLY]
    given += [named.pop(each) for each in first if each in named]
    try:
        found = door.call(*given, **named)
    except Exception as error:
        return stray_text(error)
    if isinstance(found, htp.Backend | htp.Device | htp.Context):
        found.free()
    elif isinstance(found, htp.InferenceSession):
        found.close()
    return None
