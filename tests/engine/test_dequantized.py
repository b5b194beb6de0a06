"""Float forms of stored weights: made when they are loaded, the same to the bit."""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from prepared_forms import SOC, load, resealed, results

import openhtp.onnx
from openhtp import zoo
from openhtp.compiler.driver import compile_graph
from openhtp.core.dtype import DType
from openhtp.core.quant import AxisScaleOffset, Encoding, ScaleOffset
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.engine.dequantized import Dequantized, dequantize, find_origins
from openhtp.engine.ort import OrtEngine
from openhtp.engine.prepared import Manifest
from openhtp.engine.workshop import Workshop
from openhtp.program.arranging import arrange
from openhtp.program.binary import BinaryInfo, pack_graphs, read_binary
from openhtp.program.htp_program import HtpProgram
from openhtp.program.packed import PackedGraph
from openhtp.program.qnn_program import QnnProgram

U8, U16, F32 = 2, 4, 1
replace = msgspec.structs.replace


def a_program(data: np.ndarray, dtype: DType, quant: Encoding | None) -> QnnProgram:
    spec = TensorSpec("w", data.shape, dtype, quant, TensorKind.STATIC)
    return QnnProgram("g", {"w": spec}, {"w": data}, ())


def real32(program: QnnProgram) -> np.ndarray:
    quant = program.tensors["w"].quant
    assert quant is not None
    return quant.dequantize(program.statics["w"]).astype(np.float32)


def blocked(real: np.ndarray, block: int) -> np.ndarray:
    """Filters in QNN order as the runtime wants them: channels in blocks, filled up with zeros."""
    high, wide, into, out = real.shape
    more = ((0, 0), (0, 0), (0, -into % block), (0, -out % block))
    filled = np.pad(real, more)
    into, out = filled.shape[2:]
    parts = filled.reshape(high, wide, into // block, block, out // block, block)
    return np.ascontiguousarray(parts.transpose(4, 2, 0, 1, 3, 5)).reshape(out, into, high, wide)


def per_channel(axis: int, count: int, *, zeros: bool = False, dtype: Any = np.float32) -> AxisScaleOffset:
    rng = np.random.default_rng(count)
    scales = rng.uniform(0.001, 0.1, count).astype(dtype)
    offsets = rng.integers(-255, 1, count) if zeros else np.zeros(count, int)
    return AxisScaleOffset(axis, tuple(map(float, scales)), tuple(map(int, offsets)))


ENCODINGS: dict[str, tuple[DType, Encoding]] = {
    "one scale": (DType.UFIXED_POINT_8, ScaleOffset(float(np.float32(0.013)), -121)),
    "one scale that is no float32": (DType.UFIXED_POINT_8, ScaleOffset(0.013, -121)),
    "signed": (DType.SFIXED_POINT_8, ScaleOffset(float(np.float32(0.013)), 5)),
    "4 bits": (DType.SFIXED_POINT_4, ScaleOffset(0.25)),
    "16 bits": (DType.UFIXED_POINT_16, ScaleOffset(float(np.float32(1e-5)), -30000)),
    "a scale for each output": (DType.SFIXED_POINT_8, per_channel(3, 24)),
    "a scale and an offset for each": (DType.UFIXED_POINT_8, per_channel(3, 24, zeros=True)),
    "scales that are no float32": (DType.UFIXED_POINT_8, per_channel(3, 24, zeros=True, dtype=float)),
    "a scale for each input": (DType.SFIXED_POINT_8, per_channel(2, 40)),
}
ORDERS: dict[str, Callable[[np.ndarray], np.ndarray]] = {
    "as they are": lambda real: real,
    "output channels first": lambda real: np.ascontiguousarray(real.transpose(3, 2, 0, 1)),
    "input channels first": lambda real: np.ascontiguousarray(real.transpose(2, 3, 0, 1)),
    "blocks of 16": lambda real: blocked(real, 16),
    "blocks of 8": lambda real: blocked(real, 8),
}


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("name", ENCODINGS)
def test_weights_are_found_and_made_again_to_the_bit(name: str, order: str) -> None:
    dtype, quant = ENCODINGS[name]
    low, high = dtype.integer_range
    data = np.random.default_rng(0).integers(low, high + 1, (3, 3, 40, 24)).astype(dtype.numpy)
    program = a_program(data, dtype, quant)
    constant = ORDERS[order](real32(program))
    origins, lies_in = find_origins(program, {"c": constant, "same": constant, "other": constant + 1})
    assert set(origins) == {"c", "same"}
    assert origins["c"].stored.dtype == data.dtype
    stored = origins["c"].stored.reshape(-1).view(np.uint8).data
    weights = dequantize(origins["c"].how, stored)
    np.testing.assert_array_equal(weights.view(np.uint32), constant.reshape(-1).view(np.uint32))
    assert weights.ctypes.data % 64 == 0
    array, how = lies_in["w"]
    assert array is origins["c"].stored
    np.testing.assert_array_equal(arrange(stored, program.tensors["w"], how), data)


def test_what_fills_blocks_up_must_stand_for_zero() -> None:
    """Where no stored number does, the float form is stored as it is."""
    data = np.random.default_rng(0).integers(0, 256, (3, 3, 40, 24)).astype(np.uint8)
    program = a_program(data, DType.UFIXED_POINT_8, ScaleOffset(0.5, 3))
    assert find_origins(program, {"c": blocked(real32(program), 16)}) == ({}, {})
    assert find_origins(program, {"c": real32(program)})[0].keys() == {"c"}


def test_one_tensor_in_two_orders() -> None:
    data = np.random.default_rng(0).integers(0, 256, (32, 48)).astype(np.uint8)
    program = a_program(data, DType.UFIXED_POINT_8, per_channel(1, 48, zeros=True))
    constants = {"c": real32(program), "turned": np.ascontiguousarray(real32(program).T)}
    origins, lies_in = find_origins(program, constants)
    assert origins.keys() == constants.keys()
    assert lies_in.keys() == {"w"}
    for name, constant in constants.items():
        weights = dequantize(origins[name].how, origins[name].stored.reshape(-1).data.cast("B"))
        np.testing.assert_array_equal(weights.reshape(constant.shape), constant)


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_shape_and_spread(data: st.DataObject) -> None:
    shape = data.draw(st.lists(st.integers(1, 40), min_size=1, max_size=4))
    spread = [size if data.draw(st.booleans()) else 1 for size in shape]
    rng = np.random.default_rng(data.draw(st.integers(0, 9)))
    stored = rng.integers(0, 256, shape).astype(np.uint8)
    scales = rng.uniform(0.001, 0.1, spread).astype(data.draw(st.sampled_from([np.float32, np.float64])))
    offsets = rng.integers(-300, 300, spread).astype(np.int32)
    how = Dequantized(U8, shape, spread, scales.tobytes(), offsets.tobytes())
    expected = (scales.astype(np.float64) * (stored.astype(np.float64) + offsets)).astype(np.float32)
    np.testing.assert_array_equal(dequantize(how, stored.reshape(-1).data), expected.reshape(-1))


ONE = np.float32(0.5).tobytes()


@pytest.mark.parametrize(
    "how",
    [
        Dequantized(U8, [63], [1], ONE),
        Dequantized(U16, [64], [1], ONE),
        Dequantized(U8, [1 << 39, 1 << 39], [1, 1], ONE),
        Dequantized(U8, [8, 8], [1], ONE),
        Dequantized(U8, [64], [2], ONE * 2),
        Dequantized(U8, [64], [64], ONE),
        Dequantized(U8, [64], [1], b""),
        Dequantized(U8, [64], [1], ONE, ONE * 2),
        Dequantized(F32, [16], [1], ONE),
        Dequantized(77, [64], [1], ONE),
        Dequantized(U8, [], [], ONE),
    ],
)
def test_what_does_not_fit_is_refused(how: Dequantized) -> None:
    with pytest.raises(ValueError, match="bytes are"):
        dequantize(how, memoryview(bytes(64)))


# In a binary


@pytest.fixture(scope="module", params=[("s8", True), ("u8", False)], ids=["per channel", "one scale"])
def program(request: pytest.FixtureRequest) -> HtpProgram:
    weight, channels = request.param
    model = zoo.quantized(zoo.MODELS["small_cnn"](), "u16", weight, per_channel=channels, samples=2)
    return compile_graph(openhtp.onnx.load(model), SOC)


@pytest.fixture(scope="module")
def packed(program: HtpProgram) -> PackedGraph:
    prepared_form = OrtEngine().pack(program)
    assert prepared_form is not None
    return read_binary(b"".join(pack_graphs([prepared_form], BinaryInfo()))).packed(program.name)


def test_weights_of_16_bit_networks_are_stored_once(program: HtpProgram, packed: PackedGraph) -> None:
    assert sum(blob.nbytes for blob in packed.blobs) <= program.source.static_bytes
    after = packed.program()
    assert after.tensors == program.tensors
    for name, data in program.statics.items():
        assert after.statics[name].tobytes() == data.tobytes()


def test_results_are_those_of_the_program(program: HtpProgram, packed: PackedGraph) -> None:
    stored, fresh = load(packed), OrtEngine().load(program)
    assert stored is not None
    for seed in range(3):
        for name, values in results(program, fresh, seed).items():
            np.testing.assert_array_equal(results(program, stored, seed)[name], values)


def test_without_the_c_interface_too(program: HtpProgram, packed: PackedGraph, package_only: None) -> None:
    test_results_are_those_of_the_program(program, packed)


def test_graphs_of_one_binary_share_what_was_made(packed: PackedGraph) -> None:
    found = []
    with Workshop() as workshop:
        for _ in range(2):
            loaded = OrtEngine().load_packed(packed, packed.info(), SOC, workshop)
            assert loaded is not None
            found.append({array.ctypes.data for stage in loaded._stages.stages for array in stage.session.held})
    assert found[0] == found[1] != set()


def made_otherwise(manifest: Manifest, change: Callable[[Dequantized], Dequantized | None]) -> Manifest:
    constants = [one if one.made is None else replace(one, made=change(one.made)) for one in manifest.constants]
    assert constants != manifest.constants
    return replace(manifest, constants=constants)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda how: replace(how, shape=[*how.shape, 2]), "cannot be made"),
        (lambda how: replace(how, shape=[1 << 39, *how.shape[1:]]), "cannot be made"),
        (lambda how: replace(how, scales=how.scales[:-1]), "cannot be made"),
        (lambda how: replace(how, offsets=b"1"), "cannot be made"),
        (lambda how: replace(how, dtype=F32), "cannot be made"),
        (lambda how: replace(how, shape=[]), "cannot be made"),
        (lambda how: replace(how, shape=[0]), "cannot be read"),
        (lambda how: None, "another size than its data"),
    ],
)
def test_what_cannot_be_made_is_refused(
    packed: PackedGraph,
    caplog: pytest.LogCaptureFixture,
    change: Callable[[Dequantized], Dequantized | None],
    why: str,
) -> None:
    with caplog.at_level(logging.INFO, "openhtp.engine"):
        assert load(resealed(packed, lambda manifest: made_otherwise(manifest, change))) is None
    assert why in caplog.text
