"""The whole public surface against values that nobody should give: each is taken, or refused in so many words.

A refusal is one of our errors. Every row is one argument of one
call; every value of ``VALUES`` is tried on it.
"""

from __future__ import annotations

import copy
import itertools
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import openhtp as htp
from openhtp import zoo
from tests.conftest import ramp, relu_graph
from tests.waiting import PATIENCE_S


class Whole(int):
    """A number by inheritance."""


class Hostile:
    """Raises wherever it is looked at."""

    def __repr__(self) -> str:
        raise RuntimeError("no representation")

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = None  # type: ignore[assignment]


def _recursive() -> list[Any]:
    loop: list[Any] = []
    loop.append(loop)
    return loop


VALUES: dict[str, Callable[[], Any]] = {
    "none": lambda: None,
    "true": lambda: True,
    "zero": lambda: 0,
    "one": lambda: 1,
    "minus": lambda: -1,
    "large": lambda: 1 << 62,
    "huge": lambda: 10**30,
    "5000 digits": lambda: 10**5000,
    "half": lambda: 0.5,
    "nan": lambda: math.nan,
    "inf": lambda: math.inf,
    "-inf": lambda: -math.inf,
    "complex": lambda: 1j,
    "empty text": lambda: "",
    "text": lambda: "12",
    "long text": lambda: "n" * 70_000,
    "surrogate": lambda: "\ud800",
    "nul": lambda: "a\0b",
    "bytes": lambda: b"ab",
    "no bytes": lambda: b"",
    "bytearray": lambda: bytearray(3),
    "strided view": lambda: memoryview(bytes(16))[::2],
    "list": lambda: [1, 2],
    "empty list": list,
    "ragged": lambda: [[1], [1, 2]],
    "floats": lambda: (1.9, 2),
    "infinite shape": lambda: (math.inf,),
    "recursive": _recursive,
    "endless": itertools.count,
    "generator": lambda: (n for n in (1, 8)),
    "tuple": lambda: (1, 8),
    "set": lambda: {1, 8},
    "dict": lambda: {"x": 1},
    "odd dict": lambda: {None: object(), 5: 6},
    "object": object,
    "hostile": Hostile,
    "class": lambda: dict,
    "path": lambda: Path("nowhere/at/all"),
    "int64": lambda: np.int64(3),
    "bool_": lambda: np.bool_(True),
    "float32": lambda: np.float32(1.5),
    "array": lambda: np.zeros((1, 8), np.float32),
    "objects": lambda: np.array([object(), None]),
    "scalar array": lambda: np.array(3),
    "dtype": lambda: np.dtype("V0"),
    "structured": lambda: np.dtype([("a", "O"), ("b", "f4")]),
    "whole": lambda: Whole(3),
    "error": lambda: ValueError("x"),
}

Call = Callable[[SimpleNamespace, Any], object]


def _building(w: SimpleNamespace) -> htp.Graph:
    return w.context.create_graph(f"b{next(w.numbers)}")


def _add(w: SimpleNamespace, **given: Any) -> object:
    words: dict[str, Any] = {"name": "t", "shape": (1, 8), "dtype": "float32"} | given
    return _building(w).add_tensor(words.pop("name"), words.pop("shape"), words.pop("dtype"), **words)


def _node(w: SimpleNamespace, **given: Any) -> object:
    graph = _building(w)
    graph.add_tensor("x", (1, 8), "float32", kind="app_write")
    graph.add_tensor("y", (1, 8), "float32", kind="app_read")
    words: dict[str, Any] = {"op": "Relu", "inputs": ["x"], "outputs": ["y"]} | given
    graph.add_node(words.pop("op"), **words)
    return graph.finalize()


def _device(w: SimpleNamespace, **given: Any) -> object:
    return w.backend.create_device(**{"transport": "inprocess", **given}).free()


def _sync(w: SimpleNamespace, *args: Any, **given: Any) -> object:
    return w.graph.execute(*args, **given)


def _async(w: SimpleNamespace, *args: Any, **given: Any) -> object:
    return w.graph.execute_async({"x": ramp()}, *args, **given).result(PATIENCE_S)


def _binary(w: SimpleNamespace, **given: Any) -> object:
    return w.device.create_context_from_binary(**{"binary": w.binary, **given}).free()


def _done(w: SimpleNamespace) -> htp.Execution:
    execution = w.graph.execute_async({"x": ramp()})
    execution.result(PATIENCE_S)
    return execution


def _waited(w: SimpleNamespace, timeout: Any) -> None:
    execution = w.graph.execute_async({"x": ramp()})
    try:
        execution.result(timeout)
    finally:
        execution.exception(PATIENCE_S)


def _session(w: SimpleNamespace, **given: Any) -> object:
    words = {"path_or_bytes": w.model, "transport": "inprocess", **given}
    return htp.InferenceSession(words.pop("path_or_bytes"), **words).close()


RUNTIME: dict[str, Call] = {
    "Backend.library": lambda w, v: None if v is None else htp.Backend(v).free(),
    "create_device.soc": lambda w, v: _device(w, soc=v),
    "create_device.name": lambda w, v: None if v is None else _device(w, name=v),
    "create_device.platform": lambda w, v: _device(w, platform=v),
    "create_device.policy": lambda w, v: _device(w, policy=v),
    "create_device.threads": lambda w, v: _device(w, threads=v),
    "create_device.parallel_graphs": lambda w, v: _device(w, parallel_graphs=v),
    "create_device.vtcm_windowing": lambda w, v: _device(w, vtcm_windowing=v),
    "create_device.transport": lambda w, v: _device(w, transport=v),
    "create_signal": lambda w, v: w.backend.create_signal(v),
    "create_profile": lambda w, v: w.backend.create_profile(v),
    "create_log.level": lambda w, v: w.backend.create_log(v, print).free(),
    "create_log.callback": lambda w, v: w.backend.create_log("error", v).free(),
    "has_capability": lambda w, v: w.backend.has_capability(v),
    "Profile.event": lambda w, v: w.backend.create_profile().event(v),
    "Log.set_log_level": lambda w, v: w.log.set_log_level(v),
    "create_context.queue_depth": lambda w, v: w.device.create_context(queue_depth=v).free(),
    "create_context.priority": lambda w, v: w.device.create_context(priority=v).free(),
    "from_binary.binary": lambda w, v: _binary(w, binary=v),
    "from_binary.queue_depth": lambda w, v: _binary(w, queue_depth=v),
    "from_binary.priority": lambda w, v: _binary(w, priority=v),
    "from_binary.enable_graphs": lambda w, v: _binary(w, enable_graphs=v),
    "create_graph.name": lambda w, v: w.device.create_context().create_graph(v),
    "create_graph.priority": lambda w, v: w.device.create_context().create_graph("g", priority=v),
    "create_graph.vtcm_mb": lambda w, v: w.device.create_context().create_graph("g", vtcm_mb=v),
    "create_graph.vtcm_bytes": lambda w, v: w.device.create_context().create_graph("g", vtcm_bytes=v),
    "create_graph.hvx_threads": lambda w, v: w.device.create_context().create_graph("g", hvx_threads=v),
    "create_graph.precision": lambda w, v: w.device.create_context().create_graph("g", precision=v),
    "create_graph.core": lambda w, v: w.device.create_context().create_graph("g", core=v),
    "compose_graph.source": lambda w, v: w.context.compose_graph(v),
    "compose_graph.name": lambda w, v: w.device.create_context().compose_graph(w.imported, v),
    "create_subgraph": lambda w, v: _building(w).create_subgraph(v),
    "create_app.name": lambda w, v: w.context.create_app(v),
    "create_app.priority": lambda w, v: w.context.create_app("a", priority=v),
    "create_app.hmx": lambda w, v: w.context.create_app("a", hmx=v),
    "create_app.hvx": lambda w, v: w.context.create_app("a", hvx=v),
    "create_app.vtcm_bytes": lambda w, v: w.context.create_app("a", vtcm_bytes=v),
    "App.run_async.duration_us": lambda w, v: w.app.run_async(v).cancel(),
    "App.run_async.eviction_us": lambda w, v: w.app.run_async(1, eviction_us=v).result(PATIENCE_S),
    "App.run_async.notify": lambda w, v: w.app.run_async(1, notify=v).result(PATIENCE_S),
    "Context.graph": lambda w, v: w.context.graph(v),
    "register_memory": lambda w, v: w.context.register_memory(v).free(),
    "Context.set_config.priority": lambda w, v: w.device.create_context().set_config(priority=v),
    "Context.set_config.queue_depth": lambda w, v: w.context.set_config(queue_depth=v),
    "add_tensor.name": lambda w, v: _add(w, name=v),
    "add_tensor.shape": lambda w, v: _add(w, shape=v),
    "add_tensor.dtype": lambda w, v: _add(w, dtype=v),
    "add_tensor.quant": lambda w, v: _add(w, dtype="ufixed8", quant=v),
    "add_tensor.kind": lambda w, v: _add(w, kind=v),
    "add_tensor.data": lambda w, v: _add(w, data=v),
    "add_tensor.dynamic": lambda w, v: _add(w, dynamic=v),
    "add_tensor.sparse_elements": lambda w, v: _add(w, sparse_elements=v),
    "add_node.op": lambda w, v: _node(w, op=v),
    "add_node.name": lambda w, v: _node(w, name=v),
    "add_node.inputs": lambda w, v: None if _is_endless(v) else _node(w, inputs=v),
    "add_node.outputs": lambda w, v: None if _is_endless(v) else _node(w, outputs=v),
    "add_node.params": lambda w, v: _node(w, params=v),
    "add_node.a parameter": lambda w, v: _node(w, op="Softmax", params={"axis": v}),
    "add_node.package": lambda w, v: _node(w, package=v),
    "finalize.profile": lambda w, v: _building(w).finalize(profile=v),
    "finalize.signal": lambda w, v: _building(w).finalize(signal=v),
    "Graph.set_config": lambda w, v: _building(w).set_config(priority=v),
    "execute.inputs": _sync,
    "execute.an input": lambda w, v: _sync(w, {"x": v}),
    "execute.a key": lambda w, v: _sync(w, _keyed(v)),
    "execute.outputs": lambda w, v: _sync(w, {"x": ramp()}, v),
    "execute.an output": lambda w, v: _sync(w, {"x": ramp()}, {"y": v}),
    "execute.profile": lambda w, v: _sync(w, {"x": ramp()}, profile=v),
    "execute.signal": lambda w, v: _sync(w, {"x": ramp()}, signal=v),
    "execute_async.outputs": _async,
    "execute_async.notify": lambda w, v: _async(w, notify=v),
    "execute_async.notify_param": lambda w, v: _async(w, notify=lambda *_: None, notify_param=v),
    "Execution.result": lambda w, v: _done(w).result(v),
    "Execution.result while pending": _waited,
    "Execution.exception": lambda w, v: _done(w).exception(v),
    "Execution.add_done_callback": lambda w, v: _done(w).add_done_callback(v),
    "Mem.array.tensor": lambda w, v: w.mem.array(v),
    "Mem.array.offset": lambda w, v: w.mem.array("x", offset=v),
    "Mem.array.batch": lambda w, v: w.mem.array("x", batch=v),
    "Mem.array.shape": lambda w, v: w.mem.array("x", shape=v),
    "Mem.array.dtype": lambda w, v: w.mem.array("x", shape=(1,), dtype=v),
    "Sparse.indices": lambda w, v: w.sparse.execute({"x": htp.Sparse(v, [1.0])}),
    "Sparse.values": lambda w, v: w.sparse.execute({"x": htp.Sparse([[0, 1]], v)}),
    "ScaleOffset.scale": lambda w, v: htp.ScaleOffset(v),
    "ScaleOffset.offset": lambda w, v: htp.ScaleOffset(1.0, v),
    "AxisScaleOffset.axis": lambda w, v: htp.AxisScaleOffset(v, (1.0,)),
    "AxisScaleOffset.scales": lambda w, v: None if _is_endless(v) else htp.AxisScaleOffset(0, v),
    "AxisScaleOffset.offsets": lambda w, v: None if _is_endless(v) else htp.AxisScaleOffset(0, (1.0,), v),
    "DType.parse": lambda w, v: htp.DType.parse(v),
    "TensorKind.parse": lambda w, v: htp.TensorKind.parse(v),
    "Priority.parse": lambda w, v: htp.Priority.parse(v),
}
FRONT: dict[str, Call] = {
    "InferenceSession.path_or_bytes": lambda w, v: _session(w, path_or_bytes=v),
    "InferenceSession.sess_options": lambda w, v: _session(w, sess_options=v),
    "InferenceSession.providers": lambda w, v: None if _is_endless(v) else _session(w, providers=v),
    "InferenceSession.provider_options": lambda w, v: _session(w, provider_options=v),
    "InferenceSession.an option": lambda w, v: _session(w, provider_options=[{"vtcm_mb": v}, {}]),
    "InferenceSession.a provider": lambda w, v: _session(w, providers=[v]),
    "InferenceSession.soc": lambda w, v: _session(w, soc=v),
    "InferenceSession.dims": lambda w, v: _session(w, dims=v),
    "InferenceSession.queue_depth": lambda w, v: _session(w, queue_depth=v),
    "InferenceSession.transport": lambda w, v: _session(w, transport=v),
    "run.output_names": lambda w, v: None if _is_endless(v) else w.session.run(v, w.feeds),
    "run.input_feed": lambda w, v: w.session.run(None, v),
    "run.a feed": lambda w, v: w.session.run(None, dict.fromkeys(w.feeds, v)),
    "run_async.callback": lambda w, v: w.queued.run_async(None, w.feeds, v).result(PATIENCE_S),
    "onnx.load.source": lambda w, v: htp.onnx.load(v),
    "onnx.load.dims": lambda w, v: htp.onnx.load(w.model, dims=v),
    "onnx.load.a dim": lambda w, v: htp.onnx.load(w.model, dims={"x": v}),
    "estimate.model": lambda w, v: htp.estimate(v, "SM8650"),
    "estimate.soc": lambda w, v: htp.estimate(w.imported, v),
    "estimate.precision": lambda w, v: htp.estimate(w.imported, "SM8650", precision=v),
    "estimate.dims": lambda w, v: htp.estimate(w.model, "SM8650", dims=v),
    "plan.scenario": lambda w, v: htp.plan(v),
    "plan.window": lambda w, v: htp.plan(_SCENARIO, window=v),
    "plan.an event": lambda w, v: htp.plan({**_SCENARIO, "events": [{"at": 0, "client": "A", "run": v}]}),
    "plan.a device": lambda w, v: htp.plan({**_SCENARIO, "device": v}),
    "quantize.activation": lambda w, v: _quantized(w, activation=v),
    "quantize.weight": lambda w, v: _quantized(w, weight=v),
    "quantize.method": lambda w, v: _quantized(w, method=v),
    "quantize.samples": lambda w, v: None if _is_endless(v) else _quantized(w, samples=v),
}
_SCENARIO: dict[str, Any] = {
    "device": {"hvx": 1, "hmx": 1, "vtcm_mb": 1},
    "clients": [{"name": "A"}],
    "events": [{"at": 0, "client": "A", "run": 5}],
}


def _quantized(w: SimpleNamespace, **given: Any) -> object:
    from openhtp.frontend.quantize import quantize_model

    words = {"samples": [], **given}
    return quantize_model(w.model, words.pop("samples"), **words)


def _is_endless(value: Any) -> bool:
    """Lists of tensors and scales have no bound: who gives an endless one waits."""
    return isinstance(value, itertools.count)


def _keyed(key: Any) -> Any:
    try:
        return {key: ramp()}
    except TypeError:
        return {"x": ramp()}


@pytest.fixture(scope="module")
def world(shared_backend: htp.Backend) -> Iterator[SimpleNamespace]:
    """Something of each kind, on a device of its own."""
    with shared_backend.create_device() as device, device.create_context(queue_depth=20) as context:
        graph = relu_graph(context)
        sparse = context.create_graph("sparse")
        sparse.add_tensor("x", (2, 2), "float32", kind="app_write", sparse_elements=2)
        sparse.add_tensor("z", (2, 2), "float32", kind="app_read")
        sparse.add_node("Relu", inputs=["x"], outputs=["z"])
        sparse.finalize()
        model = zoo.tiny_mlp()
        queued = htp.InferenceSession(model)
        log = shared_backend.create_log("error", lambda *_: None)
        with device.create_context() as saved:
            relu_graph(saved)
            binary = saved.get_binary()
        with htp.InferenceSession(model, transport="inprocess") as session:
            yield SimpleNamespace(
                backend=shared_backend,
                device=device,
                context=context,
                graph=graph,
                sparse=sparse,
                app=context.create_app("app"),
                mem=context.register_memory(4096),
                binary=binary,
                model=model,
                imported=htp.onnx.load(model),
                session=session,
                queued=queued,
                log=log,
                feeds={item.name: np.zeros(item.shape, np.float32) for item in session.get_inputs()},
                numbers=itertools.count(),
            )
        queued.close()
        log.free()


def judged(call: Call, world: SimpleNamespace, value: Any) -> str:
    """What is wrong with the way a value was refused; nothing if it was taken or refused well."""
    try:
        call(world, value)
    except htp.DeviceLost as error:
        return f"lost the device: {error}"
    except htp.InternalError as error:
        return f"{error!r}"
    except (htp.QnnError, TimeoutError):
        return ""
    except Exception as error:
        return f"{error!r}"
    return ""


@pytest.mark.parametrize("row", [*RUNTIME, *FRONT])
def test_every_value_is_taken_or_refused_in_words(
    world: SimpleNamespace, row: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    call = (RUNTIME | FRONT)[row]
    wrong = {}
    for name, make in VALUES.items():
        found = judged(call, world, make())
        if found:
            wrong[name] = found[:300]
    assert wrong == {}
    # Nothing came of it: the same objects go on working.
    np.testing.assert_array_equal(world.graph.execute({"x": ramp()})["y"], np.maximum(ramp(), 0))


def test_errors_can_be_printed_and_copied() -> None:
    with pytest.raises(htp.InvalidArgument) as caught:
        htp.Priority.parse(10**5000)  # type: ignore[arg-type]
    assert "an int" in str(copy.copy(caught.value))


def test_what_is_no_context_no_graph_and_no_flag_is_refused(shared_device: htp.Device) -> None:
    with shared_device.create_context() as context, shared_device.create_context() as other:
        graph = relu_graph(context)
        mem = context.register_memory(4096)
        for call in (
            lambda: mem.share_with(["context"]),
            lambda: context.finalize(graphs=[True]),
            lambda: context.finalize(graphs=graph),
            lambda: other.finalize(graphs=[graph]),
            lambda: shared_device.validate_binary(context.get_binary(), check_data=np.ones(2)),
            lambda: htp.DcvsVote().over("high"),
        ):
            with pytest.raises(htp.InvalidArgument, match="expected"):
                call()
        context.finalize(graphs=[graph])
