"""One network for images of several sizes: 8-bit convolutions have one session, and nothing else changes."""

from __future__ import annotations

from collections.abc import Iterator

import msgspec
import numpy as np
import pytest
from onnx import ModelProto
from prepared_forms import SOC, resealed, results

import openhtp.onnx
from openhtp import zoo
from openhtp.compiler.driver import compile_graph
from openhtp.core.errors import ExecutionError
from openhtp.engine import cutting
from openhtp.engine.ort import OrtEngine, OrtProgram
from openhtp.engine.prepared import Manifest, with_free_sizes
from openhtp.engine.segments import Cuts
from openhtp.engine.workshop import Workshop
from openhtp.program.binary import BinaryInfo, pack_graphs, read_binary
from openhtp.program.htp_program import HtpProgram
from openhtp.program.packed import PackedGraph

SIZES = (64, 96)
replace = msgspec.structs.replace


@pytest.fixture(scope="module", autouse=True)
def short_segments() -> Iterator[None]:
    """Cut behind the same steps, whatever the size, and nothing into strips."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cutting, "cuts_of", lambda program: Cuts((3, 7, 8)))
        yield


def resized(model: bytes, size: int) -> bytes:
    """The same network and encodings for larger images."""
    changed = ModelProto.FromString(model)
    for place in (2, 3):
        changed.graph.input[0].type.tensor_type.shape.dim[place].dim_value = size
    del changed.graph.value_info[:]
    changed.graph.name = f"for_{size}"
    return changed.SerializeToString()


@pytest.fixture(scope="module")
def graphs() -> list[tuple[HtpProgram, PackedGraph]]:
    model = zoo.quantized(zoo.MODELS["small_cnn"](), weight="s8", samples=2)
    programs, packed = [], []
    for size in SIZES:
        program = compile_graph(openhtp.onnx.load(resized(model, size)), SOC)
        prepared_form = OrtEngine().pack(program)
        assert prepared_form is not None
        programs.append(program)
        packed.append(prepared_form)
    binary = read_binary(b"".join(pack_graphs(packed, BinaryInfo(weight_sharing=True))))
    return [(program, binary.packed(program.name)) for program in programs]


def loaded_together(packed: list[PackedGraph]) -> list[OrtProgram]:
    with Workshop(shares_forms=True) as workshop:
        found = [OrtEngine().load_packed(graph, graph.info(), SOC, workshop) for graph in packed]
    assert all(one is not None for one in found)
    return [one for one in found if one is not None]


def convolutions(packed: PackedGraph) -> list[int]:
    """Parts that have convolutions, by number."""
    assert packed.prepared is not None
    manifest = msgspec.msgpack.decode(packed.prepared.read(), type=Manifest)
    models = [ModelProto.FromString(part.model) for part in manifest.parts]
    return [
        number
        for number, model in enumerate(models)
        if any(node.op_type == "QLinearConv" for node in model.graph.node)
    ]


def test_convolutions_of_both_sizes_are_one_session(graphs: list[tuple[HtpProgram, PackedGraph]]) -> None:
    small, large = loaded_together([packed for _, packed in graphs])
    numbers = convolutions(graphs[0][1])
    assert len(numbers) == 3
    for number in numbers:
        assert small._stages.stages[number].session is large._stages.stages[number].session


def test_results_are_those_of_each_by_itself(graphs: list[tuple[HtpProgram, PackedGraph]]) -> None:
    together = loaded_together([packed for _, packed in graphs])
    for seed in range(3):  # in turns: a session that has seen one size still knows the other
        for (program, _), loaded in zip(graphs, together, strict=True):
            for name, values in results(program, OrtEngine().load(program), seed).items():
                np.testing.assert_array_equal(results(program, loaded, seed)[name], values)


def test_without_the_c_interface_too(graphs: list[tuple[HtpProgram, PackedGraph]], package_only: None) -> None:
    test_convolutions_of_both_sizes_are_one_session(graphs)
    test_results_are_those_of_each_by_itself(graphs)


def test_a_graph_by_itself_has_the_sizes_that_it_was_made_for(
    graphs: list[tuple[HtpProgram, PackedGraph]],
) -> None:
    _, packed = graphs[0]
    with Workshop() as workshop:
        loaded = OrtEngine().load_packed(packed, packed.info(), SOC, workshop)
    assert loaded is not None
    ends = [end for stage in loaded._stages.stages for end in stage.session.inputs()]
    assert all(isinstance(size, int) for end in ends for size in end.shape)


@pytest.mark.parametrize("high", [1, 31, 33, 64])
def test_a_buffer_of_another_size_is_an_error_when_it_runs(
    graphs: list[tuple[HtpProgram, PackedGraph]], high: int
) -> None:
    """An enemy who has the key gets words from the runtime: nothing is written beyond a buffer."""
    program, packed = graphs[0]

    def changed(manifest: Manifest) -> Manifest:
        (between,) = set(manifest.parts[0].outputs) & set(manifest.parts[1].inputs)
        buffers = [
            replace(buffer, shape=[1, high, *buffer.shape[2:]]) if buffer.name == between else buffer
            for buffer in manifest.buffers
        ]
        assert buffers != manifest.buffers
        return replace(manifest, buffers=buffers, slot_bytes=[2 * nbytes for nbytes in manifest.slot_bytes])

    (loaded,) = loaded_together([resealed(packed, changed)])
    with pytest.raises(ExecutionError, match="failed in the CPU runtime"):
        results(program, loaded)


def test_what_is_no_model_stays_as_it_is() -> None:
    assert with_free_sizes(b"\xff" * 40) == b"\xff" * 40


def test_float_networks_are_left_alone() -> None:
    program = compile_graph(openhtp.onnx.load(zoo.MODELS["small_cnn"]()), SOC)
    packed = OrtEngine().pack(program)
    assert packed is not None
    assert packed.prepared is not None
    manifest = msgspec.msgpack.decode(packed.prepared.read(), type=Manifest)
    assert [with_free_sizes(part.model) for part in manifest.parts] == [part.model for part in manifest.parts]
