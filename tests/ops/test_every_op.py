"""What holds for every op, driven by its samples: a new op is tested before its author writes a test."""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import Any

import numpy as np
import pytest
from ops_cases import all_cases, assert_close, make_case, run_case

from openhtp.core.dtype import DType
from openhtp.core.precision import half_rounded
from openhtp.core.tensor import TensorKind
from openhtp.ops import find_op, op_names, resolve
from openhtp.ops._node import Layout

CASES = [(name, words, parts) for name in op_names() for words, parts in all_cases(find_op(name))]
IDS = [f"{name} {words}" for name, words, _ in CASES]


@pytest.mark.parametrize(("name", "words", "parts"), CASES, ids=IDS)
def test_engine_agrees_with_reference(name: str, words: str, parts: Any) -> None:
    case = make_case(*parts)
    node = resolve(case.call, case.stored)
    assert find_op(name).infer(node) == tuple(result.shape for result in case.exact)
    for spec, got, exact in zip(case.call.outputs, run_case(case), case.exact, strict=True):
        assert_close(spec, got, exact)


@pytest.mark.parametrize(
    "name",
    [
        "Conv2d",
        "DepthWiseConv2d",
        "TransposeConv2d",
        "FullyConnected",
        "MatMul",
        "Batchnorm",
        "LayerNorm",
    ],
)
def test_sixteen_bit_weights_are_among_the_cases(name: str) -> None:
    """Those that the documents list for A16W16; each case is computed above."""
    kinds = [[dtype.name for dtype in parts[2][:2]] for known, _, parts in CASES if known == name]
    assert ["UFIXED_POINT_16", "SFIXED_POINT_16"] in kinds


def _with_float_constants() -> list[Any]:
    parts_by_op = {name: parts for name, _, parts in reversed(CASES) if parts[2][0] is DType.FLOAT_32}
    return [pytest.param(parts, id=name) for name, parts in parts_by_op.items() if len(parts[1].shapes) > 1]


@pytest.mark.parametrize("parts", _with_float_constants())
def test_float_constants_count_as_far_as_half_precision_goes(parts: Any) -> None:
    """So they can be stored in it: every input but the first is a constant here, which it loses bits of."""
    case = make_case(*parts)
    rng = np.random.default_rng(0)
    specs = [
        spec if not number or spec is None else dataclasses.replace(spec, kind=TensorKind.STATIC)
        for number, spec in enumerate(case.call.inputs)
    ]
    call = dataclasses.replace(case.call, inputs=tuple(specs))
    floats = [spec.name for spec in specs[1:] if spec is not None and spec.dtype is DType.FLOAT_32]
    fine = {
        name: (case.stored[name] * rng.uniform(0.9998, 1.0, case.stored[name].shape)).astype(np.float32)
        for name in floats
    }
    stored = [{**case.stored, **data} for data in (fine, {name: half_rounded(fine[name]) for name in floats})]
    results = [run_case(dataclasses.replace(case, call=call, stored=data)) for data in stored]
    for exact, rounded in zip(*results, strict=True):
        np.testing.assert_array_equal(rounded, exact)


def _takes_any_layout() -> list[Any]:
    found = []
    for name in op_names():
        opdef = find_op(name)
        if opdef.layout in (Layout.ANY, Layout.OWN):
            for words, (_, sample, inputs, outputs) in all_cases(opdef):
                kind = inputs[0].name
                if len(sample.shapes[0] or ()) == 4 and kind in ("FLOAT_32", "UFIXED_POINT_8"):
                    found.append(pytest.param((opdef, sample, inputs, outputs), id=f"{name} {words}"))
    return found


@pytest.mark.parametrize("parts", _takes_any_layout())
def test_layout_changes_nothing(parts: Any) -> None:
    case = make_case(*parts)
    if any(
        spec is not None and spec.dtype.name not in ("FLOAT_32", "UFIXED_POINT_8") for spec in case.call.inputs
    ):
        pytest.skip("the pool that forces the layout does not take these types")
    for plain, moved in zip(run_case(case), run_case(case, forced_layout=True), strict=True):
        if plain.dtype.kind == "f":
            np.testing.assert_allclose(moved, plain, rtol=2.0**-10, atol=1e-6)
        else:
            assert np.abs(moved.astype(np.int64) - plain.astype(np.int64)).max() <= 1


@pytest.mark.parametrize("name", op_names())
def test_definition_is_complete(name: str) -> None:
    opdef = find_op(name)
    assert opdef.samples
    assert opdef.summary
    sentences = Counter(constraint.sentence for constraint in opdef.constraints)
    assert not [sentence for sentence, count in sentences.items() if count > 1]
    assert len({param.name for param in opdef.params}) == len(opdef.params)


@pytest.mark.parametrize("name", op_names())
def test_work_grows_with_the_batch(name: str) -> None:
    """Work of the same op on more data is never less, in any of its parts."""
    opdef = find_op(name)
    parts = next(iter(all_cases(opdef)))[1]
    case = make_case(*parts)
    node = resolve(case.call, case.stored)
    small = opdef.work(node)
    assert small.bytes_read >= 0
    assert small.bytes_written == sum(spec.nbytes for spec in case.call.outputs)
    larger_out = tuple(
        dataclasses.replace(spec, shape=(spec.shape[0] * 2, *spec.shape[1:])) for spec in node.outputs
    )
    large = opdef.work(dataclasses.replace(node, outputs=larger_out))
    assert large.macs >= small.macs
    assert large.vector_ops >= small.vector_ops
    assert large.bytes_written > small.bytes_written
