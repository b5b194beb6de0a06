"""What is interrupted: every public call, found by looking, with an object and arguments that let it get far.

A scene makes ready what its call needs and returns the call. Calls that need no arguments have one by themselves,
on a standing object of their class; a call with arguments, or one that ends its object, has one in the table. A
public call with neither is missed by ``test_every_public_call_is_swept``.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import enum
import functools
import inspect
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import openhtp as htp
from openhtp import llm, session, zoo
from openhtp.core import tidying
from openhtp.engine.onnxruntime import part
from openhtp.runtime.calls.bound_call import BoundCall
from tests.conftest import ramp, relu_graph
from tests.hostile.surface import Door, doors, doors_of
from tests.waiting import PATIENCE_S

Act = Callable[[], object]

_NAMES = ("free", "close", "deregister", "destroy")
DEPTH = 3
# A callback: it takes whatever it is given.
_ANYTHING = "".format
_SCENARIO = {
    "device": {"hvx": 1, "hmx": 1, "vtcm_mb": 1},
    "clients": [{"name": "A", "kind": "graph", "pd": 1, "priority": "normal", "hmx": 1, "hvx": 1, "vtcm_mb": 1}],
    "events": [{"at": 0, "client": "A", "run": 30}],
}
_STUDY = {"measure": "estimate", "axes": {"model": "zoo:tiny_mlp", "soc": ["SM8550", "SM8650"]}}
# Beside what the package itself offers.
MORE = (llm.Generator, session.IOBinding)


class Scenery:
    """What stands there for all scenes, and what the present one has put up."""

    def __init__(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="scenes")
        self.folder = Path(self._folder.name)
        self.backend = htp.Backend()
        self.device = self.backend.create_device()
        self._link = self.device.link
        self.context = self.device.create_context(queue_depth=DEPTH)
        self.graph = relu_graph(self.context)
        self.other = relu_graph(self.context, "other")
        self.memory = self.context.register_memory(4096)
        self.binary = self.context.get_binary()
        self.model = self.folder / "model.onnx"
        self.model.write_bytes(zoo.tiny_mlp(8))
        (self.feed,) = zoo.random_feeds(self.model.read_bytes(), 1)
        self._standing: list[object] = [self.backend, self.device, self.context, self.memory]
        self._put_up: list[object] = []

    @functools.cached_property
    def session(self) -> htp.InferenceSession:
        return self._stands(htp.InferenceSession(self.model))

    @functools.cached_property
    def prepared(self) -> htp.PreparedModel:
        model = self._stands(htp.PreparedModel(self.model, self.folder / "cache"))
        model.wait(PATIENCE_S)
        return model

    @functools.cached_property
    def generator(self) -> llm.Generator:
        sizes = {"layers": 1, "hidden": 64, "heads": 2, "kv_heads": 1, "head_dim": 64, "ffn": 96}
        made = llm.Llama(**sizes, vocab=96, context=256)  # type: ignore[arg-type]
        self.bundle = llm.export(made, ar=(32, 1))
        return self._stands(llm.Generator(self.bundle, self.device))

    def _stands(self, item: Any) -> Any:
        self._standing.append(item)
        return item

    def put_up(self, item: Any) -> Any:
        """Something of this scene, which is taken down at its end. What stands for all scenes stays."""
        if not any(item is each for each in (*self._standing, self._link)):
            self._put_up.append(item)
        return item

    def take_down(self) -> None:
        """The scene is over: free what it put up, and the contexts that nobody holds any more."""
        tidying.flush()
        while self._put_up:
            _free(self._put_up.pop())
        kept = [self.context, *(self.generator._loaded.contexts if "generator" in vars(self) else ())]
        for context in list(self.device.contexts):
            if context not in kept:
                _free(context)

    def close(self) -> None:
        """All scenes are over."""
        self.take_down()
        for item in reversed(self._standing):
            _free(item)
        self._folder.cleanup()


def _free(item: Any) -> None:
    for name in _NAMES:
        if hasattr(item, name):
            with contextlib.suppress(htp.QnnError):
                getattr(item, name)()
            return


def _filled_profile(s: Scenery) -> htp.Profile:
    profile = s.backend.create_profile("detailed")
    s.other.execute({"x": ramp()}, profile=profile)
    return profile


def _fresh_text(s: Scenery) -> llm.Generator:
    s.generator.reset()
    return s.generator


# What stands there of each class.
STANDING: dict[type, Callable[[Scenery], Any]] = {
    htp.Backend: lambda s: s.backend,
    htp.Device: lambda s: s.device,
    htp.Context: lambda s: s.context,
    htp.Graph: lambda s: s.graph,
    htp.Mem: lambda s: s.memory,
    htp.App: lambda s: s.context.create_app("app"),
    htp.Signal: lambda s: s.backend.create_signal(),
    htp.Execution: lambda s: s.graph.execute_async({"x": ramp()}),
    htp.Creation: lambda s: s.put_up(s.device.create_contexts_from_binaries([s.binary, s.binary])),
    htp.PowerConfig: lambda s: s.put_up(s.device.create_power_config()),
    htp.Log: lambda s: s.put_up(s.backend.create_log("warn", _ANYTHING)),
    htp.ProfileLog: lambda s: s.put_up(htp.ProfileLog(s.folder / "profile.log")),
    htp.InferenceSession: lambda s: s.session,
    htp.PendingRun: lambda s: s.session.run_async(None, s.feed),
    htp.PreparedModel: lambda s: s.prepared,
    htp.Profile: _filled_profile,
    htp.OpPackage: lambda s: _doubling(),
    llm.Generator: _fresh_text,
    session.IOBinding: lambda s: s.session.io_binding(),
}


def _doubling() -> htp.OpPackage:
    """A package of one operator, which doubles its input."""
    operator = htp.Operator("Double", infer=None, compute=lambda node, arrays: [2 * arrays[0]])
    return htp.OpPackage("scenes.ops", "1.0.0", [operator])


def _new_device(s: Scenery) -> htp.Device:
    return s.put_up(s.backend.create_device())


def _new_context(s: Scenery) -> htp.Context:
    return s.put_up(s.device.create_context())


def _full_context(s: Scenery) -> htp.Context:
    context = _new_context(s)
    relu_graph(context)
    context.register_memory(64)
    return context


def _new_inside(s: Scenery) -> htp.Context:
    """A context on a device in this process, which computes on the caller's thread."""
    return s.put_up(s.backend.create_device(transport="inprocess")).create_context()


def _queued_inside(s: Scenery) -> Act:
    graph = relu_graph(_new_inside(s))
    return lambda: graph.execute_async({"x": ramp()}).result()


def _bound_inside(s: Scenery) -> BoundCall:
    """The C library's way: from now on it is computed where the arrays lie."""
    bound = BoundCall(relu_graph(_new_inside(s)), {"x": ramp()}, {"y": np.zeros_like(ramp())})
    for _ in range(3):
        bound.run()
    return bound


def _without_node(s: Scenery, context: htp.Context | None = None) -> htp.Graph:
    graph = (context or _new_context(s)).create_graph("made")
    graph.add_tensor("x", (1, 8), "float32", kind="app_write")
    graph.add_tensor("y", (1, 8), "float32", kind="app_read")
    return graph


def _unfinished(s: Scenery, context: htp.Context | None = None) -> htp.Graph:
    graph = _without_node(s, context)
    graph.add_node("Relu", inputs=["x"], outputs=["y"])
    return graph


def _carried_signal(s: Scenery) -> htp.Signal:
    """One that an execution carries, which waits behind others."""
    for _ in range(DEPTH - 1):
        s.graph.execute_async({"x": ramp()})
    signal = s.backend.create_signal()
    s.graph.execute_async({"x": ramp()}, signal=signal)
    return signal


def _adapted(s: Scenery) -> tuple[htp.Context, bytes]:
    context = _new_context(s)
    graph = context.create_graph("adapted")
    x = graph.add_tensor("x", (1, 8), "float32", kind="app_write")
    data = np.ones((1, 8), np.float32)
    w = graph.add_tensor("w", (1, 8), "float32", kind="updateable_static", data=data)
    graph.add_node(
        "ElementWiseAdd", inputs=[x, w], outputs=[graph.add_tensor("y", (1, 8), "float32", kind="app_read")]
    )
    graph.finalize()
    return context, context.get_binary_section("adapted")


def _handles(s: Scenery) -> dict[str, Any]:
    return {"signal": s.backend.create_signal(), "profile": s.backend.create_profile("detailed")}


def _traced(s: Scenery) -> Act:
    def act() -> None:
        with htp.trace(s.folder / "trace.json"):
            s.other.execute({"x": ramp()})

    return act


def _awaited(make: Callable[[Scenery], Any]) -> Callable[[Scenery], Act]:
    def scene(s: Scenery) -> Act:
        async def wait(item: Any) -> Any:
            return await item

        item = make(s)
        return lambda: asyncio.run(wait(item))

    return scene


def _bound(s: Scenery) -> session.IOBinding:
    binding = s.session.io_binding()
    for name, array in s.feed.items():
        binding.bind_cpu_input(name, array)
    for output in s.session.get_outputs():
        binding.bind_output(output.name)
    return binding


def _values(s: Scenery) -> dict[str, session.OrtValue]:
    return {name: session.OrtValue.ortvalue_from_numpy(array) for name, array in s.feed.items()}


def _with_vectors(s: Scenery) -> Act:
    vector = part("capi.onnxruntime_pybind11_state").OrtValueVector
    feeds, fetches = vector(), vector()
    for value in _values(s).values():
        feeds.push_back(value._get_c_value())
    wanted = [output.name for output in s.session.get_outputs()]
    return functools.partial(s.session.run_with_ortvaluevector, None, list(s.feed), feeds, wanted, fetches)


def _bind_input(s: Scenery) -> Act:
    name, array = next(iter(s.feed.items()))
    where = array.ctypes.data
    return lambda: s.session.io_binding().bind_input(name, "cpu", 0, array.dtype, array.shape, where)


def _bind_output(s: Scenery) -> Act:
    output = s.session.get_outputs()[0]
    value = session.OrtValue.ortvalue_from_numpy(np.zeros(output.shape, np.float32))
    return lambda: s.session.io_binding().bind_ortvalue_output(output.name, value)


def _generated(s: Scenery) -> Act:
    async def all_of() -> list[int]:
        return [token async for token in STANDING[llm.Generator](s).generate([1, 2, 3], max_new=2)]

    return lambda: asyncio.run(all_of())


def _carried(s: Scenery) -> Act:
    """Runs from an event loop, more than the queue takes: a thread of the session waits for a place."""
    fresh = s.put_up(htp.InferenceSession(s.model, queue_depth=1))

    async def several() -> None:
        for run in [fresh.run_async(None, s.feed) for _ in range(4)]:
            await run

    return lambda: asyncio.run(several())


def _with(make: Callable[[Scenery], Any]) -> Callable[[Scenery], Act]:
    def scene(s: Scenery) -> Act:
        item = make(s)

        def act() -> None:
            with item:
                pass

        return act

    return scene


def _call(make: Callable[[Scenery], Any], method: str, *given: Any, **named: Any) -> Callable[[Scenery], Act]:
    """A scene: make an object, then call a method of it. An argument that is a function is given the scenery."""

    def scene(s: Scenery) -> Act:
        bound = getattr(make(s), method)
        positional = [item(s) if inspect.isfunction(item) else item for item in given]
        keywords = {name: item(s) if inspect.isfunction(item) else item for name, item in named.items()}
        return lambda: bound(*positional, **keywords)

    return scene


def _apply_section(s: Scenery) -> Act:
    context, section = _adapted(s)
    return lambda: context.apply_binary_section("adapted", section, **_handles(s))


def _stop_trace(s: Scenery) -> Act:
    s.device.start_trace()
    return s.device.stop_trace


def _filled(s: Scenery) -> Act:
    """More executions than the queue has places."""
    return lambda: [s.graph.execute_async({"x": ramp()}) for _ in range(DEPTH + 2)]


def _tokenizer(s: Scenery) -> Act:
    def act() -> None:
        with contextlib.suppress(htp.InvalidArgument):  # the model has none
            _ = s.generator.tokenizer

    return act


def _of(cls: type) -> Callable[[Scenery], Any]:
    return STANDING[cls]


_INPUT = {"x": ramp()}
_FEED: Callable[[Scenery], Any] = lambda s: s.feed  # noqa: E731

SCENES: dict[str, Callable[[Scenery], Act]] = {
    "App.run_async": _call(_of(htp.App), "run_async", 10),
    "Backend": lambda s: htp.Backend,
    "Backend.create_device": _call(_of(htp.Backend), "create_device"),
    "Backend.create_log": _call(_of(htp.Backend), "create_log", "warn", _ANYTHING),
    "Backend.free": _call(lambda s: s.put_up(htp.Backend()), "free"),
    "Backend.has_capability": _call(_of(htp.Backend), "has_capability", "GRAPH_SUPPORT_ASYNC_EXECUTION"),
    "Backend.register_op_package": lambda s: functools.partial(
        s.put_up(htp.Backend()).register_op_package, _doubling()
    ),
    "OpPackage.op": _call(_of(htp.OpPackage), "op", "Double"),
    "Context.apply_binary_section": _apply_section,
    "Context.compose_graph": lambda s: functools.partial(
        _new_context(s).compose_graph, htp.onnx.load(s.model.read_bytes())
    ),
    "Context.create_app": _call(_of(htp.Context), "create_app", "another"),
    "Context.create_graph": _call(_new_context, "create_graph", "another"),
    "Context.finalize": _call(
        lambda s: s.put_up(s.device.create_context_from_binary(s.binary, defer_graph_init=True)), "finalize"
    ),
    "Context.free": _call(_full_context, "free"),
    "Context.get_binary": _call(_full_context, "get_binary"),
    "Context.get_binary_section": lambda s: functools.partial(_adapted(s)[0].get_binary_section, "adapted"),
    "Context.get_binary_size": _call(_full_context, "get_binary_size"),
    "Context.graph": _call(_of(htp.Context), "graph", "g"),
    "Context.register_memory": _call(_of(htp.Context), "register_memory", 64),
    "Context.set_config": _call(_full_context, "set_config", priority="high"),
    "Creation.start": lambda s: functools.partial(s.device.create_contexts_from_binaries, [s.binary]),
    "Device.create_context_from_binary": lambda s: functools.partial(
        s.device.create_context_from_binary, s.binary, **_handles(s)
    ),
    "Device.create_contexts_from_binaries": lambda s: functools.partial(
        s.device.create_contexts_from_binaries, [s.binary, s.binary], signal=s.backend.create_signal()
    ),
    "Device.free": _call(_new_device, "free"),
    "Device.set_perf_profile": _call(_of(htp.Device), "set_perf_profile", "burst"),
    "Device.stop_trace": _stop_trace,
    "Device.validate_binary": _call(_of(htp.Device), "validate_binary", lambda s: s.binary),
    "Execution.add_done_callback": _call(_of(htp.Execution), "add_done_callback", _ANYTHING),
    "Graph.add_node": _call(_without_node, "add_node", "Relu", inputs=["x"], outputs=["y"]),
    "Graph.add_tensor": _call(_unfinished, "add_tensor", "z", (1, 8), "float32"),
    "Graph.create_subgraph": _call(_unfinished, "create_subgraph", "inner"),
    "Graph.execute": lambda s: functools.partial(s.other.execute, _INPUT, **_handles(s)),
    "Graph.execute_async": lambda s: functools.partial(s.graph.execute_async, _INPUT, **_handles(s)),
    "Graph.finalize": lambda s: functools.partial(_unfinished(s).finalize, **_handles(s)),
    "Graph.set_config": lambda s: functools.partial(_full_context(s).graph("g").set_config, priority="high"),
    "InferenceSession": lambda s: functools.partial(htp.InferenceSession, s.model),
    "InferenceSession.close": _call(lambda s: s.put_up(htp.InferenceSession(s.model)), "close"),
    "InferenceSession.create_ortvalue_from_shape_and_type": _call(
        _of(htp.InferenceSession), "create_ortvalue_from_shape_and_type", (1, 8), np.float32
    ),
    "InferenceSession.run": _call(_of(htp.InferenceSession), "run", None, _FEED),
    "InferenceSession.run_async": _call(_of(htp.InferenceSession), "run_async", None, _FEED),
    "InferenceSession.run_with_iobinding": _call(_of(htp.InferenceSession), "run_with_iobinding", _bound),
    "InferenceSession.run_with_ort_values": _call(
        _of(htp.InferenceSession),
        "run_with_ort_values",
        None,
        _values,
    ),
    "InferenceSession.run_with_ortvaluevector": _with_vectors,
    "InferenceSession.set_providers": _call(
        lambda s: s.put_up(htp.InferenceSession(s.model)), "set_providers", ["CPUExecutionProvider"]
    ),
    "Log.set_log_level": _call(_of(htp.Log), "set_log_level", "error"),
    "Mem.array": _call(lambda s: s.put_up(s.context.register_memory(64)), "array", "x"),
    "Mem.deregister": _call(lambda s: s.put_up(s.context.register_memory(64)), "deregister"),
    "Mem.free": _call(lambda s: s.put_up(s.context.register_memory(64)), "free"),
    "Mem.share_with": lambda s: functools.partial(s.memory.share_with, _new_context(s)),
    "PendingRun.add_done_callback": _call(_of(htp.PendingRun), "add_done_callback", _ANYTHING),
    "PowerConfig.set": _call(_of(htp.PowerConfig), "set", rpc_polling_us=100),
    "PowerConfig.set_perf_profile": _call(_of(htp.PowerConfig), "set_perf_profile", "balanced"),
    "PreparedModel.close": _call(lambda s: s.put_up(htp.PreparedModel(s.model, s.folder / "cache")), "close"),
    "PreparedModel.run": _call(_of(htp.PreparedModel), "run", None, _FEED),
    "PreparedModel.run_async": _call(_of(htp.PreparedModel), "run_async", None, _FEED),
    "Profile.event": lambda s: functools.partial(_filled_profile(s).event, 0),
    "ProfileLog.add": lambda s: functools.partial(STANDING[htp.ProfileLog](s).add, _filled_profile(s)),
    "ProfileLog.note": lambda s: functools.partial(STANDING[htp.ProfileLog](s).note, _filled_profile(s).message()),
    "estimate": lambda s: lambda: htp.estimate(s.model, "SM8650"),
    "plan": lambda s: lambda: htp.plan(_SCENARIO),
    "sweep": lambda s: lambda: htp.sweep(_STUDY, store=tempfile.mkdtemp(dir=s.folder), workers=1),
    "trace": _traced,
    "Signal.trigger": _call(_carried_signal, "trigger"),
    # Ways to use what the table above has one way of.
    "Execution (await)": _awaited(_of(htp.Execution)),
    "Creation (await)": _awaited(_of(htp.Creation)),
    "PendingRun (await)": _awaited(_of(htp.PendingRun)),
    "InferenceSession.run_async (carried)": _carried,
    "Graph.execute_async (full)": _filled,
    "Device (with)": _with(_new_device),
    "Graph.finalize (in process)": lambda s: _unfinished(s, _new_inside(s)).finalize,
    "Graph.execute (in process)": lambda s: functools.partial(relu_graph(_new_inside(s)).execute, {"x": ramp()}),
    "Graph.execute_async (in process)": _queued_inside,
    "BoundCall.run (in process)": lambda s: _bound_inside(s).run,
    "BoundCall.run_async (in process)": lambda s: functools.partial(_bound_inside(s).run_async, _ANYTHING),
    "Context (with)": _with(_full_context),
    "Creation (with)": _with(_of(htp.Creation)),
    "PreparedModel": lambda s: functools.partial(htp.PreparedModel, s.model, tempfile.mkdtemp(dir=s.folder)),
    # Of language models, what stands on a device.
    "Generator": lambda s: functools.partial(llm.Generator, s.generator._bundle, s.device),
    "Generator (shares)": lambda s: functools.partial(
        llm.Generator, s.generator._bundle, s.device, shares=s.generator
    ),
    "Generator.complete": _call(_of(llm.Generator), "complete", [1, 2, 3], max_new=3),
    "Generator.generate": _generated,
    "Generator.graph_steps": _call(_of(llm.Generator), "graph_steps", 1),
    "Generator.rewind": _call(_of(llm.Generator), "rewind", 0),
    "Generator.score": lambda s: lambda: asyncio.run(_fresh_text(s).score([1, 2, 3])),
    "Generator.tokenizer": _tokenizer,
    "Generator.use_adapter": _call(_of(llm.Generator), "use_adapter", None),
    "IOBinding.bind_cpu_input": lambda s: functools.partial(
        s.session.io_binding().bind_cpu_input, *next(iter(s.feed.items()))
    ),
    "IOBinding.bind_input": _bind_input,
    "IOBinding.bind_ortvalue_input": lambda s: functools.partial(
        s.session.io_binding().bind_ortvalue_input, *next(iter(_values(s).items()))
    ),
    "IOBinding.bind_output": lambda s: functools.partial(
        s.session.io_binding().bind_output, s.session.get_outputs()[0].name
    ),
    "IOBinding.bind_ortvalue_output": _bind_output,
    "Generator.free": _call(lambda s: s.put_up(llm.Generator(s.generator._bundle, s.device)), "free"),
}


def holds_nothing(door: Door) -> bool:
    """Whether it is of a class of plain values: nothing that an interrupt could leave behind."""
    cls = door.owner if door.owner is not None else getattr(htp, door.title.split(".")[0], None)
    if not isinstance(cls, type):
        return False
    return (
        issubclass(cls, enum.Enum)
        or dataclasses.is_dataclass(cls)
        or cls in (htp.Status, htp.Tensor, htp.TensorSpec)
    )


def all_doors() -> list[Door]:
    """Everything public that can be called, and that may hold something."""
    found = [*doors(), *(door for cls in MORE for door in doors_of(cls.__name__, cls))]
    return [door for door in found if not holds_nothing(door)]


def scenes() -> dict[str, Callable[[Scenery], Act]]:
    """All scenes by title: the table's, and one for each public call that needs no arguments."""
    found = dict(SCENES)
    for door in all_doors():
        if door.title not in found and not _needs_arguments(door):
            if door.owner is None:
                found[door.title] = _plain(door)
            elif door.owner in STANDING:
                found[door.title] = _standing(door)
    return found


def missing() -> list[str]:
    """Public calls that have no scene, and should have one in the table."""
    there = scenes()
    return [door.title for door in all_doors() if door.title not in there]


def _needs_arguments(door: Door) -> bool:
    return any(parameter.default is inspect.Parameter.empty for parameter in door.parameters)


def _plain(door: Door) -> Callable[[Scenery], Act]:
    return lambda s: door.call


def _standing(door: Door) -> Callable[[Scenery], Act]:
    assert door.owner is not None
    make = STANDING[door.owner]
    return lambda s: functools.partial(door.call, make(s))
