"""Prepared forms: the same results sooner, and nothing from anyone else."""

from __future__ import annotations

import dataclasses
import logging
import weakref
from collections.abc import Iterator
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from onnx import AttributeProto, ModelProto, TensorProto, helper
from prepared_forms import SOC, Change, load, resealed, results

import openhtp.onnx
from openhtp import zoo
from openhtp.compiler.driver import compile_graph, program_for
from openhtp.core.errors import BadBinary
from openhtp.core.precision import half_rounded
from openhtp.engine import ort, prepared, seal, segments
from openhtp.engine.ort import OrtEngine
from openhtp.engine.prepared import Manifest, Unusable, inspect_part, open_prepared
from openhtp.engine.protocol import PreparingEngine
from openhtp.engine.sessions import PreparedSegments, SegmentModel
from openhtp.engine.workshop import Workshop
from openhtp.hw.catalog import find_soc
from openhtp.program.binary import BinaryInfo, pack_graphs, read_binary
from openhtp.program.container import make_section
from openhtp.program.htp_program import HtpProgram
from openhtp.program.packed import PackedGraph
from openhtp.program.records import Scalar

replace = msgspec.structs.replace


@pytest.fixture(scope="module", autouse=True)
def short_segments() -> Iterator[None]:
    """Small networks are cut too, so that there is something between parts."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(segments, "_SEGMENT_SECONDS", 1e-5)
        yield


@pytest.fixture(scope="module")
def program() -> HtpProgram:
    return compile_graph(openhtp.onnx.load(zoo.quantized(zoo.MODELS["small_cnn"]())), SOC)


@pytest.fixture(scope="module")
def packed(program: HtpProgram) -> PackedGraph:
    prepared_form = OrtEngine().pack(program)
    assert prepared_form is not None
    # Through a file, as it would come.
    return read_binary(b"".join(pack_graphs([prepared_form], BinaryInfo()))).packed(program.name)


def test_results_and_yield_points_are_those_of_the_program(program: HtpProgram, packed: PackedGraph) -> None:
    fresh, stored = OrtEngine().load(program), load(packed)
    assert stored is not None
    assert stored.steps == fresh.steps > 2
    for seed in range(3):
        expected, found = results(program, fresh, seed), results(program, stored, seed)
        for name, values in expected.items():
            np.testing.assert_array_equal(found[name], values)


def test_float_graphs_too() -> None:
    program = compile_graph(openhtp.onnx.load(zoo.MODELS["small_cnn"]()), SOC)
    packed = OrtEngine().pack(program)
    assert packed is not None
    stored = load(packed)
    assert stored is not None
    for name, values in results(program, OrtEngine().load(program)).items():
        np.testing.assert_array_equal(results(program, stored)[name], values)


@pytest.mark.usefixtures("image_order")
def test_float_weights_are_stored_once_and_the_program_computes_the_same() -> None:
    """They lie in blocks of channels, some of them filled up, rounded as they are computed with."""
    program = compile_graph(openhtp.onnx.load(zoo.MODELS["small_cnn"]()), SOC)
    packed = OrtEngine().pack(program)
    assert packed is not None
    halves = sum(data.nbytes for data in program.statics.values() if data.nbytes >= 4096) // 2
    assert 0 < halves <= sum(blob.nbytes for blob in packed.blobs) < 1.1 * halves
    after = packed.program()
    for name, data in program.statics.items():
        expected = data if data.nbytes < 4096 else half_rounded(data)
        np.testing.assert_array_equal(after.statics[name], expected, err_msg=name)
    again = OrtEngine().load(program_for(after, SOC))
    for name, values in results(program, OrtEngine().load(program)).items():
        np.testing.assert_array_equal(results(program, again)[name], values)


@pytest.mark.usefixtures("image_order")
def test_graphs_of_other_sizes_read_the_same_float_weights() -> None:
    """Their parts are not equal, but convolutions read filters where they lie, whatever they are applied to."""
    found, programs, graphs = [], [], []
    for size in (64, 96):
        network = openhtp.onnx.load(zoo.MODELS["small_cnn"](size))
        programs.append(compile_graph(dataclasses.replace(network, name=f"at_{size}"), SOC))
        prepared_form = OrtEngine().pack(programs[-1])
        assert prepared_form is not None
        graphs.append(prepared_form)
    binary = read_binary(b"".join(pack_graphs(graphs, BinaryInfo(weight_sharing=True))))
    with Workshop() as workshop:
        for program in programs:
            packed = binary.packed(program.name)
            loaded = OrtEngine().load_packed(packed, packed.info(), SOC, workshop)
            assert loaded is not None
            found.append({array.ctypes.data for stage in loaded._stages.stages for array in stage.session.held})
            fresh = OrtEngine().load(program)
            for name, values in results(program, fresh).items():
                np.testing.assert_array_equal(results(program, loaded)[name], values)
    assert found[0] == found[1] != set()


@pytest.mark.usefixtures("image_order")
@pytest.mark.parametrize("side", ["native", "package_only"])
def test_sizes_of_one_network_read_float_weights_once(side: str, request: pytest.FixtureRequest) -> None:
    """Also if none of them was prepared before, and whoever makes the sessions."""
    if side == "package_only":
        request.getfixturevalue(side)
    found, loaded = [], []
    for size in (64, 96):
        program = compile_graph(openhtp.onnx.load(zoo.MODELS["small_cnn"](size)), SOC)
        loaded.append(OrtEngine().load(program))
        arrays = [array for stage in loaded[-1]._stages.stages for array in stage.session.held]
        found.append({array.ctypes.data for array in arrays if array.ndim == 4})
    assert found[0] == found[1] != set()


def test_a_run_keeps_the_weights_that_it_reads() -> None:
    """A client may free a graph while an execution is under way."""
    program = compile_graph(openhtp.onnx.load(zoo.MODELS["small_cnn"]()), SOC)
    loaded = OrtEngine().load(program)
    held = [weakref.ref(array) for stage in loaded._stages.stages for array in stage.session.held]
    arrays = {spec.name: np.zeros(spec.shape, spec.dtype.numpy) for spec in (*program.inputs, *program.outputs)}
    run = loaded.bind(arrays)
    loaded.close()
    assert held
    assert all(value() is not None for value in held)
    del run
    assert all(value() is None for value in held)


def test_the_program_is_whole_beside_it(program: HtpProgram, packed: PackedGraph) -> None:
    after = packed.program()
    assert after.tensors == program.tensors
    for name, data in program.statics.items():
        assert after.statics[name].tobytes() == data.tobytes()
    large = [blob for blob in packed.blobs if blob.record.nbytes >= 512]
    assert sum(blob.record.nbytes for blob in large) < 1.2 * program.source.static_bytes, (
        "8-bit weights are stored once"
    )


def test_packing_twice_gives_the_same(program: HtpProgram, packed: PackedGraph) -> None:
    again = OrtEngine().pack(program)
    assert again is not None
    assert again.prepared is not None
    assert packed.prepared is not None
    assert again.prepared.read() == packed.prepared.read()
    assert again.seal == packed.seal


def test_an_engine_without_yield_points_has_no_use_for_it(packed: PackedGraph) -> None:
    with Workshop() as workshop:
        assert OrtEngine(yield_points=False).load_packed(packed, packed.info(), SOC, workshop) is None
    assert isinstance(OrtEngine(), PreparingEngine)


# Not ours, or no longer true


def refused(packed: PackedGraph, caplog: pytest.LogCaptureFixture, why: str) -> None:
    caplog.clear()
    with caplog.at_level(logging.INFO, "openhtp.engine"):
        assert load(packed) is None
    assert why in caplog.text


def test_another_users_seal(
    packed: PackedGraph, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("OPENHTP_KEY_FILE", str(tmp_path / "other.key"))
    refused(packed, caplog, "not made by this user's engine")


def test_made_for_another_soc(packed: PackedGraph, caplog: pytest.LogCaptureFixture) -> None:
    """Its steps are another program's: the device compiles the portable one for itself."""
    with caplog.at_level("INFO"), Workshop() as workshop:
        assert OrtEngine().load_packed(packed, packed.info(), find_soc("SM8550"), workshop) is None
    assert "made for SM8650, not for SM8550" in caplog.text


def test_no_key(program: HtpProgram, packed: PackedGraph, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENHTP_KEY_FILE", "/dev/null/key")
    assert load(packed) is None
    assert OrtEngine().pack(program).prepared is None


def test_another_machine(
    packed: PackedGraph, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(seal, "fingerprint", lambda: "another")
    refused(packed, caplog, "another version, or for another processor")


def test_another_program(packed: PackedGraph, caplog: pytest.LogCaptureFixture) -> None:
    record = packed.record()
    words = make_section(msgspec.msgpack.encode(replace(record, nodes=record.nodes[:-1])))
    refused(dataclasses.replace(packed, words=words), caplog, "another program")


def test_other_ends(packed: PackedGraph, caplog: pytest.LogCaptureFixture) -> None:
    """What the header says about inputs and outputs is sealed, too: an encoding is nowhere else in what loads."""
    ends = packed.ends
    changed = replace(ends, inputs=[replace(ends.inputs[0], quant=Scalar(0.5, 0)), *ends.inputs[1:]])
    refused(dataclasses.replace(packed, ends=changed), caplog, "another program")


def test_weights_changed_behind_the_seal(packed: PackedGraph, caplog: pytest.LogCaptureFixture) -> None:
    for number in (0, len(packed.blobs) - 1):
        data = bytearray(packed.blobs[number].read())
        data[7] ^= 1
        blobs = list(packed.blobs)
        blobs[number] = make_section(memoryview(data))
        refused(dataclasses.replace(packed, blobs=tuple(blobs)), caplog, "not what was sealed")


def test_constants_exchanged_behind_the_seal(packed: PackedGraph, caplog: pytest.LogCaptureFixture) -> None:
    """The file numbers the blobs outside of what is sealed; others of the same size must not do."""
    blobs = packed.blobs
    for changed in (blobs[::-1], blobs[:-1], (*blobs, blobs[0]), (*blobs[1:], blobs[0])):
        refused(dataclasses.replace(packed, blobs=changed), caplog, "not what was sealed")


@settings(max_examples=60, deadline=None)
@given(st.data())
def test_any_change_of_what_is_sealed_is_noticed(packed: PackedGraph, data: st.DataObject) -> None:
    assert packed.prepared is not None
    words = bytearray(packed.prepared.read())
    if data.draw(st.booleans()):
        words[data.draw(st.integers(0, len(words) - 1))] ^= data.draw(st.integers(1, 255))
    else:
        del words[data.draw(st.integers(0, len(words) - 1)) :]
    assert load(dataclasses.replace(packed, prepared=make_section(bytes(words)))) is None


@settings(max_examples=40, deadline=None)
@given(st.data())
def test_damage_anywhere_is_an_error(packed: PackedGraph, data: st.DataObject) -> None:
    whole = bytearray(b"".join(pack_graphs([packed], BinaryInfo())))
    whole[data.draw(st.integers(0, len(whole) - 1))] ^= data.draw(st.integers(1, 255))
    with pytest.raises(BadBinary):
        _looked_at(whole, packed.name)


def _looked_at(binary: bytearray, name: str) -> None:
    record = read_binary(binary).packed(name)
    assert load(record) is None
    record.program()
    record.check_rest()


# An enemy who has the key: still no ends that do not meet


def test_the_enemy_tool_makes_a_valid_form_when_nothing_is_changed(packed: PackedGraph) -> None:
    assert load(resealed(packed, lambda manifest: manifest)) is not None


def part_changed(manifest: Manifest, number: int, **changes: Any) -> Manifest:
    parts = list(manifest.parts)
    parts[number] = replace(parts[number], **changes)
    return replace(manifest, parts=parts)


CHANGES: dict[str, tuple[Change, str]] = {
    "no parts": (lambda m: replace(m, parts=[]), "cannot be read"),
    "a part left out": (lambda m: replace(m, parts=m.parts[1:]), "comes from nowhere"),
    "no end": (lambda m: replace(m, parts=m.parts[:-1]), "never made"),
    "a part twice": (lambda m: replace(m, parts=[*m.parts[:1], *m.parts]), "made twice"),
    "in another order": (lambda m: replace(m, parts=m.parts[::-1]), "comes from nowhere"),
    "no model": (lambda m: part_changed(m, 0, model=b"\xff" * 40), "CPU runtime refuses"),
    "an empty model": (lambda m: part_changed(m, 0, model=b""), "CPU runtime refuses"),
    "other inputs": (lambda m: part_changed(m, 0, inputs=["in:other"]), "other values than it says"),
    "other outputs": (lambda m: part_changed(m, 0, outputs=[]), "other values than it says"),
    "constants": (lambda m: part_changed(m, 0, constants=[9999]), "does not exist"),
    "constants missing": (
        lambda m: replace(m, parts=[replace(part, constants=[], in_place=[], apart=[]) for part in m.parts]),
        "CPU runtime refuses",
    ),
    "constants of others in place": (lambda m: part_changed(m, 0, in_place=[999]), "does not have"),
    "constants of others apart": (lambda m: part_changed(m, 0, apart=[999]), "does not have"),
    "fewer constants": (lambda m: replace(m, constants=m.constants[:-1]), "does not exist"),
    "constant size": (
        lambda m: replace(m, constants=[replace(m.constants[0], shape=[1 << 39, 1 << 39]), *m.constants[1:]]),
        "another size",
    ),
    "constant type": (
        lambda m: replace(m, constants=[replace(m.constants[0], dtype=16), *m.constants[1:]]),
        "type 16 is unknown",
    ),
    "no buffers": (lambda m: replace(m, buffers=[], slot_bytes=[]), "comes from nowhere"),
    "small slots": (lambda m: replace(m, slot_bytes=[1 for _ in m.slot_bytes]), "does not fit its slot"),
    "no slots": (lambda m: replace(m, slot_bytes=[]), "does not fit its slot"),
    "buffer shapes": (
        lambda m: replace(m, buffers=[replace(buffer, shape=[1]) for buffer in m.buffers]),
        "another type or shape",
    ),
}


@pytest.mark.parametrize("name", CHANGES)
def test_what_does_not_fit_is_refused(packed: PackedGraph, caplog: pytest.LogCaptureFixture, name: str) -> None:
    change, why = CHANGES[name]
    refused(resealed(packed, change), caplog, why)


def a_part(node: Any, *, initializers: tuple[Any, ...] = ()) -> SegmentModel:
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])
    model = helper.make_model(helper.make_graph([node], "g", [x], [y], list(initializers)))
    return SegmentModel(model.SerializeToString(), {}, ("x",), ("y",))


def in_a_file(location: str) -> Any:
    tensor = TensorProto(name="c", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    tensor.external_data.add(key="location", value=location)
    return tensor


def with_graph() -> Any:
    node = helper.make_node("Relu", ["x"], ["y"])
    node.attribute.append(AttributeProto(name="body", type=AttributeProto.GRAPH))
    return node


@pytest.mark.parametrize(
    ("part", "why"),
    [
        (a_part(helper.make_node("Anything", ["x"], ["y"], domain="my.library")), "my.library:Anything"),
        (a_part(helper.make_node("EPContext", ["x"], ["y"], domain="com.microsoft")), "EPContext"),
        (a_part(helper.make_node("Loop", ["x"], ["y"])), "Loop"),
        (a_part(with_graph()), "holds a graph"),
        (a_part(helper.make_node("Relu", ["x"], ["y"]), initializers=(in_a_file("secrets"),)), "from a file"),
        (a_part(helper.make_node("Relu", ["x"], ["y"]), initializers=(in_a_file("given-in-memory"),)), "a file"),
        (a_part(helper.make_node("Constant", [], ["y"], value=in_a_file("secrets"))), "from a file"),
    ],
)
def test_what_lowering_could_not_have_made_is_refused(part: SegmentModel, why: str) -> None:
    with pytest.raises(Unusable, match=why):
        inspect_part(part.model, part.constants)


def test_a_plain_part_passes() -> None:
    inspect_part(a_part(helper.make_node("Relu", ["x"], ["y"])).model, ())


def test_functions_are_code_from_elsewhere() -> None:
    part = a_part(helper.make_node("Relu", ["x"], ["y"]))
    model = ModelProto.FromString(part.model)
    model.functions.add(name="f", domain="")
    with pytest.raises(Unusable, match="more than a graph"):
        inspect_part(model.SerializeToString(), part.constants)


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=200), st.integers(0, 400))
def test_inspection_has_one_kind_of_failure(junk: bytes, place: int) -> None:
    model = a_part(helper.make_node("Relu", ["x"], ["y"])).model
    try:
        inspect_part(model[:place] + junk + model[place:], ())
    except Unusable:
        return


def test_what_lowering_could_not_have_made_is_not_sealed(
    program: HtpProgram, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    def prepare(*args: Any, **options: Any) -> PreparedSegments:
        result = real(*args, **options)
        strange = a_part(helper.make_node("Anything", ["x"], ["y"], domain="my.library"))
        return dataclasses.replace(result, parts=(*result.parts, strange))

    real: Any = ort.prepare
    monkeypatch.setattr(ort, "prepare", prepare)
    assert OrtEngine().pack(program).prepared is None
    assert "stored without its prepared form: a part has the operator my.library:Anything" in caplog.text


def test_nothing_is_made_before_the_seal_is_known(packed: PackedGraph, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[SegmentModel] = []
    monkeypatch.setattr(prepared.SegmentModel, "open", lambda part, threads: made.append(part))
    with Workshop() as workshop, pytest.raises(Unusable):
        open_prepared(packed, packed.info(), SOC, b"another key".ljust(seal.KEY_BYTES), 1, workshop)
    assert not made
