"""A graph on the device: its number there, the needs of its calls, its packed form, and its exchanged data."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy.typing as npt

from openhtp.core import status as st
from openhtp.core.enumerations import Priority
from openhtp.core.errors import UnsupportedFeature, WrongState
from openhtp.core.quant import Encoding
from openhtp.core.tensor import TensorSpec
from openhtp.options import OptionValues as Options
from openhtp.program.binary import BinaryInfo, pack_graphs
from openhtp.program.packed import PackedGraph, pack_program
from openhtp.program.qnn_program import QnnProgram
from openhtp.rpc import messages as ms
from openhtp.rpc.shm import SharedBuffer, unchangeable_whole
from openhtp.runtime.calls.arguments import Ports
from openhtp.runtime.calls.callee import Bindings, Callee
from openhtp.runtime.objects.modelled import Modelled

if TYPE_CHECKING:
    from openhtp.runtime.calls.long_call import CallStop
    from openhtp.runtime.objects.open_context import OpenContext
    from openhtp.runtime.objects.tensor import Tensor

Arrays = dict[str, npt.NDArray[Any]]


class LoadedGraph:
    """Made from the device's answer. ``program`` is given where the graph was compiled in this process."""

    def __init__(
        self,
        context: OpenContext,
        packed: PackedGraph,
        ready: ms.ReadyGraph,
        *,
        tensors: Mapping[str, Tensor],
        options: Options,
        program: QnnProgram | None = None,
    ) -> None:
        info = packed.info()
        self.context = context
        self.packed = packed
        self.number = ready.graph
        self.steps = ready.steps
        self.was_prepared = ready.prepared
        self._program = program
        # Data and encodings of updateable tensors that were applied last; none if the graph came with them.
        self._updates: Arrays = {}
        self._encodings: dict[str, Encoding] = {}
        ports = Ports([*info.inputs, *info.outputs], len(info.inputs), tensors)
        if ports.is_dynamic:
            self.program()  # now rather than during the first execution
        self.callee = Callee(
            name=packed.name,
            number=self.number,
            ports=ports,
            bindings=Bindings(context.memory, ports, lambda sizes: self.program().infer_dims(sizes)),
            hvx_threads=options.hvx_threads or 0,
            places=context.places,
            link=context.link,
            notifier=context.device.backend.notifier,
            modelled=self._modelled(options),
        )

    def program(self) -> QnnProgram:
        """The program that was loaded."""
        if self._program is None:
            self._program = self.packed.program()
        return self._program

    # Options

    def set_priority(self, level: Priority) -> None:
        """Have the device run it with another urgency."""
        self.context.link.request(ms.SetPriority(graph=self.number, priority=int(level)))

    def set_threads(self, hvx_threads: int) -> None:
        """Have the device reserve other HVX threads than the graph was loaded with."""
        self.context.link.request(ms.SetHvxThreads(graph=self.number, hvx_threads=hvx_threads))

    def adopt_options(self, options: Options) -> None:
        """Use these options for later calls and their profiles; the device has agreed to them."""
        self.callee.hvx_threads, self.callee.modelled = options.hvx_threads or 0, self._modelled(options)

    def _modelled(self, options: Options) -> Modelled | None:
        """The model of the chip for profiles; None if the vendor's library is the device."""
        device = self.context.device
        if device.backend.library is not None:
            return None
        return Modelled(self.packed, self._program, options, device.soc, self.steps, options.core)

    # Updateable tensors

    def updateables(self) -> list[TensorSpec]:
        """Tensors whose data or encodings can be exchanged. Refuses a graph that has none."""
        specs = list(self.packed.info().updateables)
        if not specs:
            raise UnsupportedFeature(
                f"graph {self.packed.name!r} has no updateable tensors; add them with kind='updateable_static' or"
                " another updateable kind",
                st.QNN_CONTEXT_ERROR_UNSUPPORTED_FEATURE,
            )
        return specs

    def data(self) -> Arrays:
        """Data of the updateable tensors as it is now. Raises WrongState if it is nowhere."""
        if not self._updates and self.packed.foreign_updates:
            raise WrongState(
                f"the binary of graph {self.packed.name!r} has no data of its updateable tensors: with LoRA weight"
                " sharing it has that of the largest graph alone; apply a section to the graph first",
                st.QNN_CONTEXT_ERROR_INVALID_ARGUMENT,
            )
        return self._updates or self.packed.updateable_data()

    def encodings(self) -> dict[str, Encoding]:
        """Encodings as they are now, of all updateable tensors that have one."""
        return self._encodings or {spec.name: spec.quant for spec in self.updateables() if spec.quant is not None}

    def exchange_data(self, section: bytes, data: Arrays, stop: CallStop | None) -> None:
        """Have later executions use other data; ``section`` has it in the device's form."""
        if not data:
            return
        with contextlib.closing(SharedBuffer.holding([section])) as buffer:
            # The checksum was checked here; shared memory cannot be damaged on the way.
            request = ms.UpdateGraph(graph=self.number, nbytes=buffer.nbytes, validate=False)
            self.context.link.request(request, (buffer.fd,), stop=stop)
        self._updates = data

    def exchange_encodings(self, encodings: dict[str, Encoding], data: Arrays, stop: CallStop | None) -> None:
        """Have the device compile the program with other encodings, and run it from now on."""
        whole, whole_data = {**self.encodings(), **encodings}, data or self.data()

        def packed() -> list[bytes | memoryview]:
            program = self.program().updated(whole, whole_data)
            return pack_graphs([pack_program(program)[0]], BinaryInfo())

        with contextlib.closing(unchangeable_whole(packed() if stop is None else stop.run(packed))) as memory:
            request = ms.ReplaceProgram(graph=self.number)
            reply = self.context.link.request(request, (memory.number,), stop=stop)
        self.steps = reply.graphs[0].steps
        self._encodings = whole
        self._updates = data or self._updates
