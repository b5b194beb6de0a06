"""Values to C structures and back, and everything that is refused before a structure exists."""

from __future__ import annotations

import ctypes
import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st

from openhtp.abi.numbers import DEFINED, UNDEFINED, VERSION_1, VERSION_2, EncodingKind, ParamKind
from openhtp.abi.reading import call_of, data_of, spec_of
from openhtp.abi.structs import struct
from openhtp.abi.writing import (
    as_target,
    c_text,
    given_inputs,
    null_tensor,
    op_config,
    scalar_param,
    tensor_param,
    tensor_struct,
)
from openhtp.core.dtype import DType
from openhtp.core.errors import InvalidArgument
from openhtp.core.opcall import OpCall
from openhtp.core.quant import AxisScaleOffset, ScaleOffset
from openhtp.core.tensor import TensorKind, TensorSpec

U8 = DType.UFIXED_POINT_8
STATIC = TensorKind.STATIC
PER_CHANNEL = AxisScaleOffset(1, (0.5, 0.25), (0, -3))
A, B, OUT = (TensorSpec(name, (1, 4), U8, ScaleOffset(0.5, -3)) for name in "abo")


def static(dtype: DType, quant: Any, shape: tuple[int, ...] = (3, 2)) -> TensorSpec:
    return TensorSpec("t", shape, dtype, quant, STATIC)


@pytest.mark.parametrize("quant", [None, ScaleOffset(0.5, -128), PER_CHANNEL])
def test_tensor_survives_the_way_there_and_back(quant: Any) -> None:
    spec = TensorSpec("x", (3, 2), U8, quant, TensorKind.APP_WRITE)
    tensor = tensor_struct(spec, None, keep := [])
    assert spec_of(tensor) == spec
    assert keep
    assert tensor.quant.definition == (UNDEFINED if quant is None else DEFINED)


@pytest.mark.parametrize(
    ("quant", "kind"),
    [(ScaleOffset(0.5), EncodingKind.BW_SCALE_OFFSET), (PER_CHANNEL, EncodingKind.BW_AXIS_SCALE_OFFSET)],
)
def test_four_bit_weights_are_narrow_eight_bit_ones(quant: Any, kind: EncodingKind) -> None:
    data = np.array([[-8, 7], [-1, 0], [3, -4]], np.int8)
    keep: list[Any] = []
    tensor = tensor_struct(static(DType.SFIXED_POINT_4, quant), data, keep)
    assert tensor.data_type == DType.SFIXED_POINT_8
    assert tensor.quant.encoding == kind
    assert (tensor.quant.of.bw.bitwidth, tensor.quant.of.bw_axis.bitwidth) == (4, 4)
    stored = np.ctypeslib.as_array((ctypes.c_uint8 * 6).from_address(tensor.buffer.data))
    assert stored.tolist() == [8, 7, 15, 0, 3, 12]


def test_static_data_is_copied() -> None:
    data = np.zeros((3, 2), np.uint8)
    tensor = tensor_struct(static(U8, None), data, keep := [])
    data[:] = 9
    assert ctypes.string_at(tensor.buffer.data, 6) == bytes(6)
    assert keep


@pytest.mark.parametrize(
    ("spec", "data", "said"),
    [
        (TensorSpec("t", (1,) * 9, U8), None, "rank 9"),
        (TensorSpec("t", (1, 0), U8), None, "at least 1"),
        (TensorSpec("t", (1 << 31, 4), U8), None, "less than 4 GiB"),
        (TensorSpec("", (1,), U8), None, "tensor name"),
        (TensorSpec("a\0b", (1,), U8), None, "tensor name"),
        (TensorSpec("t", (3, 2), U8, AxisScaleOffset(2, (1.0, 1.0))), None, "existing axis"),
        (TensorSpec("t", (3, 2), U8, AxisScaleOffset(0, (1.0, 1.0))), None, "existing axis"),
        (TensorSpec("t", (1,), U8, ScaleOffset(1e-60)), None, "0 or infinite in 32 bits"),
        (TensorSpec("t", (1,), U8, ScaleOffset(1e60)), None, "0 or infinite in 32 bits"),
        (TensorSpec("t", (1,), U8, ScaleOffset(1.0, 1 << 31)), None, "does not fit 32 bits"),
        (static(U8, None), None, "has no data"),
        (static(U8, None), np.zeros((3, 1), np.uint8), "of shape"),
        (static(U8, None), np.zeros(5, np.uint8), "of shape"),
        (static(U8, None), np.zeros((3, 2), np.int8), "of type int8"),
        (TensorSpec("t", (1,), U8), np.zeros(1, np.uint8), "only static tensors have data"),
        (static(DType.SFIXED_POINT_4, None), np.zeros((3, 2), np.int8), "no encoding"),
        (static(DType.SFIXED_POINT_4, ScaleOffset(1.0)), np.full((3, 2), 8, np.int8), "outside -8..7"),
    ],
)
def test_bad_tensors(spec: TensorSpec, data: Any, said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        tensor_struct(spec, data, [])


@pytest.mark.parametrize(
    "array",
    [np.zeros((3, 4), np.uint8)[:, ::2], np.zeros((2, 3), np.uint8).T, np.broadcast_to(np.uint8(0), (3, 2))],
)
def test_outputs_must_be_in_one_piece(array: Any) -> None:
    with pytest.raises(InvalidArgument, match="contiguous, writable"):
        as_target(TensorSpec("t", (3, 2), U8), array, (3, 2))


@pytest.mark.parametrize(
    ("value", "dtype", "stored"),
    [
        (3, DType.UINT_32, b"\3\0\0\0\0\0\0\0"),
        (-1, DType.INT_32, b"\xff\xff\xff\xff\0\0\0\0"),
        (1.0, DType.FLOAT_32, b"\0\0\x80\x3f\0\0\0\0"),
        (True, DType.BOOL_8, b"\1\0\0\0\0\0\0\0"),
        (np.uint32(7), DType.UINT_8, b"\7\0\0\0\0\0\0\0"),
    ],
)
def test_scalar(value: Any, dtype: DType, stored: bytes) -> None:
    param = scalar_param("p", value, dtype, "n", [])
    assert param.of.scalar.data_type == dtype
    assert bytes(param.of.scalar.raw.bytes) == stored


@pytest.mark.parametrize(
    ("value", "dtype"),
    [
        (-1, DType.UINT_32),
        (1 << 40, DType.UINT_32),
        (2.5, DType.INT_32),
        ("x", DType.UINT_32),
        ([1, 2], DType.UINT_32),
    ],
)
def test_bad_scalar(value: Any, dtype: DType) -> None:
    with pytest.raises(InvalidArgument, match="parameter 'p' of 'n'") as caught:
        scalar_param("p", value, dtype, "n", [])
    assert caught.value.name == "QNN_GRAPH_ERROR_INVALID_OP_CONFIG"


@pytest.mark.parametrize("field", ["name", "op", "package"])
def test_nodes_need_their_names(field: str) -> None:
    call = dataclasses.replace(OpCall("ElementWiseAdd", "add", (A, B), (OUT,)), **{field: ""})
    with pytest.raises(InvalidArgument, match="at least one character"):
        op_config(call, [], [], [], [])


def test_optional_inputs_left_out_at_the_end_are_absent() -> None:
    assert given_inputs(OpCall("X", "x", (A, None, B, None, None), (OUT,))) == (A, None, B)


def test_text_lives_as_long_as_its_keeper() -> None:
    keep: list[Any] = []
    assert ctypes.string_at(c_text("grün", "name", keep)).decode() == "grün"


@st.composite
def specs(draw: Any) -> TensorSpec:
    shape = tuple(draw(st.lists(st.integers(1, 4), max_size=5)))
    dtype = draw(st.sampled_from(DType))
    scale = st.floats(2.0**-20, 2.0**20, width=32)
    quant: Any = None
    if dtype.is_fixed_point:
        axis = draw(st.integers(0, len(shape) - 1)) if shape and draw(st.booleans()) else None
        if axis is None:
            quant = ScaleOffset(draw(scale), draw(st.integers(-(1 << 31), (1 << 31) - 1)))
        else:
            scales = draw(st.lists(scale, min_size=shape[axis], max_size=shape[axis]))
            offsets = draw(st.lists(st.integers(-300, 300), min_size=shape[axis], max_size=shape[axis]))
            quant = AxisScaleOffset(axis, tuple(scales), tuple(offsets))
    dynamic = tuple(draw(st.booleans()) for _ in shape)
    sparse = draw(st.none() | st.integers(1, 9))
    name = draw(st.text(min_size=1).filter(lambda text: "\0" not in text and text.isprintable()))
    kind = draw(
        st.sampled_from([kind for kind in TensorKind if not kind.is_static and kind is not TensorKind.NULL])
    )
    return TensorSpec(name, shape, dtype, quant, kind, dynamic if any(dynamic) else (), sparse)


@given(specs())
def test_every_tensor_survives_the_way_there_and_back(spec: TensorSpec) -> None:
    tensor = tensor_struct(spec, None, keep := [])
    assert spec_of(tensor) == spec
    assert tensor.version == (VERSION_2 if spec.is_dynamic or spec.sparse_elements else VERSION_1)
    assert data_of(tensor, spec) is None
    assert keep


@pytest.mark.parametrize("dtype", list(DType))
def test_static_data_survive_too(dtype: DType) -> None:
    low, high = (0, 1) if dtype is DType.BOOL_8 else (-8, 7) if dtype.signed else (0, 15)
    data = np.arange(low, high + 1).astype(dtype.numpy)
    spec = static(dtype, ScaleOffset(0.5) if dtype.is_fixed_point else None, data.shape)
    tensor = tensor_struct(spec, data, keep := [])
    assert spec_of(tensor) == spec
    read = data_of(tensor, spec)
    assert read.dtype == data.dtype
    assert read.tolist() == data.tolist()
    assert keep


def test_an_operation_survives_the_way_there_and_back() -> None:
    numbers = np.array([[1, 0], [2, 3]], np.uint32)
    keep: list[Any] = []
    tensor = tensor_struct(TensorSpec("conv:pad", (2, 2), DType.UINT_32, kind=STATIC), numbers, keep)
    params = [
        scalar_param("beta", 0.5, DType.FLOAT_32, "conv", keep),
        scalar_param("axis", -3, DType.INT_32, "conv", keep),
        scalar_param("keep", True, DType.BOOL_8, "conv", keep),
        tensor_param("pad", tensor, "conv", keep),
    ]
    inputs = [tensor_struct(A, None, keep), null_tensor(), tensor_struct(B, None, keep)]
    call = OpCall("Conv2d", "conv", (A, None, B), (OUT,))
    read = call_of(op_config(call, inputs, [tensor_struct(OUT, None, keep)], params, keep))
    assert (read.op, read.name, read.package) == ("Conv2d", "conv", "qti.aisw")
    assert (read.inputs, read.outputs) == (call.inputs, call.outputs)
    pad = read.params.pop("pad")
    assert pad.tolist() == numbers.tolist()
    assert read.params == {"beta": 0.5, "axis": -3, "keep": True}


def _broken(**fields: Any) -> ctypes.Structure:
    tensor = tensor_struct(A, None, KEPT)
    for name, value in fields.items():
        setattr(tensor, name, value)
    return tensor


KEPT: list[Any] = []


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({"version": 3}, "version 3"),
        ({"rank": 9}, "at most 8"),
        ({"dims": None}, "at NULL"),
        ({"data_type": 7}, "unknown data type 7"),
        ({"kind": 99}, "tensor kind 99"),
    ],
)
def test_a_client_that_fills_in_nonsense_is_told(fields: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        spec_of(_broken(**fields))


def test_data_of_another_size_are_refused() -> None:
    spec = static(U8, None, (4,))
    tensor = tensor_struct(spec, np.zeros(4, np.uint8), keep := [])
    tensor.buffer.size = 3
    with pytest.raises(InvalidArgument, match="3 bytes of data; expected 4"):
        data_of(tensor, spec)
    assert keep


def test_operations_in_nonsense_are_told() -> None:
    keep: list[Any] = []
    call = OpCall("Relu", "r", (A,), (OUT,))
    specs = [tensor_struct(A, None, keep)], [tensor_struct(OUT, None, keep)]
    bad_form = scalar_param("p", 1, DType.UINT_32, "r", keep)
    bad_form.kind = 7
    with pytest.raises(InvalidArgument, match="form 7"):
        call_of(op_config(call, *specs, [bad_form], keep))
    empty = tensor_param("p", tensor_struct(A, None, keep), "r", keep)
    assert empty.kind == ParamKind.TENSOR
    with pytest.raises(InvalidArgument, match="without data"):
        call_of(op_config(call, *specs, [empty], keep))
    later = op_config(call, *specs, [], keep)
    later.version = 2
    with pytest.raises(InvalidArgument, match="version 2"):
        call_of(later)


def test_a_scale_of_zero_is_no_encoding() -> None:
    keep: list[Any] = []
    given: Any = tensor_struct(A, None, keep)
    given.quant.of.scale_offset.scale = 0.0
    assert spec_of(given).quant is None


def in_blocks(
    stored: Any, scales: list[float], numbers: Any, axis: int, changes: Any = None
) -> tuple[Any, list[Any]]:
    """A tensor as a client describes it, and what must live as long."""
    keep: list[Any] = []
    spec = TensorSpec("w", stored.shape, DType.SFIXED_POINT_8, AxisScaleOffset(axis, tuple(scales)), STATIC)
    tensor: Any = tensor_struct(spec, stored, keep)
    kept = np.ascontiguousarray(numbers, np.uint8)
    body = struct("BlockwiseExpansion")(
        axis=axis, scale_offsets=tensor.quant.of.axis.scale_offsets, scale_bits=4, numbers=kept.ctypes.data
    )
    body.blocks = kept.shape[1]
    for name, value in (changes or {}).items():
        setattr(body, name, value)
    tensor.quant.encoding = EncodingKind.BLOCKWISE_EXPANSION
    tensor.quant.of.expansion = ctypes.addressof(body)
    return tensor, [*keep, kept, body]


@pytest.mark.parametrize(("shape", "axis", "block_axis"), [((3, 8), 0, 1), ((8, 3), 1, 0), ((1, 2, 8, 3), 3, 2)])
@pytest.mark.parametrize("halves", [False, True])
def test_weights_in_blocks_are_expanded_to_the_bit(
    shape: tuple[int, ...], axis: int, block_axis: int, halves: bool
) -> None:
    random = np.random.default_rng(3)
    weights, numbers = random.integers(-8, 8, shape).astype(np.int8), random.integers(1, 17, (3, 4))
    scales = [0.5, 0.25, 2.0]
    stored = weights & 0x0F if halves else weights
    tensor, keep = in_blocks(stored, scales, numbers, axis)
    spec = spec_of(tensor)
    data = data_of(tensor, spec)
    assert keep
    assert data is not None
    assert spec.quant is not None
    real = spec.quant.dequantize(data)
    for place in np.ndindex(*shape):
        channel, block = place[axis], place[block_axis] // 2
        assert real[place] == scales[channel] * numbers[channel, block] * weights[place]


@pytest.mark.parametrize(
    ("changes", "numbers", "said"),
    [
        ({"axis": 2}, [[1, 1]] * 3, "existing axis"),
        ({"blocks": 0}, [[1, 1]] * 3, "at least one block"),
        ({"blocks": 3}, [[1, 1, 1]] * 3, "divides the 8"),
        ({"storage": 9}, [[1, 1]] * 3, "storage 0 or 1"),
        ({"numbers": 8}, [[1, 1]] * 3, "not this process's memory"),
        ({"scale_offsets": 8}, [[1, 1]] * 3, "not this process's memory"),
        ({}, [[1, 200]] * 3, "expected eight bits"),
    ],
)
def test_bad_blocks(changes: dict[str, Any], numbers: Any, said: str) -> None:
    tensor, keep = in_blocks(np.full((3, 8), 7, np.int8), [1.0] * 3, np.array(numbers), 0, changes)
    with pytest.raises(InvalidArgument, match=said):
        data_of(tensor, spec_of(tensor))
    assert keep


def test_blocks_hold_weights_of_four_bits() -> None:
    tensor, keep = in_blocks(np.full((3, 8), 60, np.int8), [1.0] * 3, np.ones((3, 2)), 0)
    with pytest.raises(InvalidArgument, match="more than four bits"):
        data_of(tensor, spec_of(tensor))
    assert keep


def test_an_encoding_that_is_not_known_is_refused_rather_than_read_as_none() -> None:
    tensor: Any = tensor_struct(A, None, keep := [])
    tensor.quant.encoding = 7
    with pytest.raises(InvalidArgument, match="encoding of kind 7"):
        spec_of(tensor)
    assert keep


def test_a_bias_has_the_scales_of_a_group_s_channels_for_every_group() -> None:
    spec = TensorSpec("b", (2,), DType.SFIXED_POINT_32, AxisScaleOffset(0, (0.5, 0.25)), STATIC)
    tensor: Any = tensor_struct(spec, np.arange(2, dtype=np.int32), keep := [])
    wide = (ctypes.c_uint32 * 1)(6)
    tensor.dims = ctypes.addressof(wide)
    assert spec_of(tensor).quant == AxisScaleOffset(0, (0.5, 0.25) * 3)
    assert keep
