"""The saver: writes down every call of the API while it is on, for ``openhtp replay``.

It stands between callers and the objects of the runtime, so Python programs, sessions and clients of the C table
are recorded alike. Objects made before it was on are left out, except backends and devices.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, TypeVar

from openhtp.core.checks import path_of, shown
from openhtp.core.errors import InvalidArgument, QnnError
from openhtp.ir.graph import Graph as IrGraph
from openhtp.options import CONTEXT, OptionValues
from openhtp.program.binary import ContextBinary
from openhtp.records import calls as cs
from openhtp.runtime.calls.call import Call
from openhtp.runtime.calls.execution import Execution
from openhtp.runtime.instruments.instrument import HOOKS, Hook, Instrument, News
from openhtp.runtime.instruments.saver import Saver
from openhtp.runtime.objects.backend import Backend
from openhtp.runtime.objects.context import Context
from openhtp.runtime.objects.device import Device
from openhtp.runtime.objects.graph import Graph
from openhtp.runtime.objects.graph_draft import static_data
from openhtp.runtime.objects.mem import Mem
from openhtp.runtime.objects.power import PowerConfig
from openhtp.runtime.objects.profile import Profile
from openhtp.runtime.objects.signal import Signal
from openhtp.runtime.objects.tensor import Tensor

_T = TypeVar("_T")

_ENDS = ("inputs", "outputs")
# Calls that do not matter to a replay: their hooks, and the entries that are written down for them.
_ONLY_NAMED = {
    "log_create": "logCreate",
    "capability_ask": "propertyHasCapability",
    "binary_validate": "contextValidateBinary",
    "section_get": "contextGetBinarySection",
}


class _State:
    """The one recording of a process, and the number of its users."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.saver: Saver | None = None
        self.instrument: Instrument | None = None
        self.users = 0
        self.for_good = False


_state = _State()


def start_saving(folder: str | os.PathLike[str]) -> Path:
    """Record all calls of this process from now on; returns the folder. A recording that is already on goes on."""
    path = path_of(folder)
    if path is None:
        raise InvalidArgument(f"folder is {shown(folder)}; expected the path of a folder")
    with _state.lock:
        if _state.saver is None:
            _state.saver = Saver(path)
            _state.instrument = _SaverHooks(_state.saver).instrument()
            _state.instrument.install()
        _state.users += 1
        return _state.saver.folder


def stop_saving() -> None:
    """A user of the recording has finished; the recording ends with its last user."""
    with _state.lock:
        _state.users -= 1
        if _state.users == 0 and _state.saver is not None and _state.instrument is not None:
            _state.instrument.remove()
            _state.saver.close()
            _state.saver = _state.instrument = None


def save_for_good(folder: str) -> None:
    """Record until the process ends, as the environment asks. A second call does nothing."""
    if not _state.for_good:
        start_saving(folder)
        _state.for_good = True


@contextlib.contextmanager
def saved(folder: str | os.PathLike[str]) -> Iterator[Path]:
    """Record all calls of this process while the block runs."""
    path = start_saving(folder)
    try:
        yield path
    finally:
        stop_saving()


class _SaverHooks:
    """One hook for each call that is written down. Objects made before the saver was on have no number."""

    def __init__(self, saver: Saver) -> None:
        self._saver = saver

    def instrument(self) -> Instrument:
        """An instrument with all hooks."""
        hooks = {name: getattr(self, name) for name in vars(_SaverHooks) if name in HOOKS}
        return Instrument({**hooks, **{name: self._only_named(entry) for name, entry in _ONLY_NAMED.items()}})

    def _backend(self, backend: Backend) -> int:
        number = self._saver.number(backend)
        if number is None:
            number = self._saver.name(backend)
            self._saver.write(cs.BackendCreate(backend=number))
        return number

    def _device(self, device: Device) -> int:
        number = self._saver.number(device)
        if number is None:
            owner = self._backend(device.backend)
            number = self._saver.name(device)
            self._saver.write(cs.DeviceCreate(backend=owner, device=number, options={"soc": device.soc}))
        return number

    def device_create(self, proceed: Hook, backend: Backend, **options: Any) -> Any:
        owner = self._backend(backend)
        device, error = _tried(lambda: proceed(backend, **options))
        number = self._saver.name(_Lost() if device is None else device)
        written = self._saver.options(options)
        self._saver.write(cs.DeviceCreate(backend=owner, device=number, options=written, error=_name(error)))
        return _returned(device, error)

    def context_create(self, proceed: Hook, device: Device, **options: Any) -> Any:
        owner = self._device(device)
        context, error = _tried(lambda: proceed(device, **options))
        number = self._saver.name(_Lost() if context is None else context)
        written = self._saver.options(options)
        self._saver.write(cs.ContextCreate(device=owner, context=number, options=written, error=_name(error)))
        return _returned(context, error)

    def context_restore(
        self, proceed: Hook, device: Device, parsed: ContextBinary, chosen: OptionValues, *rest: Any, **more: Any
    ) -> Any:
        owner = self._device(device)
        blob = self._saver.blob(bytes(parsed.source.read(0, parsed.source.nbytes)))
        context, error = _tried(lambda: proceed(device, parsed, chosen, *rest, **more))
        number = self._saver.name(_Lost() if context is None else context)
        graphs = (
            {} if context is None else {name: self._saver.name(graph) for name, graph in context.graphs.items()}
        )
        options = {row.name: chosen[row.name] for row in CONTEXT.rows if chosen.get(row.name) != row.default}
        self._saver.write(
            cs.ContextCreateFromBinary(
                device=owner,
                context=number,
                binary=blob,
                graphs=graphs,
                options=self._saver.options(options),
                error=_name(error),
            )
        )
        return _returned(context, error)

    def graph_create(self, proceed: Hook, context: Context, name: str, **options: Any) -> Any:
        graph, error = _tried(lambda: proceed(context, name, **options))
        owner = self._saver.number(context)
        if owner is not None:
            number = self._saver.name(_Lost() if graph is None else graph)
            written, title = self._saver.options(options), name if isinstance(name, str) else shown(name)
            self._saver.write(
                cs.GraphCreate(context=owner, graph=number, name=title, options=written, error=_name(error))
            )
        return _returned(graph, error)

    def graph_compose(self, proceed: Hook, graph: Graph, source: IrGraph) -> None:
        proceed(graph, source)
        number = self._saver.number(graph)
        if number is None:
            return
        for spec in source.tensors.values():
            self._saver.write(self._saver.tensor(number, spec, source.statics.get(spec.name)))
        for node in source.nodes:
            inputs, outputs = list(node.inputs), list(node.outputs)
            self._saver.write(
                self._saver.node(number, node.op, node.name, inputs, outputs, node.params, node.package)
            )

    def tensor_add(self, proceed: Hook, graph: Graph, *args: Any, data: Any = None, **rest: Any) -> Tensor:
        tensor: Tensor = proceed(graph, *args, data=data, **rest)
        number = self._saver.number(graph)
        if number is not None:
            self._saver.write(self._saver.tensor(number, tensor.spec, static_data(tensor.spec, data)))
        return tensor

    def node_add(self, proceed: Hook, graph: Graph, op: str, **rest: Any) -> None:
        proceed(graph, op, **rest)
        number = self._saver.number(graph)
        if number is None:
            return
        name = rest.get("name") or f"{op}_{0 if graph.draft is None else graph.draft.nodes - 1}"
        ends = [[each.name if isinstance(each, Tensor) else each for each in rest[key]] for key in _ENDS]
        params, package = dict(rest.get("params") or {}), rest.get("package", "qti.aisw")
        self._saver.write(self._saver.node(number, op, name, ends[0], ends[1], params, package))

    def graph_finalize(self, proceed: Hook, graph: Graph, **options: Any) -> None:
        _, error = _tried(lambda: proceed(graph, **options))
        number = self._saver.number(graph)
        if number is not None:
            carried = self._carried(options.get("profile"), options.get("signal"))
            self._saver.write(cs.GraphFinalize(graph=number, error=_name(error), **carried))
        if error is not None:
            raise error

    def execution_begin(self, proceed: Hook, graph: Graph, call: Call) -> Any:
        number = self._saver.number(graph)
        if number is None:
            return proceed(graph, call)
        ports, arguments = call.callee.ports, call.arguments
        arrays = {**arguments.raw_inputs, **{port: array for port, (_, _, array) in arguments.registered.items()}}
        inputs = {
            ports.specs[port].name: self._saver.array(array)
            for port, array in arrays.items()
            if port < ports.inputs and array is not None
        }
        execution = self._saver.begin(call)
        kind = cs.GraphExecute if call.synchronous else cs.GraphExecuteAsync
        carried = self._carried(call.profile, call.signal)
        self._saver.write(kind(graph=number, execution=execution, inputs=inputs, **carried))
        queued, error = _tried(lambda: proceed(graph, call))
        if error is not None and self._saver.end(call) is not None:
            self._saver.write(cs.ExecutionEnded(execution=execution, error=error.name))
        return _returned(queued, error)

    def execution_end(self, proceed: Hook, execution: Execution, call: Any, *rest: Any) -> Any:
        outputs, error = proceed(execution, call, *rest)
        number = self._saver.end(call)
        if number is not None:
            arrays = {name: self._saver.array(array) for name, array in (outputs or {}).items()}
            self._saver.write(cs.ExecutionEnded(execution=number, outputs=arrays, error=_name(error)))
        return outputs, error

    def config_set(self, proceed: Hook, thing: Context | Graph, **options: Any) -> None:
        _, error = _tried(lambda: proceed(thing, **options))
        number = self._saver.number(thing)
        if number is not None:
            written = self._saver.options(options)
            self._saver.write(cs.SetConfig(object=number, options=written, error=_name(error)))
        if error is not None:
            raise error

    def section_apply(self, proceed: Hook, context: Context, graph: Any, section: Any, **rest: Any) -> None:
        _, error = _tried(lambda: proceed(context, graph, section, **rest))
        number = self._saver.number(context)
        if number is not None and error is None:
            name = graph.name if isinstance(graph, Graph) else graph
            self._saver.write(
                cs.ApplySection(context=number, graph=name, section=self._saver.blob(bytes(section)))
            )
        if error is not None:
            raise error

    def memory_register(self, proceed: Hook, context: Context, *args: Any, **options: Any) -> Any:
        memory: Mem = proceed(context, *args, **options)
        number = self._saver.number(context)
        if number is not None:
            self._saver.write(
                cs.MemRegister(context=number, memory=self._saver.name(memory), nbytes=memory.nbytes)
            )
        return memory

    def perf_profile_set(self, proceed: Hook, device: Device, name: str, **options: Any) -> None:
        proceed(device, name, **options)
        written = self._saver.options(options)
        self._saver.write(cs.SetPerfProfile(device=self._device(device), name=name, options=written))

    def power_config_create(self, proceed: Hook, device: Device, core: int = 0) -> PowerConfig:
        config: PowerConfig = proceed(device, core)
        owner, number = self._device(device), self._saver.name(config)
        self._saver.write(cs.PowerConfigCreate(device=owner, power=number, core=config.core))
        return config

    def power_vote(self, proceed: Hook, power: PowerConfig, *args: Any, **votes: Any) -> None:
        """Record ``set``, or ``set_perf_profile``, which also has the profile's name."""
        _, error = _tried(lambda: proceed(power, *args, **votes))
        number = self._saver.number(power)
        if number is not None:
            written, profile = self._saver.options(votes), str(args[0]) if args else ""
            self._saver.write(cs.SetPowerVotes(power=number, votes=written, profile=profile, error=_name(error)))
        if error is not None:
            raise error

    def signal_create(self, proceed: Hook, backend: Backend, *args: Any, **options: Any) -> Signal:
        signal: Signal = proceed(backend, *args, **options)
        owner, number = self._backend(backend), self._saver.name(signal)
        self._saver.rename(signal.interrupt, number)
        self._saver.write(cs.SignalCreate(backend=owner, signal=number, timeout_us=signal.timeout_us))
        return signal

    def signal_trigger(self, proceed: Hook, signal: Signal) -> None:
        number = self._saver.number(signal)
        if number is not None:  # written before the end of the call that it aborts
            self._saver.write(cs.SignalTrigger(signal=number))
        proceed(signal)

    def profile_create(self, proceed: Hook, backend: Backend, *args: Any, **options: Any) -> Profile:
        profile: Profile = proceed(backend, *args, **options)
        owner, number = self._backend(backend), self._saver.name(profile)
        self._saver.rename(profile.sheet, number)
        level = options.pop("level", args[0] if args else profile.level)
        written = self._saver.options({"level": level, **options})
        self._saver.write(
            cs.ProfileCreate(backend=owner, profile=number, level=str(written.pop("level")), options=written)
        )
        return profile

    def _carried(self, profile: Any, signal: Any) -> dict[str, Any]:
        carried = {"profile": profile, "signal": signal}
        return {name: self._saver.number(thing) for name, thing in carried.items() if thing is not None}

    def binary_get(self, proceed: Hook, context: Context) -> Any:
        binary, error = _tried(lambda: proceed(context))
        number = self._saver.number(context)
        if number is not None:
            self._saver.write(cs.GetBinary(context=number, nbytes=len(binary or b""), error=_name(error)))
        return _returned(binary, error)

    def free(self, proceed: Hook, thing: Any, **options: Any) -> None:
        number = self._saver.number(thing)
        proceed(thing, **options)
        if number is not None:  # written after the objects that were freed with it
            self._saver.write(cs.Free(object=number))
            if isinstance(thing, Backend):  # most likely the program's end, which may be without a farewell
                self._saver.write_source()

    def entry_answered(self, proceed: Hook, news: News, name: str, status: int) -> None:
        proceed(news, name, status)
        self._saver.write(cs.EntryCall(name=name, status=status))

    def _only_named(self, entry: str) -> Hook:
        def hook(proceed: Hook, *args: Any, **options: Any) -> Any:
            answer = proceed(*args, **options)
            self._saver.write(cs.EntryCall(name=entry))
            return answer

        return hook


class _Lost:
    """Stands for an object that could not be made; even that has a number."""


def _tried(call: Callable[[], _T]) -> tuple[_T | None, QnnError | None]:
    try:
        return call(), None
    except QnnError as error:
        return None, error


def _returned(answer: Any, error: QnnError | None) -> Any:
    if error is not None:
        raise error
    return answer


def _name(error: QnnError | None) -> str:
    return "" if error is None else error.name
