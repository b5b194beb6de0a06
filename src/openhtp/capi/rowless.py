"""Options of the C interface that openhtp has no row for: refused, or taken with a warning."""

from __future__ import annotations

import logging
from dataclasses import dataclass

from openhtp.core import status as st
from openhtp.core.errors import InvalidArgument, QnnError
from openhtp.core.option_numbers import ContextOption, GraphOption, HtpContextOption, HtpGraphOption, Optimization
from openhtp.core.status import Status

log = logging.getLogger("openhtp.capi")


@dataclass(frozen=True, slots=True)
class OptionPlace:
    """Where an option stands: whose list, whether in the HTP's part of it, its number, and its kind if any."""

    owner: str
    htp: bool
    number: int
    kind: int | None = None


def _context(option: ContextOption) -> OptionPlace:
    return OptionPlace("context", htp=False, number=option)


def _graph(option: GraphOption) -> OptionPlace:
    return OptionPlace("graph", htp=False, number=option)


def _htp_graph(option: HtpGraphOption, kind: int | None = None) -> OptionPlace:
    return OptionPlace("graph", htp=True, number=option, kind=kind)


# Taken by the vendor's library, too, and here without any effect on results, times or memory.
_IDLE = {
    _context(ContextOption.ERROR_REPORTING): "QNN_CONTEXT_CONFIG_OPTION_ERROR_REPORTING",
    _graph(GraphOption.BINARY_SECTION_WEIGHTS_UPDATES): (
        "QNN_GRAPH_CONFIG_OPTION_ENABLE_BINARY_SECTION_WEIGHTS_UPDATES"
    ),
    **{
        _htp_graph(option): f"QNN_HTP_GRAPH_CONFIG_OPTION_{option.name}"
        for option in (
            HtpGraphOption.FINALIZE_CONFIG,
            HtpGraphOption.ASSUME_SAME_QUANT,
            HtpGraphOption.SHARE_IO_BUFFER,
            HtpGraphOption.HIGH_PRECISION_SIGMOID,
            HtpGraphOption.MONOLITHIC_LSTM,
        )
    },
    _htp_graph(HtpGraphOption.OPTIMIZATION, Optimization.SCHEDULE_THRESHOLD): (
        "QNN_HTP_GRAPH_OPTIMIZATION_TYPE_SCHEDULE_THRESHOLD"
    ),
    _htp_graph(HtpGraphOption.OPTIMIZATION, Optimization.SPARSE_WEIGHTS_COMPRESSION): (
        "QNN_HTP_GRAPH_OPTIMIZATION_TYPE_ENABLE_SPARSE_WEIGHTS_COMPRESSION"
    ),
}
_UNSUPPORTED = {
    _context(ContextOption.OEM_STRING): "QNN_CONTEXT_CONFIG_OPTION_OEM_STRING",
    _graph(GraphOption.PROFILE_HANDLE): "QNN_GRAPH_CONFIG_OPTION_PROFILE_HANDLE",
    _graph(GraphOption.PROFILING_STATE): "QNN_GRAPH_CONFIG_OPTION_SET_PROFILING_STATE",
    _graph(GraphOption.PROFILING_NUM_EXECUTIONS): "QNN_GRAPH_CONFIG_OPTION_SET_PROFILING_NUM_EXECUTIONS",
    _htp_graph(HtpGraphOption.PARALLEL_GRAPH_EXECUTION): (
        "QNN_HTP_GRAPH_CONFIG_OPTION_PARALLEL_GRAPH_EXECUTION_CONFIG"
    ),
    _htp_graph(HtpGraphOption.HMX_BOUNDING): "QNN_HTP_GRAPH_CONFIG_OPTION_HMX_BOUNDING",
}
_WRONG: dict[str, Status] = {
    "context": st.QNN_CONTEXT_ERROR_INVALID_CONFIG,
    "graph": st.QNN_GRAPH_ERROR_INVALID_ARGUMENT,
}
_LAST: dict[str, int] = {"context": max(HtpContextOption), "graph": max(HtpGraphOption)}


def take_or_refuse(place: OptionPlace) -> None:
    """Warn of an option that does nothing; raises what a client is told of any other."""
    if place in _IDLE:
        warn_of_no_effect(_IDLE[place])
    elif place in _UNSUPPORTED:
        raise unsupported(f"{_UNSUPPORTED[place]} is not supported")
    elif not place.htp:
        raise unsupported(f"{place.owner} option {place.number} is unknown")
    else:
        kind = "" if place.kind is None else f" of type {place.kind}"
        raise InvalidArgument(
            f"HTP {place.owner} option {place.number}{kind} is unknown; the last one is {_LAST[place.owner]}",
            _WRONG[place.owner],
        )


def warn_of_no_effect(name: str, why: str = "here") -> None:
    """Say that an option was taken and does nothing."""
    log.warning("%s is taken, and has no effect %s", name, why)


def unsupported(message: str) -> QnnError:
    """For what exists in the interface and is not offered, by the vendor's library either."""
    return QnnError(message, st.QNN_COMMON_ERROR_NOT_SUPPORTED)
