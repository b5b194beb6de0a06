"""The request for a session: providers with their options (``openhtp.options.PROVIDER``), session options."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from onnx import helper

from openhtp.config import BackendConfig
from openhtp.core.checks import is_encodable, is_showable, items_of, shown
from openhtp.core.errors import InvalidArgument
from openhtp.engine.onnxruntime import onnxruntime
from openhtp.frontend.fixing import Dims, Freeze
from openhtp.frontend.probing import with_fixed_inputs
from openhtp.hw.catalog import catalog, find_soc
from openhtp.options import PROVIDER, ContextOrigin
from openhtp.session.ort_errors import UnknownProvider

log = logging.getLogger(__name__)

QNN, CPU = "QNNExecutionProvider", "CPUExecutionProvider"
DEFAULT_SOC = "SM8650"
# Our own option: look into the first run for values that half precision cannot hold.
CHECK_RANGE = "openhtp.check_range"
CONFIG_KEYS = (
    "session.disable_cpu_ep_fallback",
    "ep.context_enable",
    "ep.context_file_path",
    "ep.context_embed_mode",
    "ep.share_ep_contexts",
    CHECK_RANGE,
)

_MOST_PROVIDERS = 100
_PROBE_OPSET, _PROBE_IR = 17, 8
_BACKENDS = {"qnnhtp": "htp", "libqnnhtp": "htp", "qnncpu": "cpu", "libqnncpu": "cpu"}


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderOptions:
    """The options of one session, checked. ``text`` holds them as the provider reports them."""

    text: Mapping[str, str]
    backend: str
    library: str | None
    soc: str | None
    vtcm_mb: int | None

    def __getitem__(self, name: str) -> str:
        return self.text[name]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionRequest:
    """Everything that a session was asked for, checked."""

    source: bytes | Path
    sess_options: Any
    options: ProviderOptions
    entries: Mapping[str, str]
    soc: str
    dims: Dims | None
    freeze: Freeze | None
    queue_depth: int | None
    transport: str
    device_name: str | None
    config: BackendConfig | None

    def context_options(self, origin: ContextOrigin) -> dict[str, Any]:
        """Options of the context: the config's, overridden by those of the provider."""
        options = {} if self.config is None else self.config.context_options(origin)
        priority = self.options["qnn_context_priority"]
        if priority != "normal" or "priority" not in options:
            options["priority"] = priority
        if self.queue_depth is not None:
            options["queue_depth"] = self.queue_depth
        return options

    def graph_options(self, name: str) -> dict[str, Any]:
        """Options of the graph, in the same way."""
        options = {} if self.config is None else self.config.graph_options(name)
        if self.options.vtcm_mb is not None:
            options.pop("vtcm_bytes", None)
            options["vtcm_mb"] = self.options.vtcm_mb
        level = int(self.options["htp_graph_finalization_optimization_mode"])
        if level:
            options["optimization_level"] = level
        return options

    def fixed_model(self) -> bytes:
        """The model with the sizes and values that were given; the data that lies beside a file is inside."""
        return with_fixed_inputs(self.source, self.dims, self.freeze, ask=self.free_dimensions, may_stay_open=True)

    def free_dimensions(self, inputs: Sequence[Any]) -> dict[str, int]:
        """Sizes that the free dimension overrides of the session options give to inputs, by ``input.axis``.

        ONNX Runtime does not report the overrides, so it loads a model that has these inputs and no nodes, and the
        sizes of that model show them. Such a model loads whatever else the options say.
        """
        graph = helper.make_graph([], "inputs", inputs, inputs)
        opsets = [helper.make_opsetid("", _PROBE_OPSET)]
        probe = helper.make_model(graph, opset_imports=opsets, ir_version=_PROBE_IR)
        options = self.sess_options
        # This session must not write the files that the user's own session is asked for.
        before = options.optimized_model_filepath, options.enable_profiling
        options.optimized_model_filepath, options.enable_profiling = "", False
        try:
            session = onnxruntime.InferenceSession(probe.SerializeToString(), options)
        except Exception as error:  # The options were made for the user's own model and may hold anything.
            log.warning("the free dimension overrides of the session options cannot be found out: %s", error)
            return {}
        finally:
            options.optimized_model_filepath, options.enable_profiling = before
        return {
            f"{value.name}.{axis}": size
            for value in session.get_inputs()
            for axis, size in enumerate(value.shape)
            if isinstance(size, int)
        }


def soc_of(config: BackendConfig | None) -> str:
    """The chip that a config asks for, or the usual one."""
    soc = None if config is None else config.device_options().get("soc")
    return str(soc or DEFAULT_SOC)


def config_entries(sess_options: Any) -> dict[str, str]:
    """The session configuration entries that have an effect here."""
    entries = {}
    for key in CONFIG_KEYS:
        try:
            entries[key] = str(sess_options.get_session_config_entry(key))
        except RuntimeError:  # which is how ONNX Runtime says that there is none
            continue
    return entries


def run_entry(run_options: Any, names: Sequence[str]) -> str | None:
    """The entry of run options under the first of these names that has one; None if none has."""
    for name in names:
        with contextlib.suppress(RuntimeError):  # which is how ONNX Runtime says that there is none
            value = str(run_options.get_run_config_entry(name))
            if value:
                return value
    return None


def read_providers(
    providers: Sequence[str | tuple[str, Mapping[str, Any]]] | None,
    provider_options: Sequence[Mapping[str, Any]] | None,
) -> tuple[list[str], ProviderOptions]:
    """Names in order of preference, and the QNN provider's options."""
    wanted = [QNN, CPU] if providers is None else items_of(providers, _MOST_PROVIDERS)
    if wanted is None:
        raise InvalidArgument(f"providers is {shown(providers)}; expected a list of names, or None")
    wanted = wanted or [QNN, CPU]
    options_of = [{}] * len(wanted) if provider_options is None else items_of(provider_options, _MOST_PROVIDERS)
    if options_of is None or len(options_of) != len(wanted):
        raise InvalidArgument(
            f"provider_options is {shown(provider_options)} for {len(wanted)} providers; expected a list with one"
            " mapping each"
        )
    names: list[str] = []
    options: Mapping[str, Any] = {}
    for item, beside in zip(wanted, options_of, strict=True):
        name, own = item if isinstance(item, tuple) and len(item) == 2 else (item, beside)
        if not isinstance(name, str) or name not in (QNN, CPU):
            if isinstance(name, str) and name in onnxruntime.get_all_providers():
                log.warning(
                    "provider %s is not available here, so it is left out; there are %s, %s", name, QNN, CPU
                )
                continue
            words = name if isinstance(name, str) and is_encodable(name) else shown(name)
            raise UnknownProvider(f"Unknown Provider Type: {words}; expected {QNN} or {CPU}")
        if not isinstance(own, Mapping):
            raise InvalidArgument(f"the options of {name} are {shown(own)}; expected a mapping")
        names.append(name)
        if name == QNN:
            options = own
    return names or [CPU], check_options(options)


def check_options(options: Mapping[str, Any]) -> ProviderOptions:
    """Check values. Keys that the provider's document does not have are reported and left alone."""
    known = {}
    for name, value in options.items():
        if name not in PROVIDER:
            log.warning("provider option %s is not known here and has no effect", shown(name))
            continue
        if not is_showable(value):
            raise InvalidArgument(f"provider option {name!r} is {shown(value)}; expected text or a number")
        known[name] = str(value)
    text = PROVIDER.read(known)
    return ProviderOptions(
        text=text,
        backend=_backend(text["backend_path"]),
        library=_library(text["backend_path"]),
        soc=_soc(int(text["soc_model"]), int(text["htp_arch"])),
        vtcm_mb=int(text["vtcm_mb"]) or None,
    )


def _backend(path: str) -> str:
    """``htp`` or ``cpu`` for the documented library names."""
    stem = path.replace("\\", "/").rsplit("/", 1)[-1].lower().removesuffix(".so").removesuffix(".dll")
    if stem not in _BACKENDS:
        raise InvalidArgument(
            f"backend_path {path!r} is none of libQnnHtp.so, QnnHtp.dll (the HTP), libQnnCpu.so, QnnCpu.dll"
        )
    return _BACKENDS[stem]


def _library(path: str) -> str | None:
    """The vendor's own library, if the path leads to a file; a bare name stands for the emulator."""
    if "/" not in path and "\\" not in path:
        return None
    if not Path(path).is_file():
        raise InvalidArgument(f"backend_path {path!r} is not a file; a bare libQnnHtp.so stands for the emulator")
    if _backend(path) == "cpu":
        raise InvalidArgument(f"backend_path {path!r}: of the vendor's libraries only libQnnHtp.so can be used")
    return path


def _soc(model: int, arch: int) -> str | None:
    if model:
        return find_soc(model).name
    if arch:
        names = [soc.name for soc in catalog().values() if soc.arch == arch]
        if not names:
            known = sorted({soc.arch for soc in catalog().values()})
            raise InvalidArgument(f"htp_arch {arch} is unknown; expected one of {', '.join(map(str, known))}")
        return names[0]
    return None
