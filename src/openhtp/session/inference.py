"""The session: a model, compiled and ready, with the methods of ``onnxruntime.InferenceSession``."""

from __future__ import annotations

import dataclasses
import functools
import logging
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto

from openhtp.config import Source, as_config
from openhtp.core.checks import shown
from openhtp.core.errors import BadModel, InvalidArgument, UnsupportedError
from openhtp.engine.onnxruntime import onnxruntime
from openhtp.frontend.fixing import Dims, Freeze
from openhtp.frontend.given import check_dims, check_path
from openhtp.frontend.onnx_reader import ModelSource, model_bytes
from openhtp.frontend.partitioning import AssignedNode
from openhtp.frontend.probing import with_fixed_inputs
from openhtp.hw.catalog import find_soc
from openhtp.runtime.calls.execution import Outputs
from openhtp.runtime.calls.queue import check_depth
from openhtp.runtime.objects.argument_checks import check_callable, check_name
from openhtp.runtime.objects.step_names import StepOps
from openhtp.session import loading
from openhtp.session.assigned import AssignedPart
from openhtp.session.binding import IOBinding
from openhtp.session.cpu import cpu_session
from openhtp.session.feeding import arrays, check_run_options, checked_call, collected
from openhtp.session.free_dimensions import free_dimensions
from openhtp.session.metadata import ModelMetadata, NodeArg, metadata_of, node_args
from openhtp.session.options import CPU, QNN, read_providers
from openhtp.session.partition import PartitionedModel, in_parts, on_cpu
from openhtp.session.pending import CarriedRun, Carrier, PendingRun, Results
from openhtp.session.power import SessionPower
from openhtp.session.range_check import RangeWatch
from openhtp.session.recorder import Recorder
from openhtp.session.values import OrtValue

log = logging.getLogger(__name__)

Callback = Callable[[Results, Any, str], object]


class InferenceSession:
    """A model on the emulated HTP, with ONNX Runtime's methods and the QNN provider's options.

    ``soc`` is the chip to emulate (or give the provider option ``soc_model``); ``dims`` fixes dimensions that the
    model leaves open (so do ONNX Runtime's free dimension overrides in ``sess_options``), ``freeze`` makes inputs
    constants (``{"sr": 16000}``); ``device_name`` joins the device that processes share under this name;
    ``queue_depth`` bounds the runs that ``run_async`` has under way; ``backend_config`` is a backend extensions
    config (a file, or its content). Sessions on one chip share a device, unless ``transport`` is ``inprocess``.

    Examples:
        >>> from openhtp import zoo
        >>> session = InferenceSession(zoo.tiny_mlp(), transport="inprocess")
        >>> [output.shape for output in session.get_outputs()]
        [[1, 10]]
    """

    def __init__(
        self,
        path_or_bytes: ModelSource,
        sess_options: onnxruntime.SessionOptions | None = None,
        providers: Sequence[str | tuple[str, Mapping[str, Any]]] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
        *,
        soc: str | None = None,
        dims: Dims | None = None,
        freeze: Freeze | None = None,
        device_name: str | None = None,
        queue_depth: int | None = None,
        transport: str = "rpc",
        backend_config: Source | None = None,
    ) -> None:
        given = model_bytes(path_or_bytes) if isinstance(path_or_bytes, ModelProto) else path_or_bytes
        self._source = bytes(given) if isinstance(given, bytes | bytearray | memoryview) else check_path(given)
        if sess_options is not None and not isinstance(sess_options, onnxruntime.SessionOptions):
            raise InvalidArgument(f"sess_options is {shown(sess_options)}; expected onnxruntime.SessionOptions")
        self._sess_options = sess_options or onnxruntime.SessionOptions()
        names, options = read_providers(providers, provider_options)
        config = as_config(backend_config)
        self._soc = None if soc is None else find_soc(soc).name
        self._plan = loading.Plan(
            source=self._source,
            options=options,
            entries=loading.config_entries(self._sess_options),
            soc=self._soc or options.soc or loading.soc_of(config),
            threads=max(1, self._sess_options.intra_op_num_threads),
            dims=check_dims(dims),
            freeze=freeze,
            ask=functools.partial(free_dimensions, self._sess_options),
            queue_depth=None if queue_depth is None else check_depth(queue_depth),
            transport=check_name(transport, "transport"),
            device_name=None if device_name is None else check_name(device_name, "device"),
            config=config,
        )
        self._loaded: loading.Loaded | None = None
        self._fallback: Any = None
        self._recorder = Recorder(self._plan, self._sess_options)
        self._watch = RangeWatch.off()
        self._carrier = Carrier()
        self._power = SessionPower(self._plan, wanted=False)
        self._start(self._plan, names)

    def _start(self, plan: loading.Plan, names: list[str]) -> None:
        """Load the model and, if that went well, become the session of what was loaded."""
        recorder = Recorder(plan, self._sess_options)
        with SessionPower(plan, wanted=QNN in names).kept(self) as power:
            loaded, fallback, used = self._load(plan, names)
        self._stop()
        self._power = power
        self._plan, self._options, self._providers = plan, plan.options, used
        self._loaded, self._fallback, self._wants_htp = loaded, fallback, QNN in names
        if isinstance(fallback, PartitionedModel):
            weakref.finalize(self, fallback.leave)
        recorder.start(fallback if isinstance(fallback, PartitionedModel) else loaded)
        self._recorder, self._watch = recorder, RangeWatch.off()
        if loaded is None:
            return
        weakref.finalize(self, loaded.stay.leave)
        # Only an HTP computes floats in half precision.
        if plan.options.backend == "htp":
            first_run = {"0": False, "1": True}.get(plan.entries.get(loading.CHECK_RANGE, ""))
            self._watch = RangeWatch(plan.source, plan.dims, plan.freeze, first_run=first_run)

    def _load(self, plan: loading.Plan, names: list[str]) -> tuple[loading.Loaded | None, Any, list[str]]:
        """The model on an HTP, or else what runs it instead, and the providers that are used."""
        refusal: UnsupportedError | None = None
        if QNN in names:
            try:
                return loading.load(plan), None, names if CPU in names else [*names, CPU]
            except UnsupportedError as error:
                parts = in_parts(plan, error, self._sess_options)
                if parts is not None:
                    return None, parts, names if CPU in names else [*names, CPU]
                log.warning("the HTP cannot take this model, so all of it runs on the CPU: %s", error)
                refusal = error
        source = self._source
        if plan.dims or plan.freeze:
            source = with_fixed_inputs(source, plan.dims, plan.freeze, may_stay_open=True)
        try:
            return None, cpu_session(onnxruntime.InferenceSession, source, self._sess_options), [CPU]
        except BadModel as error:
            if refusal is None:
                raise
            raise BadModel(f"the HTP cannot take the model ({refusal.message}), and {error.message}") from error

    def get_partition(self) -> list[AssignedPart]:
        """Which nodes run together, where, and why those on the CPU are not on the HTP; in running order."""
        if isinstance(self._fallback, PartitionedModel):
            return list(self._fallback.assigned)
        if self._loaded is not None:
            nodes = tuple(AssignedNode(node.name, node.op_type) for node in self._loaded.model.nodes)
            return [AssignedPart(QNN, nodes)]
        return [AssignedPart(CPU, on_cpu(self._plan, wanted=self._wants_htp))]

    def get_steps(self) -> list[list[StepOps]]:
        """Names and types of the nodes that each step of a profile computes, for every part; empty on the CPU."""
        return self._recorder.step_ops

    def set_providers(
        self,
        providers: Sequence[str | tuple[str, Mapping[str, Any]]] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Load the model anew with other providers or options. If that fails, the session stays as it was."""
        names, options = read_providers(providers, provider_options)
        soc = self._soc or options.soc or loading.soc_of(self._plan.config)
        self._start(dataclasses.replace(self._plan, options=options, soc=soc), names)

    # Looking

    def get_inputs(self) -> list[NodeArg]:
        """What ``run`` takes."""
        if self._loaded is None:
            return [NodeArg(item.name, item.type, list(item.shape)) for item in self._fallback.get_inputs()]
        return node_args(self._loaded.inputs)

    def get_outputs(self) -> list[NodeArg]:
        """What ``run`` returns."""
        if self._loaded is None:
            return [NodeArg(item.name, item.type, list(item.shape)) for item in self._fallback.get_outputs()]
        return node_args(self._loaded.outputs)

    def get_overridable_initializers(self) -> list[NodeArg]:
        """None: constants are compiled in."""
        return []

    def get_providers(self) -> list[str]:
        """The providers of this session; only the CPU's if the model fell back to it."""
        return list(self._providers)

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Options of each provider, as given or by default."""
        own = {QNN: dict(self._options.text), CPU: {}}
        return {name: own[name] for name in self._providers}

    def get_session_options(self) -> onnxruntime.SessionOptions:
        """The session options that it was made with."""
        return self._sess_options

    def get_modelmeta(self) -> ModelMetadata:
        """What the file says about itself."""
        if self._loaded is None:
            meta = self._fallback.get_modelmeta()
            return ModelMetadata(**{name: getattr(meta, name) for name in ModelMetadata.__slots__})
        return metadata_of(self._loaded.model)

    # Running

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, npt.ArrayLike],
        run_options: Any = None,
    ) -> Results:
        """Run once; returns the named outputs, or all."""
        check_run_options(run_options)
        if self._loaded is None:
            return self._run_fallback(output_names, arrays(input_feed), run_options, self._recorder.profile())
        names, feeds = checked_call(self._loaded, output_names, input_feed)
        with self._power.during(run_options):
            results = collected(self._loaded, names, self._execute(self._loaded, feeds, None))
        self._watch.look(input_feed, names, results)
        return results

    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, npt.ArrayLike],
        callback: Callback | None = None,
        user_data: Any = None,
        run_options: Any = None,
    ) -> PendingRun:
        """Queue one run and return; ``callback(results, user_data, error)`` is called once when it is over.

        ``error`` is empty if all went well, else the results are an empty list. The returned object is a future
        and can be awaited. Blocks only while the queue is full, and never where an event loop runs.
        """
        check_callable("callback", callback, "(results, user_data, error)")
        check_run_options(run_options)
        loaded, profile = self._loaded, self._recorder.profile()
        begin = time.monotonic_ns()
        if loaded is None:
            carried = CarriedRun(profile)
            feeds = {name: np.array(array) for name, array in arrays(input_feed).items()}
            self._carrier.compute(
                carried, lambda: self._run_fallback(output_names, feeds, run_options, carried.profile)
            )
            profile = None  # noted there
            pending: PendingRun = carried
        else:
            names, feeds = checked_call(loaded, output_names, input_feed)
            collect = functools.partial(collected, loaded, names)
            pending = self._power.queued(run_options, self._carrier.queue, loaded.graph, feeds, collect, profile)
            self._watch.follow(pending, input_feed, names)
        if callback is not None or profile is not None:
            pending.add_done_callback(lambda run: self._notified(run, callback, user_data, profile, begin))
        return pending

    def run_with_ort_values(
        self,
        output_names: Sequence[str] | None,
        input_dict_ort_values: Mapping[str, OrtValue],
        run_options: Any = None,
    ) -> list[OrtValue]:
        """Run once on values; returns values. Inputs that lie on the device's memory are not copied."""
        results = self.run(output_names, input_dict_ort_values, run_options)
        return [OrtValue(result) for result in results]

    def io_binding(self) -> IOBinding:
        """Inputs and outputs to be named once, for ``run_with_iobinding``."""
        return IOBinding(self)

    def run_with_iobinding(self, iobinding: IOBinding, run_options: Any = None) -> None:
        """Run once on what is bound. What lies in registered memory is read and written where it is."""
        check_run_options(run_options)
        if not isinstance(iobinding, IOBinding) or iobinding._session is not self:
            raise InvalidArgument(
                f"iobinding is {shown(iobinding)}; expected what io_binding() of this session made"
            )
        if self._loaded is None:
            names = list(iobinding._outputs)
            iobinding._store(dict(zip(names, self.run(names, iobinding._feeds()), strict=True)))
            return
        iobinding._make_room(self._loaded)
        names, feeds = checked_call(self._loaded, list(iobinding._outputs), iobinding._feeds())
        in_place = iobinding._in_place(self._loaded)
        with self._power.during(run_options):
            found = self._execute(self._loaded, feeds, in_place)
        rest = [name for name in names if name not in in_place]
        iobinding._store(dict(zip(rest, collected(self._loaded, rest, found), strict=True)))

    def create_ortvalue_from_shape_and_type(
        self, shape: Sequence[int], element_type: Any, device_type: str = "npu", device_id: int = 0
    ) -> OrtValue:
        """A tensor of zeros in memory that this session's device reads and writes itself."""
        value = OrtValue.ortvalue_from_shape_and_type(shape, element_type, device_type, device_id)
        self._make_reachable(value)
        return value

    def end_profiling(self) -> str:
        """Close the profile; returns the path of its file, empty if there is none."""
        if self._loaded is None and not isinstance(self._fallback, PartitionedModel):
            return str(self._fallback.end_profiling())
        return self._recorder.end()

    def get_profiling_start_time_ns(self) -> int:
        """When the times of the profile begin, on the clock of ``time.monotonic_ns``; 0 without one."""
        return self._recorder.start_ns

    def close(self) -> None:
        """Give the graph and, with its last session, the device back. Later runs raise."""
        self._stop()

    def _stop(self) -> None:
        self._power.close()
        if self._loaded is not None:
            self._loaded.stay.end()
            self._loaded = loading.closed(self._loaded)
        elif isinstance(self._fallback, PartitionedModel):
            self._fallback.close()
        self._recorder.end()

    def __enter__(self) -> InferenceSession:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        if isinstance(self._fallback, PartitionedModel):
            return f"<InferenceSession on {self._plan.soc} and the CPU, in {len(self._fallback.assigned)} parts>"
        if self._loaded is None:
            return "<InferenceSession on the CPU>"
        loaded = self._loaded
        state = "closed" if loaded.is_closed else "ready"
        return f"<InferenceSession {loaded.model.name!r} on {loaded.device.soc}, {state}>"

    def _run_fallback(
        self, output_names: Sequence[str] | None, feeds: Mapping[str, Any], run_options: Any, profile: Any
    ) -> Results:
        """Run what is not on an HTP as a whole: in parts, or by ONNX Runtime."""
        results: Results
        if not isinstance(self._fallback, PartitionedModel):
            results = self._fallback.run(output_names, feeds, run_options)
            return results
        begin = time.monotonic_ns()
        with self._power.during(run_options):
            results = self._fallback.run(output_names, feeds, run_options, profile)
        self._recorder.note(profile, begin)
        return results

    def _execute(self, loaded: loading.Loaded, feeds: Outputs, outputs: Outputs | None) -> Outputs:
        """Run once and wait."""
        profile, begin = self._recorder.profile(), time.monotonic_ns()
        if loaded.asynchronous:
            # As a queued run, so that it may come between queued ones: a graph takes one kind at a time.
            found = loaded.graph.execute_async(feeds or None, outputs, profile=profile).result()
        else:
            found = loaded.graph.execute(feeds or None, outputs, profile=profile)
        self._recorder.note(profile, begin)
        return found

    def _notified(
        self, run: PendingRun, callback: Callback | None, user_data: Any, profile: Any, begin_ns: int
    ) -> None:
        self._recorder.note(profile, begin_ns)
        if callback is None:
            return
        error = run.exception()
        if error is not None:
            callback([], user_data, str(error))
        else:
            callback(run.result(), user_data, "")

    def _make_reachable(self, value: OrtValue) -> None:
        """Have a value lie where the device can read and write it, if it may move."""
        if self._loaded is not None and not self._loaded.is_closed:
            value._move_to(self._loaded.context)
