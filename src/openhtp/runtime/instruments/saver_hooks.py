"""Where the saver stands between callers and the runtime's objects: one method for each call that it notes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from openhtp.core.checks import shown
from openhtp.core.errors import QnnError
from openhtp.ir.graph import Graph as IrGraph
from openhtp.options import CONTEXT, OptionValues
from openhtp.program.binary import ContextBinary
from openhtp.records import calls as cs
from openhtp.runtime.calls.call import Call
from openhtp.runtime.calls.execution import Execution
from openhtp.runtime.instruments.saver import Saver
from openhtp.runtime.instruments.seams import Seam
from openhtp.runtime.objects.backend import Backend
from openhtp.runtime.objects.building import static_data
from openhtp.runtime.objects.context import Context
from openhtp.runtime.objects.device import Device
from openhtp.runtime.objects.graph import Graph
from openhtp.runtime.objects.mem import Mem
from openhtp.runtime.objects.power import PowerConfig
from openhtp.runtime.objects.profile import Profile
from openhtp.runtime.objects.signal import Signal
from openhtp.runtime.objects.tensor import Tensor

_T = TypeVar("_T")


def _tried(call: Callable[[], _T]) -> tuple[_T | None, QnnError | None]:
    try:
        return call(), None
    except QnnError as error:
        return None, error


def _name(error: QnnError | None) -> str:
    return "" if error is None else error.name


class _Between:
    """What calls are led through: each method makes, of the method of a class, the one that is called instead."""

    def __init__(self, saver: Saver) -> None:
        self._saver = saver

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

    def create_device(self, original: Any) -> Any:
        def create_device(backend: Backend, **options: Any) -> Any:
            owner = self._backend(backend)
            made, error = _tried(lambda: original(backend, **options))
            number = self._saver.name(made if made is not None else _Lost())
            told = self._saver.options(options)
            self._saver.write(cs.DeviceCreate(backend=owner, device=number, options=told, error=_name(error)))
            return _given(made, error)

        return create_device

    def create_context(self, original: Any) -> Any:
        def create_context(device: Device, **options: Any) -> Any:
            owner = self._device(device)
            made, error = _tried(lambda: original(device, **options))
            number = self._saver.name(made if made is not None else _Lost())
            told = self._saver.options(options)
            self._saver.write(cs.ContextCreate(device=owner, context=number, options=told, error=_name(error)))
            return _given(made, error)

        return create_context

    def restore_context(self, original: Any) -> Any:
        def restore_context(
            device: Device, parsed: ContextBinary, chosen: OptionValues, *rest: Any, **more: Any
        ) -> Any:
            owner = self._device(device)
            blob = self._saver.blob(bytes(parsed.source.read(0, parsed.source.nbytes)))
            made, error = _tried(lambda: original(device, parsed, chosen, *rest, **more))
            number = self._saver.name(made if made is not None else _Lost())
            graphs = {} if made is None else {name: self._saver.name(graph) for name, graph in made.graphs.items()}
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
            return _given(made, error)

        return restore_context

    def create_graph(self, original: Any) -> Any:
        def create_graph(context: Context, name: str, **options: Any) -> Any:
            made, error = _tried(lambda: original(context, name, **options))
            owner = self._saver.number(context)
            if owner is not None:
                number = self._saver.name(made if made is not None else _Lost())
                told, title = self._saver.options(options), name if isinstance(name, str) else shown(name)
                self._saver.write(
                    cs.GraphCreate(context=owner, graph=number, name=title, options=told, error=_name(error))
                )
            return _given(made, error)

        return create_graph

    def compose(self, original: Any) -> Any:
        def compose(graph: Graph, source: IrGraph) -> None:
            original(graph, source)
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

        return compose

    def add_tensor(self, original: Any) -> Any:
        def add_tensor(graph: Graph, *args: Any, data: Any = None, **rest: Any) -> Tensor:
            made: Tensor = original(graph, *args, data=data, **rest)
            number = self._saver.number(graph)
            if number is not None:
                self._saver.write(self._saver.tensor(number, made.spec, static_data(made.spec, data)))
            return made

        return add_tensor

    def add_node(self, original: Any) -> Any:
        def add_node(graph: Graph, op: str, **rest: Any) -> None:
            original(graph, op, **rest)
            number = self._saver.number(graph)
            if number is None:
                return
            name = rest.get("name") or f"{op}_{graph._nodes - 1}"
            ends = [[each.name if isinstance(each, Tensor) else each for each in rest[key]] for key in _ENDS]
            params, package = dict(rest.get("params") or {}), rest.get("package", "qti.aisw")
            self._saver.write(self._saver.node(number, op, name, ends[0], ends[1], params, package))

        return add_node

    def finalize(self, original: Any) -> Any:
        def finalize(graph: Graph, **options: Any) -> None:
            _, error = _tried(lambda: original(graph, **options))
            number = self._saver.number(graph)
            if number is not None:
                carried = self._carried(options.get("profile"), options.get("signal"))
                self._saver.write(cs.GraphFinalize(graph=number, error=_name(error), **carried))
            if error is not None:
                raise error

        return finalize

    def enqueue(self, original: Any) -> Any:
        def enqueue(graph: Graph, call: Call) -> Any:
            number = self._saver.number(graph)
            if number is None:
                return original(graph, call)
            ports, arguments = call.callee.ports, call.arguments
            arrays = {**arguments.raw_inputs, **{port: held[2] for port, held in arguments.registered.items()}}
            inputs = {
                ports.specs[port].name: self._saver.array(array)
                for port, array in arrays.items()
                if port < ports.inputs and array is not None
            }
            execution = self._saver.begin(call)
            kind = cs.GraphExecute if call.synchronous else cs.GraphExecuteAsync
            carried = self._carried(call.profile, call.signal)
            self._saver.write(kind(graph=number, execution=execution, inputs=inputs, **carried))
            made, error = _tried(lambda: original(graph, call))
            if error is not None and self._saver.end(call) is not None:
                self._saver.write(cs.ExecutionEnded(execution=execution, error=error.name))
            return _given(made, error)

        return enqueue

    def outcome(self, original: Any) -> Any:
        def outcome(execution: Execution, call: Any, *rest: Any) -> Any:
            outputs, error = original(execution, call, *rest)
            number = self._saver.end(call)
            if number is not None:
                told = {name: self._saver.array(array) for name, array in (outputs or {}).items()}
                self._saver.write(cs.ExecutionEnded(execution=number, outputs=told, error=_name(error)))
            return outputs, error

        return outcome

    def set_config(self, original: Any) -> Any:
        def set_config(thing: Context | Graph, **options: Any) -> None:
            _, error = _tried(lambda: original(thing, **options))
            number = self._saver.number(thing)
            if number is not None:
                told = self._saver.options(options)
                self._saver.write(cs.SetConfig(object=number, options=told, error=_name(error)))
            if error is not None:
                raise error

        return set_config

    def apply_section(self, original: Any) -> Any:
        def apply_binary_section(context: Context, graph: Any, section: Any, **rest: Any) -> None:
            _, error = _tried(lambda: original(context, graph, section, **rest))
            number = self._saver.number(context)
            if number is not None and error is None:
                name = graph.name if isinstance(graph, Graph) else graph
                self._saver.write(
                    cs.ApplySection(context=number, graph=name, section=self._saver.blob(bytes(section)))
                )
            if error is not None:
                raise error

        return apply_binary_section

    def register_memory(self, original: Any) -> Any:
        def register_memory(context: Context, *args: Any, **options: Any) -> Any:
            made: Mem = original(context, *args, **options)
            number = self._saver.number(context)
            if number is not None:
                memory = self._saver.name(made)
                self._saver.write(cs.MemRegister(context=number, memory=memory, nbytes=made.nbytes))
            return made

        return register_memory

    def set_perf_profile(self, original: Any) -> Any:
        def set_perf_profile(device: Device, name: str, **options: Any) -> None:
            original(device, name, **options)
            told = self._saver.options(options)
            self._saver.write(cs.SetPerfProfile(device=self._device(device), name=name, options=told))

        return set_perf_profile

    def create_power_config(self, original: Any) -> Any:
        def create_power_config(device: Device, core: int = 0) -> PowerConfig:
            made: PowerConfig = original(device, core)
            owner, number = self._device(device), self._saver.name(made)
            self._saver.write(cs.PowerConfigCreate(device=owner, power=number, core=made.core))
            return made

        return create_power_config

    def vote(self, original: Any) -> Any:
        def vote(power: PowerConfig, *args: Any, **votes: Any) -> None:
            """``set``, or ``set_perf_profile``, which also has the profile's name."""
            _, error = _tried(lambda: original(power, *args, **votes))
            number = self._saver.number(power)
            if number is not None:
                told, profile = self._saver.options(votes), str(args[0]) if args else ""
                self._saver.write(cs.SetPowerVotes(power=number, votes=told, profile=profile, error=_name(error)))
            if error is not None:
                raise error

        return vote

    def create_signal(self, original: Any) -> Any:
        def create_signal(backend: Backend, *args: Any, **options: Any) -> Signal:
            made: Signal = original(backend, *args, **options)
            owner, number = self._backend(backend), self._saver.name(made)
            self._saver.rename(made._interrupt, number)
            self._saver.write(cs.SignalCreate(backend=owner, signal=number, timeout_us=made.timeout_us))
            return made

        return create_signal

    def trigger(self, original: Any) -> Any:
        def trigger(signal: Signal) -> None:
            number = self._saver.number(signal)
            if number is not None:  # before what it ends
                self._saver.write(cs.SignalTrigger(signal=number))
            original(signal)

        return trigger

    def create_profile(self, original: Any) -> Any:
        def create_profile(backend: Backend, *args: Any, **options: Any) -> Profile:
            made: Profile = original(backend, *args, **options)
            owner, number = self._backend(backend), self._saver.name(made)
            self._saver.rename(made._sheet, number)
            level = options.pop("level", args[0] if args else made.level)
            told = self._saver.options({"level": level, **options})
            self._saver.write(
                cs.ProfileCreate(backend=owner, profile=number, level=str(told.pop("level")), options=told)
            )
            return made

        return create_profile

    def _carried(self, profile: Any, signal: Any) -> dict[str, Any]:
        found = {"profile": profile, "signal": signal}
        return {name: self._saver.number(thing) for name, thing in found.items() if thing is not None}

    def get_binary(self, original: Any) -> Any:
        def get_binary(context: Context) -> Any:
            made, error = _tried(lambda: original(context))
            number = self._saver.number(context)
            if number is not None:
                self._saver.write(cs.GetBinary(context=number, nbytes=len(made or b""), error=_name(error)))
            return _given(made, error)

        return get_binary

    def free(self, original: Any) -> Any:
        def free(thing: Any, **options: Any) -> None:
            number = self._saver.number(thing)
            original(thing, **options)
            if number is not None:  # after what went with it
                self._saver.write(cs.Free(object=number))

        return free

    def noted(self, name: str) -> Any:
        def made(original: Any) -> Any:
            def call(*args: Any, **options: Any) -> Any:
                found = original(*args, **options)
                self._saver.write(cs.EntryCall(name=name))
                return found

            return call

        return made


_ENDS = ("inputs", "outputs")


class _Lost:
    """Stands for an object that could not be made: it has a number all the same."""


def _given(made: Any, error: QnnError | None) -> Any:
    if error is not None:
        raise error
    return made


def seams_of(saver: Saver) -> list[Seam]:
    """All methods that are led through a saver."""
    to = _Between(saver)
    return [
        Seam(Backend, "create_device", to.create_device),
        Seam(Backend, "create_signal", to.create_signal),
        Seam(Backend, "create_profile", to.create_profile),
        Seam(Backend, "create_log", to.noted("logCreate")),
        Seam(Backend, "free", to.free),
        Seam(Backend, "has_capability", to.noted("propertyHasCapability")),
        Seam(Signal, "trigger", to.trigger),
        Seam(Signal, "free", to.free),
        Seam(Profile, "free", to.free),
        Seam(PowerConfig, "set", to.vote),
        Seam(PowerConfig, "set_perf_profile", to.vote),
        Seam(PowerConfig, "destroy", to.free),
        Seam(Device, "create_power_config", to.create_power_config),
        Seam(Device, "validate_binary", to.noted("contextValidateBinary")),
        Seam(Context, "get_binary_section", to.noted("contextGetBinarySection")),
        Seam(Device, "create_context", to.create_context),
        Seam(Device, "_restore_context", to.restore_context),
        Seam(Device, "set_perf_profile", to.set_perf_profile),
        Seam(Device, "free", to.free),
        Seam(Context, "create_graph", to.create_graph),
        Seam(Context, "set_config", to.set_config),
        Seam(Context, "apply_binary_section", to.apply_section),
        Seam(Context, "register_memory", to.register_memory),
        Seam(Context, "get_binary", to.get_binary),
        Seam(Context, "free", to.free),
        Seam(Mem, "deregister", to.free),
        Seam(Mem, "free", to.free),
        Seam(Graph, "_compose", to.compose),
        Seam(Graph, "add_tensor", to.add_tensor),
        Seam(Graph, "add_node", to.add_node),
        Seam(Graph, "finalize", to.finalize),
        Seam(Graph, "set_config", to.set_config),
        Seam(Graph, "_enqueue", to.enqueue),
        Seam(Execution, "_outcome", to.outcome),
    ]
