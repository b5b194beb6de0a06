"""Context binaries with prepared forms, from the client's side: for any file the same results, or an error."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as st

import openhtp as htp
from openhtp import onnx, zoo
from openhtp.engine.ort import OrtEngine
from openhtp.program.binary import read_binary
from openhtp.program.htp_program import HtpProgram
from openhtp.program.packed import PackedGraph
from openhtp.rpc import messages as ms
from openhtp.runtime.binaries import save
from openhtp.runtime.instruments.device_queries import number_of
from tests.conftest import ramp, relu_graph

MODEL = zoo.quantized(zoo.MODELS["small_cnn"]())
Outputs = dict[str, np.ndarray]


def image(graph: htp.Graph) -> Outputs:
    rng = np.random.default_rng(0)
    return {t.name: rng.integers(0, 256, t.shape).astype(t.dtype.numpy) for t in graph.inputs}


@pytest.fixture(scope="module")
def made(shared_device: htp.Device) -> Iterator[tuple[bytes, Outputs]]:
    """A binary, and what its graph computes."""
    with shared_device.create_context() as context:
        graph = context.compose_graph(onnx.load(MODEL), "net")
        graph.finalize()
        yield context.get_binary(), graph.execute(image(graph))


def check_results(context: htp.Context, expected: Outputs) -> None:
    graph = context.graph("net")
    for name, values in graph.execute(image(graph)).items():
        np.testing.assert_array_equal(values, expected[name])


def was_prepared(context: htp.Context) -> bool:
    return context.graph("net").was_prepared


@pytest.mark.parametrize("transport", ["rpc", "inprocess"])
def test_a_restored_graph_is_ready_from_its_prepared_form(
    backend: htp.Backend, made: tuple[bytes, Outputs], transport: str
) -> None:
    """The device is another process than the one that made the binary; both are this user's."""
    binary, expected = made
    assert read_binary(binary).packed("net").prepared is not None
    device = backend.create_device(transport=transport)
    with device.create_context_from_binary(binary) as context:
        assert was_prepared(context)
        check_results(context, expected)


@pytest.mark.parametrize(("rows", "is_stored"), [(16, False), (4096, True)])
def test_one_node_with_many_weights_is_worth_storing(
    shared_device: htp.Device, rows: int, is_stored: bool
) -> None:
    """Made ready from the program, it would be in memory twice: the weights, and the runtime's form of them."""
    weights = np.random.default_rng(0).integers(-128, 128, (rows, 1024), np.int8)
    given = {"x": np.full((1, 1024), 130, np.uint8)}
    with shared_device.create_context() as context:
        graph = context.create_graph("net")
        x = graph.add_tensor("x", (1, 1024), "ufixed8", kind="app_write", quant=htp.ScaleOffset(0.02, -128))
        w = graph.add_tensor("w", weights.shape, "sfixed8", data=weights, quant=htp.ScaleOffset(0.01, 0))
        y = graph.add_tensor("y", (1, rows), "ufixed8", kind="app_read", quant=htp.ScaleOffset(0.01, -128))
        graph.add_node("FullyConnected", name="fc", inputs=[x, w], outputs=[y])
        graph.finalize()
        expected = graph.execute(given)["y"]
        binary = context.get_binary()
    assert len(binary) < weights.nbytes + 100_000, "the weights are there once"
    with shared_device.create_context_from_binary(binary) as context:
        assert was_prepared(context) is is_stored
        np.testing.assert_array_equal(context.graph("net").execute(given)["y"], expected)


@pytest.mark.parametrize("kind", ["ufixed8", "float32"])
def test_a_graph_that_ends_in_a_cut_convolution_is_ready_from_its_prepared_form(
    shared_device: htp.Device, kind: str
) -> None:
    """Its strips are windows on the client's own memory."""
    rng = np.random.default_rng(0)
    quant = {"quant": htp.ScaleOffset(0.02, -128)} if kind == "ufixed8" else {}
    weights = rng.integers(-100, 100, (3, 3, 256, 256), np.int8)
    given = {
        "x": rng.integers(0, 256, (1, 16, 16, 256), np.uint8).astype(np.dtype(kind.replace("ufixed", "uint")))
    }
    with shared_device.create_context() as context:
        graph = context.create_graph("net")
        made = graph.add_tensor("x", (1, 16, 16, 256), kind, kind="app_write", **quant)
        for name in "my":
            if quant:
                scale = {"quant": htp.ScaleOffset(0.01, 0)}
                w = graph.add_tensor(f"{name}_w", weights.shape, "sfixed8", data=weights, **scale)
            else:
                w = graph.add_tensor(f"{name}_w", weights.shape, kind, data=weights.astype(np.float32) / 4096)
            end = "app_read" if name == "y" else "native"
            result = graph.add_tensor(name, (1, 16, 16, 256), kind, kind=end, **quant)
            params = {"stride": [1, 1], "pad_amount": [[1, 1], [1, 1]]}
            graph.add_node("Conv2d", inputs=[made, w], outputs=[result], params=params)
            made = result
        graph.finalize()
        assert graph.steps > 2, "the convolutions were not cut"
        expected = graph.execute(given)["y"]
        binary = context.get_binary()
    with shared_device.create_context_from_binary(binary) as context:
        assert was_prepared(context)
        np.testing.assert_array_equal(context.graph("net").execute(given)["y"], expected)


def test_saving_a_restored_context_gives_the_same_binary(
    shared_device: htp.Device, made: tuple[bytes, Outputs]
) -> None:
    binary, _ = made
    with shared_device.create_context_from_binary(binary) as context:
        assert context.get_binary() == binary


@pytest.mark.parametrize("transport", ["rpc", "inprocess"])
def test_another_user_gets_the_same_results_from_the_program(
    backend: htp.Backend,
    made: tuple[bytes, Outputs],
    transport: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    binary, expected = made
    monkeypatch.setenv("OPENHTP_KEY_FILE", str(tmp_path / "other.key"))
    device = backend.create_device(transport=transport)
    with device.create_context_from_binary(binary) as context:
        assert not was_prepared(context)
        check_results(context, expected)
        mine = context.get_binary()
    assert read_binary(mine).packed("net").seal != read_binary(binary).packed("net").seal
    with device.create_context_from_binary(mine) as context:
        assert was_prepared(context)
        check_results(context, expected)
    assert caplog.text.count("the prepared form of 'net' in the context binary was made by another version") == 1


def test_a_device_of_another_soc_compiles_the_portable_program(
    backend: htp.Backend, made: tuple[bytes, Outputs], caplog: pytest.LogCaptureFixture
) -> None:
    binary, expected = made
    device = backend.create_device(soc="SM8550", transport="inprocess")
    with device.create_context_from_binary(binary) as context:
        assert not was_prepared(context)
        check_results(context, expected)
    assert "made for 'SM8650' (v75, 8 MB of VTCM); this device is SM8550 (v73, 8 MB)" in caplog.text


def test_nothing_is_said_of_a_binary_for_this_soc(
    backend: htp.Backend, made: tuple[bytes, Outputs], caplog: pytest.LogCaptureFixture
) -> None:
    with backend.create_device(transport="inprocess").create_context_from_binary(made[0]):
        assert "compiled again" not in caplog.text


def test_a_place_without_a_key_stores_the_program_alone(
    backend: htp.Backend, made: tuple[bytes, Outputs], monkeypatch: pytest.MonkeyPatch
) -> None:
    binary, expected = made
    monkeypatch.setenv("OPENHTP_KEY_FILE", "/dev/null/key")
    device = backend.create_device(transport="inprocess")
    with device.create_context() as context:
        graph = context.compose_graph(onnx.load(MODEL), "net")
        graph.finalize()
        plain = context.get_binary()
    assert read_binary(plain).packed("net").prepared is None
    for data in (plain, binary):
        with device.create_context_from_binary(data) as context:
            assert not was_prepared(context)
            check_results(context, expected)


def test_a_graph_that_cannot_be_prepared_is_still_saved(
    backend: htp.Backend, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(engine: OrtEngine, program: HtpProgram) -> None:
        raise htp.OutOfMemory("no room for it")

    monkeypatch.setattr(OrtEngine, "pack", fail)
    device = backend.create_device(transport="inprocess")
    with device.create_context() as context:
        binary = relu_graph(context).context.get_binary()
    assert "stored without its prepared form" in caplog.text
    with device.create_context_from_binary(binary) as context:
        np.testing.assert_array_equal(context.graph("g").execute({"x": ramp()})["y"], np.maximum(ramp(), 0))


@pytest.mark.parametrize("transport", ["rpc", "inprocess"])
def test_packing_what_is_no_graph(backend: htp.Backend, transport: str) -> None:
    device = backend.create_device(transport=transport)
    with device.create_context() as context:
        fetch = context.opened.link.fetch
        with pytest.raises(htp.InvalidHandle, match="graph 999"):
            fetch(ms.PackGraph(graph=999))
        app = context.create_app("camera")
        assert fetch(ms.PackGraph(graph=app.number)) == b""
        short = read_binary(fetch(ms.PackGraph(graph=number_of(relu_graph(context))))).packed("g")
        assert short.prepared is None, "a short graph needs no preparing"
        assert short.vtcm_peak_bytes, "but what it needs of memory is told"


def test_graphs_with_and_without_share_a_binary(backend: htp.Backend, made: tuple[bytes, Outputs]) -> None:
    device = backend.create_device(transport="inprocess")
    with device.create_context() as context:
        relu_graph(context, "short")
        context.compose_graph(onnx.load(MODEL), "net").finalize()
        binary = context.get_binary()
    with device.create_context_from_binary(binary) as context:
        assert was_prepared(context)
        check_results(context, made[1])
        np.testing.assert_array_equal(context.graph("short").execute({"x": ramp()})["y"], np.maximum(ramp(), 0))
    with device.create_context_from_binary(binary, enable_graphs=["short"]) as context:
        with pytest.raises(htp.QnnError):
            context.graph("net").execute({})
        context.graph("short").execute({"x": ramp()})


def test_dynamic_sizes_survive_a_binary(shared_device: htp.Device) -> None:
    with shared_device.create_context() as context:
        graph = context.create_graph("net")
        x = graph.add_tensor("x", (4, 8), "float32", kind="app_write", dynamic=(True, False))
        y = graph.add_tensor("y", (4, 8), "float32", kind="app_read", dynamic=(True, False))
        graph.add_node("Relu", inputs=[x], outputs=[y])
        graph.finalize()
        binary = context.get_binary()
    with shared_device.create_context_from_binary(binary) as restored:
        for rows in (1, 3, 4):
            given = ramp((rows, 8))
            np.testing.assert_array_equal(restored.graph("net").execute({"x": given})["y"], np.maximum(given, 0))


@settings(
    max_examples=40,
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
)
@given(st.data())
def test_a_damaged_binary_is_an_error_or_computes_the_same(
    shared_device: htp.Device, made: tuple[bytes, Outputs], data: st.DataObject
) -> None:
    binary, expected = bytearray(made[0]), made[1]
    binary[data.draw(st.integers(0, len(binary) - 1))] ^= data.draw(st.integers(1, 255))
    try:
        with shared_device.create_context_from_binary(binary) as context:
            assert not was_prepared(context)
            check_results(context, expected)
    except htp.BadBinary:
        return


def test_whoever_asks_for_the_size_first_waits_once(
    shared_device: htp.Device, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A client asks for the size, takes memory, and asks for the binary: each graph is prepared for that once."""
    prepared: list[str] = []

    def counted(graph: htp.Graph) -> PackedGraph:
        prepared.append(graph.name)
        return real(graph)

    real = save.stored_form
    monkeypatch.setattr(save, "stored_form", counted)
    with shared_device.create_context() as context:
        relu_graph(context, "one")
        size = context.get_binary_size()
        assert context.get_binary_size() == size
        binary = context.get_binary()
        assert len(binary) == size
        assert prepared == ["one"]
        assert context.get_binary() == binary, "made again: nobody keeps what was handed out"
        assert prepared == ["one", "one"]
        context.get_binary_size()
        relu_graph(context, "two")
        assert set(read_binary(context.get_binary()).graph_names) == {"one", "two"}
