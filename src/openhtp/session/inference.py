"""The session: a model, compiled and ready, with the methods of ``onnxruntime.InferenceSession``."""

from __future__ import annotations

import dataclasses
import functools
import logging
import time
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy.typing as npt
from onnx import ModelProto

from openhtp.config import Source, as_config
from openhtp.core import tidying
from openhtp.core.checks import shown
from openhtp.core.errors import Aborted, BadModel, InvalidArgument, QnnError, UnsupportedError
from openhtp.engine.onnxruntime import onnxruntime
from openhtp.frontend.fixing import Dims, Freeze, check_dims
from openhtp.frontend.onnx_reader import ModelSource, check_path, model_bytes, with_constants
from openhtp.hw.catalog import find_soc
from openhtp.runtime.calls.queue import check_depth
from openhtp.runtime.instruments.instrument import hooked
from openhtp.runtime.objects.argument_checks import check_callable, check_name
from openhtp.runtime.objects.modelled import StepOps
from openhtp.runtime.objects.op_packages import PackageSource
from openhtp.session.ep_devices import (
    OrtEpAssignedSubgraph,
    OrtEpDevice,
    assigned_subgraphs,
    ep_device,
    host_memory,
)
from openhtp.session.executable import AssignedPart, Executable, ModelMetadata, NodeArg, Results, RunCall
from openhtp.session.hosts import lend_packages
from openhtp.session.in_parts import load_in_parts
from openhtp.session.on_cpu import CpuExecutable, write_optimized
from openhtp.session.on_htp import load_on_htp
from openhtp.session.options import CHECK_RANGE, CPU, QNN, SessionRequest, config_entries, read_providers, soc_of
from openhtp.session.ort_errors import WrongKind, as_ort_error, with_ort_errors
from openhtp.session.pending import Carrier, PendingRun
from openhtp.session.power import SessionPower
from openhtp.session.profiling import SessionRecorder
from openhtp.session.range_check import RangeWatch
from openhtp.session.session_options import apply_adapters, constants_of
from openhtp.session.values import (
    IOBinding,
    OrtValue,
    check_vector,
    fed_arrays,
    feeds_of,
    is_binding_of,
    move_to,
    output_names,
    take_results,
    targets_of,
)

log = logging.getLogger(__name__)

Callback = Callable[[Results, Any, str], object]


@hooked(_run="session_run", _queue="session_queue")
class InferenceSession:
    """A model on the emulated HTP, with ONNX Runtime's methods and the QNN provider's options.

    ``soc`` is the chip to emulate (or give the provider option ``soc_model``); ``dims`` fixes dimensions that the
    model leaves open (so do ONNX Runtime's free dimension overrides in ``sess_options``), ``freeze`` makes inputs
    constants (``{"sr": 16000}``); ``device_name`` joins the device that processes share under this name;
    ``queue_depth`` bounds the runs that ``run_async`` has under way; ``backend_config`` is a backend extensions
    config (a file, or its content); ``op_packages`` are packages of one's own, whose names are domains of the
    model's nodes (``docs/op-packages.md``). Sessions on one chip share a device, unless ``transport`` is
    ``inprocess``.

    Examples:
        >>> from openhtp import zoo
        >>> session = InferenceSession(zoo.tiny_mlp(), transport="inprocess")
        >>> [output.shape for output in session.get_outputs()]
        [[1, 10]]
    """

    @with_ort_errors
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
        op_packages: Sequence[PackageSource] = (),
    ) -> None:
        content = model_bytes(path_or_bytes) if isinstance(path_or_bytes, ModelProto) else path_or_bytes
        source = bytes(content) if isinstance(content, bytes | bytearray | memoryview) else check_path(content)
        if sess_options is not None and not isinstance(sess_options, onnxruntime.SessionOptions):
            raise WrongKind(f"sess_options is {shown(sess_options)}; expected onnxruntime.SessionOptions")
        sess_options = sess_options or onnxruntime.SessionOptions()
        names, options = read_providers(providers, provider_options)
        config = as_config(backend_config)
        self._soc = None if soc is None else find_soc(soc).name
        self._carrier = Carrier()
        constants = constants_of(sess_options)
        if constants and QNN in names:
            source = with_constants(source, constants.tensors, constants.files)
        self._give_back = weakref.finalize(self, lend_packages(options.library, op_packages))
        self._start(
            SessionRequest(
                source=source,
                sess_options=sess_options,
                options=options,
                entries=config_entries(sess_options),
                soc=self._soc or options.soc or soc_of(config),
                dims=check_dims(dims),
                freeze=freeze,
                queue_depth=None if queue_depth is None else check_depth(queue_depth),
                transport=check_name(transport, "transport"),
                device_name=None if device_name is None else check_name(device_name, "device"),
                config=config,
            ),
            names,
        )

    def _start(self, request: SessionRequest, names: list[str]) -> None:
        """Load the model; if that succeeds, the session runs the model that was loaded."""
        begin_ns = time.monotonic_ns()
        with SessionPower(request, wanted=QNN in names).kept(self) as power:
            executable = _load(request, names, power)
            recorder = SessionRecorder(request, executable)
            try:
                recorder.begin(begin_ns)
                write_optimized(request, executable)
            except BaseException:
                recorder.end()
                executable.close()
                raise
        # If nobody closes the session, its files are written soon after it is gone, as ONNX Runtime does.
        weakref.finalize(self, tidying.post, (recorder.opened.close, ())).atexit = False
        if executable.stay is not None:
            weakref.finalize(self, executable.stay.leave)
        self._request, self._executable, self._power, self._recorder = request, executable, power, recorder
        self._providers = list(dict.fromkeys((*names, CPU))) if any(executable.graphs) else [CPU]
        self._watch = RangeWatch.off()
        if executable.half_precision:
            first_run = {"0": False, "1": True}.get(request.entries.get(CHECK_RANGE, ""))
            self._watch = RangeWatch(request.source, request.dims, request.freeze, first_run=first_run)

    @property
    def executable(self) -> Executable:
        """The loaded model: on the HTP, in parts, or on the CPU."""
        return self._executable

    def get_partition(self) -> list[AssignedPart]:
        """Which nodes run together, where, and why those on the CPU are not on the HTP; in running order."""
        return self._executable.assigned

    def get_steps(self) -> list[list[StepOps]]:
        """Names and types of the nodes that each step of a profile computes, for every part; empty on the CPU."""
        return self._recorder.step_ops

    @with_ort_errors
    def get_provider_graph_assignment_info(self) -> list[OrtEpAssignedSubgraph]:
        """ONNX Runtime's words for ``get_partition``; the session options must ask for it."""
        return assigned_subgraphs(self._request.sess_options, self._executable.assigned)

    def get_input_epdevices(self) -> list[OrtEpDevice]:
        """The device that each input goes to."""
        return [ep_device(self._providers[0]) for _ in self._executable.inputs]

    @with_ort_errors
    def set_providers(
        self,
        providers: Sequence[str | tuple[str, Mapping[str, Any]]] | None = None,
        provider_options: Sequence[Mapping[str, Any]] | None = None,
    ) -> None:
        """Load the model anew with other providers or options. If that fails, the session stays as it was."""
        names, options = read_providers(providers, provider_options)
        soc = self._soc or options.soc or soc_of(self._request.config)
        close_previous = functools.partial(_close, self._power, self._executable, self._recorder)
        self._start(dataclasses.replace(self._request, options=options, soc=soc), names)
        close_previous()

    # Looking

    def get_inputs(self) -> list[NodeArg]:
        """The inputs of ``run``."""
        return list(self._executable.inputs)

    def get_outputs(self) -> list[NodeArg]:
        """The outputs of ``run``."""
        return list(self._executable.outputs)

    def get_input_memory_infos(self) -> list[Any]:
        """The memory that each input is read from: the program's own, which values may share with the device."""
        return [host_memory() for _ in self._executable.inputs]

    def get_output_memory_infos(self) -> list[Any]:
        """The memory that each output is written to."""
        return [host_memory() for _ in self._executable.outputs]

    def get_overridable_initializers(self) -> list[NodeArg]:
        """An empty list: constants are compiled in."""
        return []

    def get_providers(self) -> list[str]:
        """The providers of this session; only the CPU's if the model fell back to it."""
        return list(self._providers)

    def get_provider_options(self) -> dict[str, dict[str, str]]:
        """Options of each provider, as given or by default."""
        own = {QNN: dict(self._request.options.text), CPU: {}}
        return {name: own[name] for name in self._providers}

    def get_session_options(self) -> onnxruntime.SessionOptions:
        """The session options that it was made with."""
        return self._request.sess_options

    def get_modelmeta(self) -> ModelMetadata:
        """The file's description of itself."""
        return self._executable.metadata

    # Running

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, npt.ArrayLike],
        run_options: Any = None,
    ) -> Results:
        """Run once; returns the named outputs, or all."""
        try:
            if run_options is not None:
                check_run_options(run_options)
            names, feeds = self._executable.checked(output_names, input_feed)
            results = self._run(RunCall(names=names, feeds=feeds, run_options=run_options, targets={}))
        except QnnError as error:
            as_ort_error(error)
            raise
        self._watch.look(input_feed, names, results)
        return results

    @with_ort_errors
    def run_async(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, npt.ArrayLike],
        callback: Callback | None = None,
        user_data: Any = None,
        run_options: Any = None,
    ) -> PendingRun:
        """Queue one run and return; ``callback(results, user_data, error)`` is called once when it is over.

        ``error`` is empty if all went well; otherwise the results are an empty list. The returned object is a
        future and can be awaited. Blocks only while the queue is full, and never where an event loop runs.
        """
        check_callable("callback", callback, "(results, user_data, error)")
        check_run_options(run_options)
        names, feeds = self._executable.checked(output_names, input_feed)
        pending = self._queue(RunCall(names=names, feeds=feeds, run_options=run_options, targets={}))
        self._watch.follow(pending, input_feed, names)
        if callback is not None:
            pending.add_done_callback(lambda run: _notify(run, callback, user_data, input_feed))
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

    @with_ort_errors
    def run_with_ortvaluevector(
        self,
        run_options: Any,
        feed_names: Sequence[str],
        feeds: Any,
        fetch_names: Sequence[str],
        fetches: Any,
        fetch_devices: Any = None,
    ) -> None:
        """Run once on ONNX Runtime's own values, and put those of the outputs into ``fetches``."""
        check_vector("fetches", fetches)
        arrays = fed_arrays(feed_names, feeds)
        for result in self.run(fetch_names, arrays, run_options):
            fetches.push_back(OrtValue(result)._get_c_value())

    def io_binding(self) -> IOBinding:
        """Inputs and outputs to be named once, for ``run_with_iobinding``."""
        return IOBinding(self)

    @with_ort_errors
    def run_with_iobinding(self, iobinding: IOBinding, run_options: Any = None) -> None:
        """Run once on the bound values. Values in registered memory are read and written where they lie."""
        check_run_options(run_options)
        if not is_binding_of(iobinding, self):
            raise InvalidArgument(
                f"iobinding is {shown(iobinding)}; expected one that io_binding() of this session made"
            )
        names, feeds = self._executable.checked(output_names(iobinding), feeds_of(iobinding))
        targets = targets_of(iobinding, self._executable)
        results = self._run(RunCall(names=names, feeds=feeds, run_options=run_options, targets=targets))
        take_results(iobinding, dict(zip(names, results, strict=True)))

    @with_ort_errors
    def create_ortvalue_from_shape_and_type(
        self, shape: Sequence[int], element_type: Any, device_type: str = "npu", device_id: int = 0
    ) -> OrtValue:
        """A tensor of zeros in memory that this session's device reads and writes itself."""
        value = OrtValue.ortvalue_from_shape_and_type(shape, element_type, device_type, device_id)
        move_to(value, self._executable.value_context)
        return value

    def end_profiling(self) -> str:
        """Close the profile; returns the path of its file, empty if there is none."""
        return self._executable.end_profiling() or self._recorder.end()

    def get_profiling_start_time_ns(self) -> int:
        """When the times of the profile begin, on the clock of ``time.monotonic_ns``; 0 without one."""
        return self._recorder.start_ns

    def close(self) -> None:
        """Give back the graph and, with the last session, the device. Later runs raise."""
        _close(self._power, self._executable, self._recorder)
        self._give_back()

    def __enter__(self) -> InferenceSession:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<InferenceSession {self._executable}>"

    def _run(self, call: RunCall) -> Results:
        """Run once and wait."""
        if call.run_options is not None:
            apply_adapters(call.run_options, self._executable.graphs)
        return self._executable.run(call)

    def _queue(self, call: RunCall) -> PendingRun:
        """Put a run into the queue."""
        if call.run_options is not None:
            apply_adapters(call.run_options, self._executable.graphs)
        return self._executable.queue(call, self._carrier)


def _load(request: SessionRequest, names: Sequence[str], power: SessionPower) -> Executable:
    """The model on an HTP, otherwise in parts, otherwise on the CPU."""
    if QNN not in names:
        return CpuExecutable(request, htp_wanted=False)
    try:
        return load_on_htp(request, power)
    except UnsupportedError as error:
        refusal = error
    try:
        parts = load_in_parts(request, refusal, power)
        if parts is not None:
            return parts
        log.warning("the HTP cannot take this model, so all of it runs on the CPU: %s", refusal)
        return CpuExecutable(request, htp_wanted=True)
    except BadModel as error:
        raise BadModel(f"the HTP cannot take the model ({refusal.message}), and {error.message}") from error


def _close(power: SessionPower, executable: Executable, recorder: SessionRecorder) -> None:
    power.close()
    executable.close()
    recorder.end()


def check_run_options(run_options: object) -> None:
    """Refuse anything but run options, and run options that say to terminate."""
    if run_options is None:
        return
    if not isinstance(run_options, onnxruntime.RunOptions):
        raise WrongKind(f"run_options is {shown(run_options)}; expected onnxruntime.RunOptions, or None")
    if run_options.terminate:
        raise Aborted("the run was not begun: terminate is set in its run_options")


def _notify(run: PendingRun, callback: Callback, user_data: Any, _held: Mapping[str, Any]) -> None:
    """Call back. Until that has returned the inputs are held, as by ONNX Runtime, also if nobody else does."""
    error = run.exception()
    if error is not None:
        callback([], user_data, str(error))
    else:
        callback(run.result(), user_data, "")
