"""The session: a model, compiled and ready, with the methods of ``onnxruntime.InferenceSession``."""

from __future__ import annotations

import functools
import logging
import weakref
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import ModelProto

from openhtp.core import status as st
from openhtp.core.checks import items_of, shown
from openhtp.core.errors import BadModel, InvalidArgument, UnsupportedError, WrongState
from openhtp.engine.onnxruntime import onnxruntime
from openhtp.frontend.fixing import Dims, Freeze
from openhtp.frontend.given import check_dims, check_path
from openhtp.frontend.model import ValueType
from openhtp.frontend.onnx_reader import ModelSource, model_bytes
from openhtp.frontend.probing import with_fixed_inputs
from openhtp.hw.catalog import find_soc
from openhtp.runtime.calls.execution import Outputs
from openhtp.runtime.calls.queue import check_depth
from openhtp.runtime.options import check_callable, check_name
from openhtp.session import loading
from openhtp.session.cpu import cpu_session
from openhtp.session.free_dimensions import free_dimensions
from openhtp.session.options import CPU, QNN, read_providers
from openhtp.session.pending import PendingRun, Results
from openhtp.session.profiling import ProfileFile
from openhtp.session.range_check import RangeWatch

log = logging.getLogger(__name__)

Callback = Callable[[Results, Any, str], object]


@dataclass(frozen=True, slots=True)
class NodeArg:
    """Name, type and shape of an input or output, in ONNX Runtime's words."""

    name: str
    type: str
    shape: list[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelMetadata:
    """What the file says about itself."""

    graph_name: str
    producer_name: str
    domain: str
    description: str
    graph_description: str
    version: int
    custom_metadata_map: dict[str, str]


class InferenceSession:
    """A model on the emulated HTP, with ONNX Runtime's methods and the QNN provider's options.

    ``soc`` is the chip to emulate (or give the provider option ``soc_model``); ``dims`` fixes dimensions that the
    model leaves open (so do ONNX Runtime's free dimension overrides in ``sess_options``), ``freeze`` makes inputs
    constants (``{"sr": 16000}``); ``queue_depth`` bounds the runs that ``run_async`` has under way;
    ``transport="inprocess"`` keeps the device in this process, for debugging. Sessions on the same chip share one
    device process.

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
        queue_depth: int = 10,
        transport: str = "rpc",
        **kwargs: Any,
    ) -> None:
        for name in kwargs:
            log.warning("argument %r has no effect here", name)
        given = model_bytes(path_or_bytes) if isinstance(path_or_bytes, ModelProto) else path_or_bytes
        self._source = given if isinstance(given, bytes) else check_path(given)
        if sess_options is not None and not isinstance(sess_options, onnxruntime.SessionOptions):
            raise InvalidArgument(f"sess_options is {shown(sess_options)}; expected onnxruntime.SessionOptions")
        self._sess_options = sess_options or onnxruntime.SessionOptions()
        names, self._options = read_providers(providers, provider_options)
        entries = loading.config_entries(self._sess_options)
        self._cpu: Any = None
        self._profile_file: ProfileFile | None = None
        self._providers = names if CPU in names else [*names, CPU]
        plan = loading.Plan(
            source=self._source,
            options=self._options,
            entries=entries,
            soc=find_soc(soc).name if soc is not None else self._options.soc or "SM8650",
            threads=max(1, self._sess_options.intra_op_num_threads),
            dims=check_dims(dims),
            freeze=freeze,
            ask=functools.partial(free_dimensions, self._sess_options),
            queue_depth=check_depth(queue_depth),
            transport=check_name(transport, "transport"),
        )
        self._loaded = self._load(plan, names, may_fall_back=entries.get("session.disable_cpu_ep_fallback") != "1")
        self._watch: RangeWatch | None = None
        if self._loaded is not None:
            # Only an HTP computes floats in half precision.
            if self._options.backend == "htp":
                at_once = entries.get(loading.CHECK_RANGE) == "1"
                self._watch = RangeWatch(self._source, dims, freeze, at_once=at_once)
            self._closer = weakref.finalize(self, loading.unload, self._loaded)
            level = self._options["profiling_level"]
            if level != "off" and self._options["profiling_file_path"]:
                self._profile_file = ProfileFile(self._options["profiling_file_path"])

    def _load(self, plan: loading.Plan, names: list[str], *, may_fall_back: bool) -> loading.Loaded | None:
        refusal: UnsupportedError | None = None
        if QNN in names:
            try:
                return loading.load(plan)
            except UnsupportedError as error:
                if not may_fall_back:
                    raise
                log.warning("the HTP cannot take this model, so all of it runs on the CPU: %s", error)
                refusal = error
        self._providers = [CPU]
        source = self._source
        if plan.dims or plan.freeze:
            source = with_fixed_inputs(source, plan.dims, plan.freeze, may_stay_open=True)
        try:
            self._cpu = cpu_session(onnxruntime.InferenceSession, source, self._sess_options)
        except BadModel as error:
            if refusal is None:
                raise
            raise BadModel(f"the HTP cannot take the model ({refusal.message}), and {error.message}") from error
        return None

    # Looking

    def get_inputs(self) -> list[NodeArg]:
        """What ``run`` takes."""
        if self._loaded is None:
            return [NodeArg(item.name, item.type, list(item.shape)) for item in self._cpu.get_inputs()]
        return _node_args(self._loaded.inputs)

    def get_outputs(self) -> list[NodeArg]:
        """What ``run`` returns."""
        if self._loaded is None:
            return [NodeArg(item.name, item.type, list(item.shape)) for item in self._cpu.get_outputs()]
        return _node_args(self._loaded.outputs)

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
            meta = self._cpu.get_modelmeta()
            return ModelMetadata(**{name: getattr(meta, name) for name in ModelMetadata.__slots__})
        model = self._loaded.model
        return ModelMetadata(
            graph_name=model.name,
            producer_name=model.producer,
            domain=model.domain,
            description=model.description,
            graph_description="",
            version=model.version,
            custom_metadata_map=dict(model.metadata),
        )

    # Running

    def run(
        self,
        output_names: Sequence[str] | None,
        input_feed: Mapping[str, npt.ArrayLike],
        run_options: Any = None,
    ) -> Results:
        """Run once; returns the named outputs, or all."""
        if self._loaded is None:
            results: Results = self._cpu.run(output_names, dict(input_feed), run_options)
            return results
        loaded = self._loaded
        names, feeds = self._checked(loaded, output_names, input_feed)
        profile = self._profile()
        if loaded.asynchronous:
            # As a queued run, so that it may come between queued ones: a graph takes one kind at a time.
            outputs = loaded.graph.execute_async(feeds, profile=profile).result()
        else:
            outputs = loaded.graph.execute(feeds, profile=profile)
        if profile is not None and self._profile_file is not None:
            self._profile_file.add(profile, "EXECUTE")
        results = _collected(loaded, names, outputs)
        if self._watch is not None:
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
        and can be awaited. Blocks only while the queue is full.
        """
        check_callable("callback", callback, "(results, user_data, error)")
        loaded = self._loaded
        if loaded is None:
            raise UnsupportedError("this model fell back to the CPU, where runs are not queued; use run()")
        names, feeds = self._checked(loaded, output_names, input_feed)
        profile = self._profile()
        execution = loaded.graph.execute_async(feeds, profile=profile)
        pending = PendingRun(execution, lambda outputs: _collected(loaded, names, outputs), profile)
        if callback is not None or profile is not None:
            pending.add_done_callback(lambda run: self._notified(run, callback, user_data, profile))
        return pending

    def end_profiling(self) -> str:
        """Close the profile; returns the path of its file, empty if there is none."""
        if self._profile_file is None:
            return ""
        self._profile_file.close()
        return self._profile_file.path

    def close(self) -> None:
        """Give the graph and, with its last session, the device back. Later runs raise."""
        if self._loaded is not None:
            self._closer()
            self._loaded = loading.closed(self._loaded)
        if self._profile_file is not None:
            self._profile_file.close()

    def __enter__(self) -> InferenceSession:
        return self

    def __exit__(self, *exc: object) -> None:
        self.close()

    def _profile(self) -> Any:
        level = self._options["profiling_level"]
        return None if level == "off" or self._loaded is None else self._loaded.new_profile(level)

    def _notified(self, run: PendingRun, callback: Callback | None, user_data: Any, profile: Any) -> None:
        if profile is not None and self._profile_file is not None:
            self._profile_file.add(profile, "EXECUTE")
        if callback is None:
            return
        error = run.exception()
        if error is not None:
            callback([], user_data, str(error))
        else:
            callback(run.result(), user_data, "")

    def _checked(
        self, loaded: loading.Loaded, output_names: Sequence[str] | None, feeds: Mapping[str, npt.ArrayLike]
    ) -> tuple[list[str], dict[str, npt.NDArray[Any]]]:
        if loaded.is_closed:
            raise WrongState("the session was closed")
        names = list(loaded.outputs) if output_names is None else items_of(output_names, len(loaded.outputs) + 1)
        if names is None:
            raise InvalidArgument(f"output_names is {shown(output_names)}; expected a list of names, or None")
        if not isinstance(feeds, Mapping):
            raise InvalidArgument(f"input_feed is a {type(feeds).__name__}; expected a mapping of names to arrays")
        names = names or list(loaded.outputs)
        for name in names:
            if not isinstance(name, str) or name not in loaded.outputs:
                known = ", ".join(loaded.outputs)
                raise InvalidArgument(f"no output is called {shown(name)}; the model has {known}")
        missing = [name for name in loaded.inputs if name not in feeds]
        if missing:
            raise InvalidArgument(f"required inputs {missing} are missing from the feed {list(feeds)}")
        return names, {name: _fed(name, array, loaded) for name, array in feeds.items()}


def _fed(name: str, given: npt.ArrayLike, loaded: loading.Loaded) -> npt.NDArray[Any]:
    kind = loaded.inputs.get(name) if isinstance(name, str) else None
    if kind is None:
        raise InvalidArgument(
            f"no input is called {shown(name)}; the model has {', '.join(loaded.inputs)}",
            st.QNN_GRAPH_ERROR_INVALID_TENSOR,
        )
    try:
        array = np.asarray(given)
    except (TypeError, ValueError, OverflowError, MemoryError, RecursionError) as error:
        raise InvalidArgument(
            f"input {name!r} cannot be made from a {type(given).__name__}: {error}",
            st.QNN_GRAPH_ERROR_INVALID_TENSOR,
        ) from error
    if array.dtype != kind.dtype or array.shape != kind.shape:
        raise InvalidArgument(
            f"input {name!r} is {array.dtype}{list(array.shape)}; expected {kind.dtype}{list(kind.shape)}",
            st.QNN_GRAPH_ERROR_INVALID_TENSOR,
        )
    stored, shape = loaded.stored[name]
    if array.dtype != stored or array.shape != shape:
        return np.ascontiguousarray(array, stored).reshape(shape)
    return array


def _collected(loaded: loading.Loaded, names: Sequence[str], outputs: Outputs) -> Results:
    results = []
    for name in names:
        kind, array = loaded.outputs[name], outputs[name]
        if array.shape != kind.shape or array.dtype != kind.dtype:
            array = array.reshape(kind.shape).astype(kind.dtype)
        results.append(array)
    return results


def _node_args(values: Mapping[str, ValueType]) -> list[NodeArg]:
    words = {"float32": "float", "float64": "double"}
    return [
        NodeArg(name, f"tensor({words.get(kind.dtype.name, kind.dtype.name)})", list(kind.shape))
        for name, kind in values.items()
    ]
