"""What a session makes of the options that it was given; which there are is in ``openhtp.options.PROVIDER``."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openhtp.core.checks import is_showable, items_of, shown
from openhtp.core.errors import InvalidArgument
from openhtp.hw.catalog import catalog, find_soc
from openhtp.options import PROVIDER

log = logging.getLogger(__name__)

QNN, CPU = "QNNExecutionProvider", "CPUExecutionProvider"

_MOST_PROVIDERS = 100
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


def read_providers(
    providers: Sequence[str | tuple[str, Mapping[str, Any]]] | None,
    provider_options: Sequence[Mapping[str, Any]] | None,
) -> tuple[list[str], ProviderOptions]:
    """Names in order of preference, and the QNN provider's options."""
    given = [QNN, CPU] if providers is None else items_of(providers, _MOST_PROVIDERS)
    if given is None:
        raise InvalidArgument(f"providers is {shown(providers)}; expected a list of names, or None")
    given = given or [QNN, CPU]
    theirs = [{}] * len(given) if provider_options is None else items_of(provider_options, _MOST_PROVIDERS)
    if theirs is None or len(theirs) != len(given):
        raise InvalidArgument(
            f"provider_options is {shown(provider_options)} for {len(given)} providers; expected a list with one"
            " mapping each"
        )
    names: list[str] = []
    options: Mapping[str, Any] = {}
    for item, beside in zip(given, theirs, strict=True):
        name, own = item if isinstance(item, tuple) and len(item) == 2 else (item, beside)
        if not isinstance(name, str) or name not in (QNN, CPU):
            raise InvalidArgument(f"provider {shown(name)} is unknown; expected {QNN} or {CPU}")
        if not isinstance(own, Mapping):
            raise InvalidArgument(f"the options of {name} are {shown(own)}; expected a mapping")
        names.append(name)
        if name == QNN:
            options = own
    return names, check_options(options)


def check_options(given: Mapping[str, Any]) -> ProviderOptions:
    """Check values; keys that the provider's document does not have are reported and left alone, as it does."""
    known = {}
    for name, value in given.items():
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
    """The vendor's own library, if the path leads to a file; a bare name stands for what it would be."""
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
