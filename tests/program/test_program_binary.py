"""Programs and context binaries: round trips, sharing, and files written by an enemy."""

from __future__ import annotations

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from openhtp.compiler.driver import portable_program
from openhtp.core.dtype import DType
from openhtp.core.errors import BadBinary, QnnError
from openhtp.core.opcall import OpCall
from openhtp.core.quant import AxisScaleOffset, ScaleOffset
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.ir.builder import GraphBuilder
from openhtp.program.binary import BinaryInfo, ByteRange, joined, read_binary, write_binary
from openhtp.program.qnn_program import QnnProgram
from tests.program.forging import forged, parts_of, put_together


def conv_program(name: str = "g", seed: int = 0) -> QnnProgram:
    rng = np.random.default_rng(seed)
    u8 = DType.UFIXED_POINT_8
    x = TensorSpec("x", (1, 6, 6, 64), u8, ScaleOffset(0.1, -128), TensorKind.APP_WRITE)
    per_channel = AxisScaleOffset(3, tuple(rng.uniform(0.01, 0.02, 8).tolist()))
    w = TensorSpec("w", (3, 3, 64, 8), DType.SFIXED_POINT_8, per_channel, TensorKind.STATIC)
    t = TensorSpec("t", (1, 6, 6, 8), u8, ScaleOffset(0.2, -128))
    y = TensorSpec("y", (1, 6, 6, 8), u8, ScaleOffset(0.05, 0), TensorKind.APP_READ)
    builder = GraphBuilder(name)
    for spec in (x, t, y):
        builder.add_tensor(spec)
    builder.add_tensor(w, rng.integers(-127, 128, w.shape).astype(np.int8))
    params = {"stride": [1, 1], "pad_amount": np.array([[1, 1], [1, 1]], np.uint32)}
    builder.add_node(OpCall("Conv2d", "conv", (x, w), (t,), params))
    builder.add_node(OpCall("Relu", "relu", (t,), (y,)))
    return portable_program(builder.finish())


BYTES = conv_program().to_bytes()


def test_round_trip_keeps_everything() -> None:
    before = conv_program()
    after = QnnProgram.from_bytes(before.to_bytes())
    assert after.name == before.name
    assert after.tensors == before.tensors
    assert after.options == before.options
    for one, other in zip(after.nodes, before.nodes, strict=True):
        assert (one.op, one.name, one.inputs, one.outputs) == (other.op, other.name, other.inputs, other.outputs)
        assert {name: np.asarray(value).tolist() for name, value in one.params.items()} == {
            name: np.asarray(value).tolist() for name, value in other.params.items()
        }
    np.testing.assert_array_equal(after.statics["w"], before.statics["w"])
    assert after.to_bytes() == before.to_bytes()


def test_weights_are_views_into_the_buffer_and_cannot_be_written() -> None:
    buffer = np.frombuffer(BYTES, np.uint8)
    weights = QnnProgram.from_bytes(memoryview(buffer)).statics["w"]
    assert np.shares_memory(weights, buffer)
    assert not weights.flags.writeable
    assert weights.ctypes.data % 64 == buffer.ctypes.data % 64


def test_equal_weights_of_graphs_that_share_are_stored_once() -> None:
    info = BinaryInfo(soc="SM8650", arch=75, weight_sharing=True)
    one = write_binary([conv_program("a")], info)
    two = write_binary([conv_program("a"), conv_program("b")], info)
    other = write_binary([conv_program("a"), conv_program("b", seed=1)], info)
    assert len(parts_of(two)[1]) == 2, "one program and the weights of both"
    assert len(parts_of(other)[1]) == 4, "and here of each"
    binary = read_binary(two)
    assert binary.graph_names == ("a", "b")
    assert binary.info.soc == "SM8650"
    assert np.shares_memory(binary.program("a").statics["w"], binary.program("b").statics["w"])
    assert len(parts_of(one)[1]) == 2


def test_equal_weights_of_graphs_that_do_not_share_are_stored_for_each() -> None:
    binary = write_binary([conv_program("a"), conv_program("b")], BinaryInfo())
    assert len(parts_of(binary)[1]) == 4
    stored = read_binary(binary)
    assert not set(stored.data_of("a")) & set(stored.data_of("b"))
    np.testing.assert_array_equal(stored.program("a").statics["w"], stored.program("b").statics["w"])


def test_metadata_needs_no_data() -> None:
    info = read_binary(BYTES).graph_info("g")
    assert [str(spec) for spec in info.inputs] == ["x: ufixed8[1, 6, 6, 64]"]
    assert [str(spec) for spec in info.outputs] == ["y: ufixed8[1, 6, 6, 8]"]
    assert info.static_bytes == 3 * 3 * 64 * 8


def test_unknown_graph_names_those_that_are_there() -> None:
    with pytest.raises(QnnError, match="it has g"):
        read_binary(BYTES).program("nope")


@pytest.mark.parametrize("length", [0, 7, 63, 64, 100, 4096, len(BYTES) - 1])
def test_a_truncated_file_is_refused(length: int) -> None:
    with pytest.raises(BadBinary):
        QnnProgram.from_bytes(BYTES[:length])


@settings(max_examples=300, deadline=None)
@given(st.integers(0, len(BYTES) - 1), st.integers(1, 255))
def test_any_flipped_byte_is_found(place: int, flip: int) -> None:
    damaged = bytearray(BYTES)
    damaged[place] ^= flip
    with pytest.raises(BadBinary):
        QnnProgram.from_bytes(bytes(damaged))


def test_another_version_has_its_own_code() -> None:
    import struct
    import zlib

    body = bytearray(BYTES[:60])
    body[8:12] = struct.pack("<I", 99)
    changed = bytes(body) + struct.pack("<I", zlib.crc32(bytes(body))) + BYTES[64:]
    with pytest.raises(BadBinary, match="version 99") as caught:
        QnnProgram.from_bytes(changed)
    assert caught.value.name == "QNN_CONTEXT_ERROR_BINARY_VERSION"


def test_the_enemy_tool_makes_a_valid_file_when_nothing_is_changed() -> None:
    same = put_together(*parts_of(BYTES))
    assert same == BYTES
    assert QnnProgram.from_bytes(same).name == "g"


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("program", "tensors", 0, "shape", 1), 1 << 62),
        (("program", "tensors", 0, "shape", 1), 0),
        (("program", "tensors", 0, "dtype"), 9999),
        (("program", "tensors", 0, "kind"), -1),
        (("program", "tensors", 0, "quant", "scale"), -1.0),
        (("program", "tensors", 3, "blob"), 5),
        (("program", "tensors", 3, "shape", 0), 4),
        (("program", "tensors", 1, "name"), "x"),
        (("program", "nodes", 0, "inputs", 0), 1 << 40),
        (("program", "nodes", 0, "inputs", 0), 2),
        (("program", "nodes", 0, "outputs", 0), 0),
        (("program", "nodes", 0, "op"), "__import__"),
        (("program", "nodes", 0, "params", "pad_amount", "shape"), [1 << 40, 1 << 40]),
        (("program", "nodes", 0, "params", "pad_amount", "dtype"), "|O"),
        (("program", "nodes", 1, "inputs"), []),
        (("graphs", 0, "ends", "options", "priority"), 501),
        (("graphs", 0, "ends", "options", "precision"), "float1"),
        (("program", "nodes"), []),
        (("sections", 0, 0), -64),
        (("sections", 0, 0), 1 << 60),
        (("graphs",), []),
        (("graphs",), 7),
        (("graphs", 0, "program"), 1),
        (("graphs", 0, "program"), 9),
        (("graphs", 0, "data"), []),
        (("graphs", 0, "data"), [7]),
        (("graphs", 0, "data"), [-1]),
        (("graphs", 0, "static_bytes"), 1),
        (("graphs", 0, "ends", "inputs"), []),
        (("graphs", 0, "ends", "inputs", 0, "shape", 1), 7),
        (("graphs", 0, "ends", "inputs", 0, "quant", "scale"), 0.5),
        (("graphs", 0, "ends", "outputs", 0, "name"), "z"),
    ],
)
def test_nonsense_with_right_checksums_is_refused(path: tuple[str | int, ...], value: object) -> None:
    with pytest.raises(BadBinary):
        QnnProgram.from_bytes(forged(BYTES, path, value))


def test_all_that_passes_require_is_asked_of_a_file() -> None:
    """Otherwise they would report a bug of ours, in the middle of a compilation."""
    name = QnnProgram.from_bytes(BYTES).nodes[0].name
    with pytest.raises(BadBinary, match=f"2 nodes are named '{name}'"):
        QnnProgram.from_bytes(forged(BYTES, ("program", "nodes", 1, "name"), name))
    header, sections = parts_of(BYTES)
    about = header["graphs"][0]
    program = msgspec.msgpack.decode(sections[about["program"]])
    about["ends"]["outputs"], about["data"], about["static_bytes"] = [], [], 0
    sections = [msgspec.msgpack.encode({**program, "nodes": [], "tensors": program["tensors"][:1]})]
    with pytest.raises(BadBinary, match="there are no nodes"):
        QnnProgram.from_bytes(put_together(header, sections, bind=True))


def test_pieces_that_follow_each_other_are_one() -> None:
    pieces = [
        ByteRange(0, 4096),
        ByteRange(4096, 5000),
        ByteRange(8192, 9000),
        ByteRange(9000, 9001),
        ByteRange(9002, 9003),
    ]
    assert joined(pieces) == [ByteRange(0, 5000), ByteRange(8192, 9001), ByteRange(9002, 9003)]
    assert joined([]) == []


def test_every_tensor_has_an_id_of_its_own() -> None:
    programs = [conv_program("a"), conv_program("b", seed=1)]
    written = read_binary(write_binary(programs, BinaryInfo()))
    assert [written.packed(name).tensor_ids for name in "ab"] == [{"x": 1, "y": 2}, {"x": 3, "y": 4}]


def test_a_binary_without_ids_is_read_with_those_of_its_context(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as earlier:
        earlier.setattr("openhtp.program.binary._all_ids", lambda graphs: [() for _ in graphs])
        old = write_binary([conv_program("a"), conv_program("b")], BinaryInfo())
    binary = read_binary(old)
    assert [binary.packed(name).tensor_ids for name in "ab"] == [{"x": 1, "y": 2}, {"x": 3, "y": 4}]
