"""Graphs as they are stored: weights in another arrangement, prepared forms beside them, and older files."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from openhtp.compiler.driver import CompileOptions, portable_program
from openhtp.core.dtype import DType
from openhtp.core.errors import BadBinary
from openhtp.core.opcall import OpCall
from openhtp.core.precision import half_rounded
from openhtp.core.quant import ScaleOffset
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.ir.builder import GraphBuilder
from openhtp.options import GRAPH
from openhtp.program import container
from openhtp.program.arranging import arrange, by_trait, find_arrangement
from openhtp.program.binary import BinaryInfo, pack_graphs, read_binary
from openhtp.program.packed import PackedGraph, pack_program
from openhtp.program.qnn_program import QnnProgram
from openhtp.program.records import Arrangement
from tests.program import forging

OLD = Path(__file__).with_name("data") / "version1.bin"
U8 = DType.UFIXED_POINT_8


def conv_program(name: str = "g", seed: int = 0) -> QnnProgram:
    rng = np.random.default_rng(seed)
    x = TensorSpec("x", (1, 6, 6, 64), U8, ScaleOffset(0.1, -128), TensorKind.APP_WRITE)
    w = TensorSpec("w", (3, 3, 64, 16), U8, ScaleOffset(0.01, -128), TensorKind.STATIC)
    y = TensorSpec("y", (1, 6, 6, 16), U8, ScaleOffset(0.05, 0), TensorKind.APP_READ)
    builder = GraphBuilder(name)
    builder.add_tensor(x)
    builder.add_tensor(w, rng.integers(0, 256, w.shape).astype(np.uint8))
    builder.add_tensor(y)
    params = {"stride": [1, 1], "pad_amount": np.array([[1, 1], [1, 1]], np.uint32)}
    builder.add_node(OpCall("Conv2d", "conv", (x, w), (y,), params))
    return portable_program(builder.finish())


def turned_weights(program: QnnProgram) -> np.ndarray:
    """As the integer kernels take them: signed, output channels first."""
    return (program.statics["w"].transpose(3, 2, 0, 1) ^ np.uint8(0x80)).view(np.int8).copy()


def packed_with_prepared(name: str = "g", seed: int = 0) -> PackedGraph:
    program = conv_program(name, seed)
    packed, places = pack_program(program, [turned_weights(program), np.arange(300, dtype=np.float32)])
    assert places == [0, 1]
    return dataclasses.replace(packed, prepared=container.make_section(b"words"), seal=b"seal")


def stored(*graphs: PackedGraph) -> bytes:
    return b"".join(pack_graphs(graphs, BinaryInfo(weight_sharing=True)))


@settings(deadline=None)
@given(st.data())
def test_any_arrangement_is_found_and_undone(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 5), min_size=1, max_size=4)))
    shape = (shape[0] * 600, *shape[1:])
    dtype = data.draw(st.sampled_from(["u1", "i1", "u2", "f2", "f4", "i4"]))
    raw = np.random.default_rng(data.draw(st.integers(0, 99)))
    static = raw.integers(0, 256, (*shape, np.dtype(dtype).itemsize)).astype(np.uint8).view(dtype)[..., 0]
    order = data.draw(st.permutations(range(len(shape))))
    flip = data.draw(st.booleans()) and np.dtype(dtype).itemsize == 1
    kept = static.transpose(order).copy()
    if flip:
        kept.view(np.uint8)[...] ^= 0x80
    other = np.zeros_like(kept)
    found = find_arrangement(static, by_trait([other, kept]))
    assert found is not None
    assert found[0] is kept
    names = {"u1": "uint8", "i1": "int8", "u2": "uint16", "f2": "float16", "f4": "float32", "i4": "int32"}
    spec = TensorSpec("t", shape, DType.parse(names[dtype]), kind=TensorKind.STATIC)
    back = arrange(memoryview(kept.tobytes()), spec, found[1])
    assert back.tobytes() == static.tobytes()


@settings(deadline=None)
@given(st.data())
def test_blocks_of_channels_are_found_and_undone(data: st.DataObject) -> None:
    """Filled up with zeros where a block is not full, as the CPU runtime wants float filters."""
    high, wide = data.draw(st.sampled_from([1, 3])), data.draw(st.sampled_from([1, 3]))
    into, out = data.draw(st.integers(1, 40)), data.draw(st.integers(9, 70))
    block, both = data.draw(st.sampled_from([8, 16])), data.draw(st.booleans())
    static = np.random.default_rng(data.draw(st.integers(0, 99))).normal(size=(high, wide, into, out))
    static = static.astype(np.float32)
    full = [-(-into // block) * block if both else into, -(-out // block) * block]
    padded = np.pad(static, [(0, 0), (0, 0), (0, full[0] - into), (0, full[1] - out)])
    filters = padded.transpose(3, 2, 0, 1)
    if both:
        blocks = filters.reshape(full[1] // block, block, full[0] // block, block, high, wide)
        kept = blocks.transpose(0, 2, 4, 5, 3, 1).reshape(filters.shape)
    else:
        blocks = filters.reshape(full[1] // block, block, full[0], high, wide)
        kept = blocks.transpose(0, 2, 3, 4, 1).reshape(filters.shape)
    found = find_arrangement(static, by_trait([np.zeros_like(kept), np.ascontiguousarray(kept)]))
    if static.nbytes < 512:
        assert found is None
        return
    assert found is not None
    spec = TensorSpec("t", static.shape, DType.FLOAT_32, kind=TensorKind.STATIC)
    back = arrange(memoryview(np.ascontiguousarray(kept)).cast("B"), spec, found[1])
    assert back.tobytes() == static.tobytes()


def float_program(uses: int = 1, **options: str) -> QnnProgram:
    x = TensorSpec("x", (1, 64), DType.FLOAT_32, None, TensorKind.APP_WRITE)
    w = TensorSpec("w", (64, 64), DType.FLOAT_32, None, TensorKind.STATIC)
    builder = GraphBuilder("g")
    builder.add_tensor(x)
    builder.add_tensor(w, np.random.default_rng(3).normal(size=w.shape).astype(np.float32))
    for number in range(uses):
        y = TensorSpec(f"y{number}", (1, 64), DType.FLOAT_32, None, TensorKind.APP_READ)
        builder.add_tensor(y)
        builder.add_node(OpCall("FullyConnected", f"dense{number}", (x, w), (y,)))
    return portable_program(builder.finish(), CompileOptions(graph=GRAPH.read(options)))


@pytest.mark.parametrize(
    ("uses", "options", "once"), [(1, {}, True), (2, {}, True), (1, {"precision": "float32"}, False)]
)
def test_rounded_weights_stand_for_those_that_are_used_rounded_only(
    uses: int, options: dict[str, str], *, once: bool
) -> None:
    program = float_program(uses, **options)
    weights = program.statics["w"]
    packed, places = pack_program(program, [half_rounded(weights).T.copy()])
    assert len(packed.blobs) == (1 if once else 2)
    assert places == [len(packed.blobs) - 1]
    expected = half_rounded(weights) if once else weights
    np.testing.assert_array_equal(packed.program().statics["w"], expected)


def test_data_that_differs_in_one_bit_is_not_taken_for_the_same() -> None:
    static = np.random.default_rng(0).normal(size=(40, 40)).astype(np.float32)
    other = static.T.copy()
    other[30, 30] = -other[30, 30]
    other[0, 0], other[1, 0] = other[1, 0], other[0, 0]
    assert find_arrangement(static, by_trait([other])) is None
    other = static.T.copy()
    other[20, 20], other[30, 31] = other[30, 31], other[20, 20]
    assert find_arrangement(static, by_trait([other])) is None
    static[:] = 0.0
    assert find_arrangement(static, by_trait([-static.T])) is None, "negative zero is another number"


def test_weights_are_stored_once_in_the_arrangement_of_the_engine() -> None:
    program, graph = conv_program(), packed_with_prepared()
    assert [blob.record.nbytes for blob in graph.blobs] == [program.statics["w"].nbytes, 1200]
    after = read_binary(stored(graph)).program("g")
    np.testing.assert_array_equal(after.statics["w"], program.statics["w"])
    assert not after.statics["w"].flags.writeable
    assert after.statics["w"].flags.c_contiguous


def test_a_graph_keeps_its_packed_form_among_others() -> None:
    """Its hash is sealed, so it must not depend on what else is in a file."""
    graphs = [packed_with_prepared("a"), packed_with_prepared("b", seed=1), packed_with_prepared("c")]
    data = stored(*graphs)
    binary = read_binary(data)
    for graph in graphs:
        again = binary.packed(graph.name)
        assert again.record() == graph.record()
        assert again.identity() == graph.identity()
        assert again.prepared is not None
        assert (bytes(again.prepared.read()), again.seal) == (b"words", b"seal")
        assert [bytes(blob.read()) for blob in again.blobs] == [bytes(blob.read()) for blob in graph.blobs]
    assert stored(*(binary.packed(name) for name in binary.graph_names)) == data
    assert len(data) < len(stored(graphs[0])) + 2 * len(stored(graphs[1])), "equal data is stored once"


@pytest.mark.parametrize("names", [("g",), ("g", "h")])
def test_zeros_of_different_lengths_are_different_data(names: tuple[str, ...]) -> None:
    """Both are all zeros once they are padded."""
    zeros = {"x": np.zeros(1, np.uint8), "y": np.zeros(1, np.uint16)}
    graphs = []
    for name in names:
        builder = GraphBuilder(name)
        for key, data in zeros.items():
            dtype = U8 if data.itemsize == 1 else DType.UFIXED_POINT_16
            specs = [
                TensorSpec(f"{key}{kind.name}", (1,), dtype, ScaleOffset(1.0, 0), kind)
                for kind in (TensorKind.APP_WRITE, TensorKind.STATIC, TensorKind.APP_READ)
            ]
            for spec in specs:
                builder.add_tensor(spec, data if spec.kind is TensorKind.STATIC else None)
            builder.add_node(OpCall("ElementWiseAdd", key, tuple(specs[:2]), (specs[2],)))
        graphs.append(pack_program(portable_program(builder.finish()))[0])
    after = read_binary(stored(*graphs))
    for name in names:
        statics = after.program(name).statics
        assert {key: statics[f"{key}STATIC"].dtype for key in zeros} == {k: d.dtype for k, d in zeros.items()}


def test_a_file_of_an_older_version_is_refused_in_words() -> None:
    """Its nodes have clamps fused into them, which are no longer in the portable program."""
    with pytest.raises(BadBinary, match="format version 1; this openhtp reads version 7: make it again") as caught:
        read_binary(OLD.read_bytes())
    assert caught.value.name == "QNN_CONTEXT_ERROR_BINARY_VERSION"
    assert int.from_bytes(stored(packed_with_prepared())[8:12], "little") == container.VERSION == 7


@pytest.mark.parametrize("length", [1, 64, 300, 1500])
def test_a_cut_file_is_refused(length: int) -> None:
    with pytest.raises(BadBinary):
        read_binary(stored(packed_with_prepared())[:-length])


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_damage_is_found_by_checksum_or_by_hash(data: st.DataObject) -> None:
    graph = packed_with_prepared()
    whole = bytearray(stored(graph))
    whole[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(BadBinary):
        look_at_everything(whole)


def look_at_everything(binary: bytes | bytearray) -> None:
    again = read_binary(binary).packed("g")
    again.program()
    again.check_rest()


WEIGHTS = ("program", "tensors", 1)


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ((*WEIGHTS, "stored", "order"), [0, 1, 2, 2]),
        ((*WEIGHTS, "stored", "order"), [0, 1, 2, 3]),
        ((*WEIGHTS, "stored", "order"), [0, 1, 2, 9]),
        ((*WEIGHTS, "stored", "order"), [0, 1, 2]),
        ((*WEIGHTS, "stored", "order"), [0, -1, 2, 3]),
        ((*WEIGHTS, "stored", "order"), "3210"),
        ((*WEIGHTS, "stored", "shape"), [1 << 39, 1 << 39, 1, 1]),
        ((*WEIGHTS, "stored", "shape"), [0, 0, 0, 0]),
        ((*WEIGHTS, "stored", "shape"), [1] * 200),
        ((*WEIGHTS, "stored", "flipped"), 3),
        ((*WEIGHTS, "blob"), 1),
        ((*WEIGHTS, "stored"), {"shape": [16, 64, 3, 3], "order": [2, 3, 1, 0], "joined": [1, 1, 1]}),
        ((*WEIGHTS, "stored"), {"shape": [16, 64, 3, 3], "order": [2, 3, 1, 0], "joined": [2, 2]}),
        ((*WEIGHTS, "stored"), {"shape": [16, 64, 3, 3], "order": [2, 3, 1, 0], "joined": [1 << 40, 0, 0, 0]}),
        (("graphs", 0, "data"), [0, 9]),
        (("graphs", 0, "prepared"), 9),
        (("graphs", 0, "prepared"), -1),
        (("graphs", 0, "prepared"), 1 << 63),
        (("graphs", 0, "seal"), 5),
    ],
)
def test_nonsense_with_right_checksums_is_refused(path: tuple[str | int, ...], value: object) -> None:
    with pytest.raises(BadBinary):
        look_at_everything(forging.forged(stored(packed_with_prepared()), path, value))


def updateable_program() -> QnnProgram:
    x = TensorSpec("x", (1, 64), DType.FLOAT_32, None, TensorKind.APP_WRITE)
    w = TensorSpec("w", (64, 64), DType.FLOAT_32, None, TensorKind.UPDATEABLE_STATIC)
    y = TensorSpec("y", (1, 64), DType.FLOAT_32, None, TensorKind.APP_READ)
    builder = GraphBuilder("g")
    for spec, data in ((x, None), (w, np.arange(64 * 64, dtype=np.float32).reshape(w.shape)), (y, None)):
        builder.add_tensor(spec, data)
    builder.add_node(OpCall("FullyConnected", "dense", (x, w), (y,)))
    return portable_program(builder.finish())


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ((*WEIGHTS, "update"), 1),
        ((*WEIGHTS, "update"), 1 << 61),
        ((*WEIGHTS, "update"), -1),
        ((*WEIGHTS, "blob"), 0),
        (("graphs", 0, "updates"), None),
        (("graphs", 0, "updates"), 7),
        (("graphs", 0, "updates"), 0),
    ],
)
def test_nonsense_about_updateable_data_is_refused(path: tuple[str | int, ...], value: object) -> None:
    whole = stored(pack_program(updateable_program())[0])
    look_at_everything(whole)
    header, sections = forging.parts_of(whole)
    if path[-1] == "blob":
        program = msgspec.msgpack.decode(sections[header["graphs"][0]["program"]])
        program["tensors"][1]["blob"] = value
        sections[header["graphs"][0]["program"]] = msgspec.msgpack.encode(program)
        damaged = forging.put_together(header, sections, bind=True)
    else:
        damaged = forging.forged(whole, path, value)
    with pytest.raises(BadBinary):
        look_at_everything(damaged)


def test_the_enemy_tool_makes_a_valid_file_when_nothing_is_changed() -> None:
    whole = stored(packed_with_prepared())
    assert forging.forged(whole, (*WEIGHTS, "blob"), 0) == whole


def test_flipping_is_for_bytes_only() -> None:
    spec = TensorSpec("t", (2, 3), DType.FLOAT_32, kind=TensorKind.STATIC)
    with pytest.raises(BadBinary):
        arrange(memoryview(bytes(24)), spec, Arrangement([2, 3], [0, 1], True))
