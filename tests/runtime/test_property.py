"""A property says yes to what can be used, and no to what cannot: every row is tried."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import openhtp as htp
from openhtp.capi import logs
from openhtp.core.errors import UsageError
from openhtp.runtime.objects import property as table
from openhtp.runtime.objects.property import has_capability
from tests.conftest import ramp, relu_graph
from tests.waiting import PATIENCE_S

TESTS = Path(__file__).parents[1]


@dataclass
class Rig:
    """What features are tried on."""

    backend: htp.Backend
    device: htp.Device
    context: htp.Context
    graph: htp.Graph
    binary: bytes

    def restored(self, **options: Any) -> htp.Context:
        context = self.device.create_context_from_binary(self.binary, **options)
        np.testing.assert_array_equal(context.graph("g").execute({"x": ramp()})["y"], np.maximum(ramp(), 0))
        return context

    def built(self, name: str, dtype: str = "float32", **tensor: Any) -> htp.Graph:
        """A graph whose input is made with these arguments."""
        graph = self.context.create_graph(name)
        quant = tensor.get("quant")
        graph.add_tensor("x", (1, 8), dtype, **{"kind": "app_write", **tensor})
        graph.add_tensor("y", (1, 8), dtype, kind="app_read", quant=quant, dynamic=tensor.get("dynamic", ()))
        graph.add_node("Relu", inputs=["x"], outputs=["y"])
        graph.finalize()
        return graph

    def updated(self, **section: Any) -> None:
        """A graph of tensors that can be updated, and one update."""
        code = htp.ScaleOffset(0.1, -128)
        graph = self.context.create_graph("updated")
        graph.add_tensor("x", (1, 8), "ufixed8", quant=code, kind="updateable_app_write")
        graph.add_tensor(
            "w", (1, 8), "ufixed8", quant=code, kind="updateable_static", data=np.full((1, 8), 130, "u1")
        )
        graph.add_tensor("t", (1, 8), "ufixed8", quant=code, kind="updateable_native")
        graph.add_tensor("y", (1, 8), "ufixed8", quant=code, kind="updateable_app_read")
        graph.add_node("ElementWiseAdd", inputs=["x", "w"], outputs=["t"])
        graph.add_node("Relu", inputs=["t"], outputs=["y"])
        graph.finalize()
        x = {"x": np.full((1, 8), 140, "u1")}
        before = graph.execute(x)["y"]
        self.context.apply_binary_section("updated", self.context.get_binary_section("updated", **section))
        assert (graph.execute(x)["y"] != before).any()


@pytest.fixture(scope="module")
def device() -> Iterator[htp.Device]:
    with htp.Backend() as backend:
        yield backend.create_device()


@pytest.fixture
def rig(device: htp.Device) -> Iterator[Rig]:
    with device.create_context() as context:
        graph = relu_graph(context)
        yield Rig(device.backend, device, context, graph, context.get_binary())


def _list_async(rig: Rig) -> None:
    with rig.device.create_contexts_from_binaries([rig.binary] * 2) as creation:
        assert len(creation.result(PATIENCE_S)) == 2


def _callback(rig: Rig) -> None:
    def provide(request: Any, param: object) -> int:
        fd = os.memfd_create("try", os.MFD_ALLOW_SEALING)
        os.write(fd, rig.binary[request.offset : request.offset + request.size])
        os.truncate(fd, request.size)
        return fd

    callback = htp.DmaBufferCallback(provide, lambda data, param: os.close(data.fd))
    rig.restored(callback=callback).free()


def _validate(rig: Rig) -> None:
    assert [graph.name for graph in rig.device.validate_binary(rig.binary).graphs] == ["g"]
    with pytest.raises(htp.BadBinary):
        rig.device.validate_binary(rig.binary[:100])


def _compatibility(rig: Rig) -> None:
    other = rig.backend.create_device(soc="SM8750")
    with pytest.raises(htp.QnnError) as caught:
        other.create_context_from_binary(rig.binary, compatibility="strict")
    assert caught.value.name == "QNN_CONTEXT_ERROR_BINARY_SUBOPTIMAL"
    other.create_context_from_binary(rig.binary, compatibility="permissive")


def _deferred(rig: Rig) -> None:
    context = rig.device.create_context_from_binary(rig.binary, defer_graph_init=True)
    assert not context.graph("g").is_finalized
    context.graph("g").finalize()
    context.graph("g").execute({"x": ramp()})


def _retained(rig: Rig) -> None:
    rig.restored(is_persistent_binary=True, memory_limit_hint=1, graph_retention_order=["g"])


def _signalled(act: Callable[[Rig, htp.Signal], Any]) -> Callable[[Rig], None]:
    def attempt(rig: Rig) -> None:
        act(rig, rig.backend.create_signal(60_000_000))

    return attempt


def _abort(rig: Rig) -> None:
    signal = rig.backend.create_signal()
    htp.testing.hold(rig.device)
    run = rig.graph.execute_async({"x": ramp()}, signal=signal)
    signal.trigger()
    htp.testing.release(rig.device)
    assert isinstance(run.exception(PATIENCE_S), htp.Aborted)


def _timeout(rig: Rig) -> None:
    htp.testing.hold(rig.device)
    first = rig.graph.execute_async({"x": ramp()})
    run = rig.graph.execute_async({"x": ramp()}, signal=rig.backend.create_signal(timeout_us=1000))
    assert isinstance(run.exception(PATIENCE_S), htp.TimedOut)
    htp.testing.release(rig.device)
    first.result(PATIENCE_S)


def _memory(mem_type: str) -> Callable[[Rig], None]:
    def attempt(rig: Rig) -> None:
        fd = os.memfd_create("try", os.MFD_ALLOW_SEALING)
        os.truncate(fd, 4096)
        rig.context.register_memory(4096, fd=fd, mem_type=mem_type)
        os.close(fd)

    return attempt


def _profile(event: int | None = 400, **options: Any) -> Callable[[Rig], None]:
    def attempt(rig: Rig) -> None:
        profile = rig.backend.create_profile(**{"level": "basic", **options})
        rig.graph.execute({"x": ramp()}, profile=profile)
        if event is not None:
            assert profile.event(event) is not None
        if "max_events" in options:
            assert len(profile.events()) <= options["max_events"]

    return attempt


def _optional(kind: str) -> Callable[[Rig], None]:
    def attempt(rig: Rig) -> None:
        graph = rig.context.create_graph(kind)
        graph.add_tensor("x", (1, 8), "float32", kind="app_write")
        graph.add_tensor("y", (1, 8), "float32", kind="app_read")
        graph.add_node("Relu", inputs=["x"], outputs=["y"])
        graph.add_tensor("z", (1, 8), "float32", kind=kind)
        if kind != "optional_app_write":
            graph.add_node("Relu", inputs=["x"], outputs=["z"])
        graph.finalize()
        assert graph.execute({"x": ramp()})["y"].shape == (1, 8)

    return attempt


def _verbose(rig: Rig) -> None:
    place = ctypes.c_char_p()
    assert not logs.error_get_verbose_message(6023, ctypes.addressof(place))
    assert b"QNN_GRAPH_ERROR_GRAPH_NOT_FINALIZED" in (place.value or b"")


CODES = {"encodings": {"y": htp.ScaleOffset(0.2, -128)}}
WEIGHTS = {"tensors": {"w": np.full((1, 8), 200, "u1")}}
AXIS = htp.AxisScaleOffset(1, (0.1,) * 8)
TRIES: dict[str, Callable[[Rig], Any]] = {
    "BACKEND_SUPPORT_COMPOSITION": lambda rig: rig.built("made"),
    "CONTEXT_SUPPORT_CACHING": lambda rig: rig.restored(),
    "CONTEXT_SUPPORT_CONFIGURATION": lambda rig: rig.device.create_context(queue_depth=3, priority="high"),
    "CONTEXT_SUPPORT_CONFIG_ENABLE_GRAPHS": lambda rig: rig.restored(enable_graphs=["g"]),
    "CONTEXT_SUPPORT_CONFIG_MEMORY_LIMIT_HINT": lambda rig: rig.restored(
        is_persistent_binary=True, memory_limit_hint=1
    ),
    "CONTEXT_SUPPORT_CONFIG_PERSISTENT_BINARY": lambda rig: rig.restored(is_persistent_binary=True),
    "CONTEXT_SUPPORT_CONFIG_BINARY_COMPATIBILITY_TYPE": _compatibility,
    "CONTEXT_SUPPORT_VALIDATE_BINARY": _validate,
    "CONTEXT_SUPPORT_CREATE_FROM_BINARY_WITH_SIGNALS": _signalled(lambda rig, signal: rig.restored(signal=signal)),
    "CONTEXT_SUPPORT_CREATE_FROM_BINARY_LIST_ASYNC": _list_async,
    "CONTEXT_SUPPORT_BINARY_UPDATES": lambda rig: rig.updated(**CODES, **WEIGHTS),
    "CONTEXT_SUPPORT_DEFERRED_GRAPH_INIT": _deferred,
    "CONTEXT_SUPPORT_BINARY_WEIGHT_ONLY_UPDATES": lambda rig: rig.updated(section="updatable_weights", **WEIGHTS),
    "CONTEXT_SUPPORT_BINARY_QUANT_ONLY_UPDATES": lambda rig: rig.updated(
        section="updatable_quant_params", **CODES
    ),
    "CONTEXT_SUPPORT_CREATE_FROM_BINARY_WITH_CALLBACK": _callback,
    "CONTEXT_SUPPORT_GRAPH_RETENTION_ORDER": _retained,
    "GRAPH_SUPPORT_CONFIG": lambda rig: rig.context.create_graph("c", vtcm_mb=2, optimization_level=3),
    "GRAPH_SUPPORT_SIGNALS": _abort,
    "GRAPH_SUPPORT_ASYNC_EXECUTION": lambda rig: rig.graph.execute_async({"x": ramp()}).result(PATIENCE_S),
    "GRAPH_SUPPORT_NULL_INPUTS": _optional("optional_app_write"),
    "GRAPH_SUPPORT_PRIORITY_CONTROL": lambda rig: rig.graph.set_config(priority="high"),
    "GRAPH_SUPPORT_FINALIZE_SIGNAL": _signalled(lambda rig, signal: rig.context.finalize(signal=signal)),
    "GRAPH_SUPPORT_EXECUTE_SIGNAL": _signalled(lambda rig, s: rig.graph.execute({"x": ramp()}, signal=s)),
    "GRAPH_SUPPORT_EXECUTE_ASYNC_SIGNAL": _abort,
    "GRAPH_SUPPORT_EXECUTE": lambda rig: rig.graph.execute({"x": ramp()}),
    "GRAPH_SUPPORT_BATCH_MULTIPLE": lambda rig: rig.graph.execute({"x": ramp((3, 8))})["y"].reshape(3, 8),
    "GRAPH_SUPPORT_EXECUTE_PER_API_PROFILING": _profile(),
    "GRAPH_SUPPORT_FINALIZE_DESERIALIZED_GRAPH": _deferred,
    "GRAPH_SUPPORT_ONLINE_PREPARE": lambda rig: rig.built("online"),
    "TENSOR_SUPPORT_MEMHANDLE_TYPE": lambda rig: rig.graph.execute(
        {"x": rig.context.register_memory(32).array("x")}
    ),
    "TENSOR_SUPPORT_DYNAMIC_DIMENSIONS": lambda rig: (
        rig.built("d", dynamic=(False, True)).execute({"x": ramp((1, 4))})["y"].reshape(1, 4)
    ),
    "TENSOR_SUPPORT_SPARSITY": lambda rig: rig.built("s", sparse_elements=2).execute(
        {"x": htp.Sparse([[0, 1]], [1.0])}
    ),
    "TENSOR_SUPPORT_UPDATEABLE_STATIC_TENSORS": lambda rig: rig.updated(**WEIGHTS),
    "TENSOR_SUPPORT_UPDATEABLE_NATIVE_TENSORS": lambda rig: rig.updated(
        encodings={"t": htp.ScaleOffset(0.4, -128)}
    ),
    "TENSOR_SUPPORT_UPDATEABLE_APP_TENSORS": lambda rig: rig.updated(**CODES),
    "TENSOR_SUPPORT_QUANTIZATION_ENCODING_SCALE_OFFSET": lambda rig: rig.built(
        "q", "ufixed8", quant=htp.ScaleOffset(0.1, -128)
    ),
    "TENSOR_SUPPORT_QUANTIZATION_ENCODING_AXIS_SCALE_OFFSET": lambda rig: rig.context.create_graph("a").add_tensor(
        "w", (4, 8), "sfixed8", quant=AXIS, data=np.zeros((4, 8), "i1")
    ),
    "TENSOR_SUPPORT_OPTIONAL_APP_WRITE": _optional("optional_app_write"),
    "TENSOR_SUPPORT_OPTIONAL_APP_READ": _optional("optional_app_read"),
    "ERROR_GET_VERBOSE_MESSAGE": _verbose,
    "MEMORY_SUPPORT_MEM_TYPE_ION": _memory("ion"),
    "MEMORY_SUPPORT_MEM_TYPE_DMA_BUF": _memory("dma_buf"),
    "SIGNAL_SUPPORT_ABORT": _abort,
    "SIGNAL_SUPPORT_TIMEOUT": _timeout,
    "PROFILE_SUPPORT_MAX_EVENTS_CONFIG": _profile(None, max_events=2),
    "PROFILE_SUPPORTS_EXTENDED_EVENT": _profile(),
    "PROFILE_SUPPORT_OPTRACE_CONFIG": _profile(600, level="optrace"),
    "DEVICE_SUPPORT_INFRASTRUCTURE": lambda rig: rig.device.create_power_config().set(rpc_polling_us=10),
}
# Of the C interface alone: where each is tried.
ELSEWHERE = {
    "CONTEXT_SUPPORT_CUSTOM_PROPERTY": ("capi", "htp_property"),
    "BACKEND_SUPPORT_OP_PACKAGE": (
        "op_packages/test_python.py",
        "def test_operators_of_a_package_run_between_others",
    ),
    "OP_PACKAGE_SUPPORTS_VALIDATION": ("capi/test_client.py", "test_an_operation_is_validated_before_there_is"),
    "OP_PACKAGE_SUPPORTS_OP_IMPLS": ("ops/test_every_op.py", "def test_"),
    "TENSOR_SUPPORT_QUANTIZATION_ENCODING_BW_SCALE_OFFSET": ("abi/test_marshal.py", "BW_SCALE_OFFSET"),
    "TENSOR_SUPPORT_QUANTIZATION_ENCODING_BW_AXIS_SCALE_OFFSET": ("abi/test_marshal.py", "BW_AXIS_SCALE_OFFSET"),
    "TENSOR_SUPPORT_QUANTIZATION_ENCODING_BLOCKWISE_EXPANSION": ("abi/test_marshal.py", "test_weights_in_blocks"),
    "MEMORY_SUPPORT_MEM_TYPE_CUSTOM": ("capi", "custom"),
    "LOG_SUPPORTS_DEFAULT_STREAM": ("capi", "log"),
}


@pytest.mark.parametrize("name", [name for name in table.SUPPORTED if not name.startswith("GROUP_")])
def test_what_is_said_to_be_there_can_be_used(rig: Rig, name: str) -> None:
    assert has_capability(name)
    if name in ELSEWHERE:
        place, said = ELSEWHERE[name]
        files = [TESTS / place] if place.endswith(".py") else [*(TESTS / place).iterdir()]
        assert any(said in path.read_text() for path in files if path.suffix in (".py", ".c"))
    else:
        TRIES[name](rig)


def _refusals(rig: Rig) -> dict[str, Callable[[], Any]]:
    sub = rig.graph.context.create_graph("outer").create_subgraph("inner")
    code = htp.ScaleOffset(0.1, 0)
    return {
        "TENSOR_SUPPORT_OPTIONAL_APP_READWRITE": lambda: rig.built("rw", kind="optional_app_readwrite"),
        "GRAPH_SUPPORT_SUBGRAPH": lambda: sub.execute({}),
        "TENSOR_SUPPORT_MX_DATA_FORMAT": lambda: rig.built("m", data_format=1),
        "TENSOR_SUPPORT_UBWC_NV12": lambda: rig.built("u", data_format="ubwc_nv12"),
        "CONTEXT_SUPPORT_BINARY_SECTION_FULL_CONTEXT": lambda: rig.context.get_binary_section(None),  # type: ignore[arg-type]
        "TENSOR_SUPPORT_QUANTIZATION_ENCODING_VECTOR": lambda: rig.built("v", "ufixed8", quant=[code, code]),
    }


def test_what_is_said_not_to_be_there_is_refused(rig: Rig) -> None:
    for name, attempt in _refusals(rig).items():
        assert not has_capability(name)
        with pytest.raises((htp.QnnError, TypeError)):
            attempt()


def test_no_row_is_there_twice() -> None:
    assert not set(table.SUPPORTED) & set(table.NOT_SUPPORTED)
    numbers = [*table.SUPPORTED.values(), *table.NOT_SUPPORTED.values()]
    assert len(set(numbers)) == len(numbers)


@pytest.mark.parametrize("vendor", [False, True])
@pytest.mark.parametrize(
    "key", ["DEVICE_SUPPORT_INFRASTRUCTURE", "QNN_PROPERTY_DEVICE_SUPPORT_INFRASTRUCTURE", 1502]
)
def test_there_is_a_power_infrastructure_to_ask_for(key: str | int, vendor: bool) -> None:
    assert has_capability(key, vendor=vendor)


def test_names_and_numbers_mean_the_same() -> None:
    assert has_capability("GRAPH_SUPPORT_ASYNC_EXECUTION") is has_capability(304) is True
    assert has_capability("GRAPH_SUPPORT_SUBGRAPH") is has_capability(314) is False


@pytest.mark.parametrize("key", ["DEVICE_SUPPORT_MAGIC", 2, -1])
def test_an_unknown_key_is_told(key: str | int) -> None:
    with pytest.raises(UsageError, match="unknown") as caught:
        has_capability(key)
    assert caught.value.name == "QNN_PROPERTY_ERROR_UNKNOWN_KEY"
