"""Configuration lists of the C interface as options by name: those of the tables in ``openhtp.options``."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from openhtp.abi import memory
from openhtp.abi.structs import struct
from openhtp.capi import handles
from openhtp.core import status as st
from openhtp.core.errors import InvalidArgument, QnnError
from openhtp.core.option_numbers import (
    CUSTOM,
    ContextOption,
    GraphOption,
    HtpContextOption,
    HtpGraphOption,
    Optimization,
    PrecisionNumber,
)
from openhtp.core.precision import FloatPrecision
from openhtp.core.status import Status
from openhtp.core.units import MIB
from openhtp.core.value_kinds import GroupMembership, GroupRegistration
from openhtp.hw.catalog import find_soc
from openhtp.hw.soc import SocSpec
from openhtp.options import (
    CONTEXT,
    GRAPH,
    Changeable,
    Choice,
    ContextOrigin,
    Flag,
    Level,
    Member,
    Names,
    Option,
    Table,
    Whole,
)

log = logging.getLogger("openhtp.capi")

_WIDE = (
    (False, ContextOption.MEMORY_LIMIT_HINT, "context"),
    (True, HtpContextOption.FILE_READ_MEMORY_BUDGET, "context"),
    (True, HtpGraphOption.NUM_HVX_THREADS, "graph"),
)
# Values that leave the choice open. An HTP computes in half precision, so asking for that is one of them.
_LEFT_OPEN = {
    ("graph", "vtcm_mb"): 0,
    ("graph", "vtcm_bytes"): 0,
    ("graph", "hvx_threads"): 0,
    ("graph", "optimization_level"): 0,
    ("graph", "precision"): FloatPrecision.FLOAT16,
}
_PRECISIONS = {PrecisionNumber.FLOAT32: FloatPrecision.FLOAT32, PrecisionNumber.FLOAT16: FloatPrecision.FLOAT16}
_NUMERIC = 0
_SLC = (True, int(HtpGraphOption.OPTIMIZATION), int(Optimization.SLC_ALLOCATOR))
_CUSTOM = {"context": "HtpContextConfig", "graph": "HtpGraphConfig"}


@functools.cache
def _rows(owner: str) -> Mapping[tuple[bool, int, int | None], Option]:
    table = {"context": CONTEXT, "graph": GRAPH}[owner]
    return {
        (row.number.htp, row.number.value, row.number.kind): row for row in table.rows if row.number is not None
    }


def read(
    table: Table, address: int, origin: ContextOrigin | None = None, *, soc: SocSpec | None = None
) -> dict[str, Any]:
    """The options of a list, without those that leave the choice open.

    Options that do not apply to a context of this ``origin`` are left out with a warning: clients give one list to
    all contexts. If a graph's chip is given, values beyond it are cut to what it has.
    """
    options: dict[str, Any] = {}
    for row, value in _entries(table, address):
        if origin is not None and row.origins and origin not in row.origins:
            if value != row.default and row.number is not None:
                warn_of_no_effect(row.number.name, f"on what is made by {origin}")
            continue
        if value != _LEFT_OPEN.get((table.owner, row.name)):
            options[row.name] = value
    return options if soc is None else clipped(options, soc)


def read_changes(table: Table, address: int) -> dict[str, Any]:
    """The options of a list for an object that exists already; options that are fixed by then are refused."""
    options: dict[str, Any] = {}
    for row, value in _entries(table, address):
        if row.changes is Changeable.NEVER:
            assert row.number is not None
            raise unsupported(
                f"{row.number.name} cannot be changed any more: it is fixed when the {table.owner} is created"
            )
        options[row.name] = value
    return options


def read_graph_changes(address: int, *, finalized: bool) -> dict[str, Any]:
    """The options of a list for a graph that exists, including those set to their default."""
    return {
        row.name: row.default if value == _LEFT_OPEN.get((GRAPH.owner, row.name)) else value
        for row, value in _entries(GRAPH, address, finalized=finalized)
    }


def _entries(table: Table, address: int, *, finalized: bool = False) -> Iterator[tuple[Option, Any]]:
    """Rows of a list and their values. An option without a row is refused, or has no effect and causes a warning.

    ``finalized``: the list is for a graph that is finalized.
    """
    owner = table.owner
    for entry in memory.pointers(address, f"the {owner}'s configuration"):
        config = memory.structure(struct("Config"), entry, f"the {owner}'s configuration")
        htp, option, body = False, config.option, config.of
        if option == CUSTOM:
            custom = memory.structure(
                struct(_CUSTOM[owner]), body.custom or 0, f"the {owner}'s custom configuration"
            )
            htp, option, body = True, custom.option, custom.of
        if finalized and htp and option == Optimization.SLC_ALLOCATOR:
            # The documented way to turn the option off puts the kind in the option's place and leaves the kind
            # out. Read as the option of that number, it would be about finalizing, which is over.
            yield _rows(owner)[_SLC], bool(body.optimization.value)
            continue
        optimizes = owner == "graph" and htp and option == HtpGraphOption.OPTIMIZATION
        kind = body.optimization.type if optimizes else None
        row = _rows(owner).get((htp, option, kind))
        if row is None:
            take_or_refuse(OptionPlace(owner, htp, option, kind))
        else:
            yield row, _value(row, owner, body)


def _value(row: Option, owner: str, body: Any) -> Any:
    number, kind = row.number, row.kind
    assert number is not None
    if number.kind is not None:
        value = body.optimization.value
        if value != value or abs(value) > 1 << 20:
            raise InvalidArgument(f"{owner} option {row.name} is {value}; expected a small number")
        return bool(value) if isinstance(kind, Flag) else int(value)
    if isinstance(kind, Flag):
        return bool(body.flag)  # one byte; the others may hold anything
    if isinstance(kind, Names):
        names = memory.pointers(body.names, row.name, 1 << 16)
        return [memory.text(name, f"a name in {row.name}") for name in names]
    if isinstance(kind, GroupMembership):
        first, nbytes = body.group
        return GroupRegistration(first=_context(first), max_spill_fill_buffer=nbytes)
    if owner == "context" and number.value == ContextOption.QUEUE_DEPTH and not number.htp:
        if body.queue_depth.kind != _NUMERIC:
            raise unsupported(f"a queue depth of type {body.queue_depth.kind}; expected a number ({_NUMERIC})")
        return body.queue_depth.depth
    plain = body.number32 if hasattr(body, "number32") else body.number & 0xFFFFFFFF
    if (number.htp, number.value, owner) in _WIDE:
        plain = body.number64 if hasattr(body, "number64") else body.number
    return _word_for(kind, row, owner, plain)


def _word_for(kind: Any, row: Option, owner: str, number: int) -> Any:
    """The word of Python for a number of C."""
    if isinstance(kind, Level):
        return number
    words: Mapping[int, Any] | None = None
    if isinstance(kind, Choice):
        words = dict(enumerate(kind.choices))
    elif isinstance(kind, Member) and kind.members is FloatPrecision:
        words = {int(key): value for key, value in _PRECISIONS.items()}
    if words is None:
        return number
    if number not in words:
        raise InvalidArgument(f"{owner} option {row.name} is {number}; expected 0 to {len(words) - 1}", None)
    return words[number]


def _context(handle: int) -> Any:
    from openhtp.capi.context import ContextHeld

    entry = handles.find_or_none(ContextHeld, handle)
    return None if entry is None else entry.context


def clipped(options: dict[str, Any], soc: SocSpec) -> dict[str, Any]:
    """A graph's options, cut to what the chip has.

    If the client has only a part of the chip's VTCM, a graph gets no more than that part.
    """
    level = GRAPH.option("optimization_level").kind
    assert isinstance(level, Whole)
    step = soc.vtcm_granule_bytes
    rules: dict[str, Callable[[int], int]] = {
        "vtcm_mb": lambda wish: min(wish, soc.vtcm_bytes // MIB),
        "vtcm_bytes": lambda wish: min(-(-wish // step) * step, soc.vtcm_bytes),
        "hvx_threads": lambda wish: min(wish, soc.hvx),
        "optimization_level": lambda wish: min(max(wish, level.low), level.high),
    }
    cut = dict(options)
    for name, rule in rules.items():
        if name not in options:
            continue
        cut[name] = rule(options[name])
        if cut[name] != options[name]:
            log.warning("%s is %d; %s goes by %d", name, options[name], soc.name, cut[name])
    if soc.vtcm_mb < find_soc(soc.name).vtcm_mb and not {"vtcm_mb", "vtcm_bytes"} & cut.keys():
        cut["vtcm_mb"] = soc.vtcm_mb
    return cut


@dataclass(frozen=True, slots=True)
class OptionPlace:
    """The place of an option: whose list, whether in the HTP's part of it, its number, and its kind if any."""

    owner: str
    htp: bool
    number: int
    kind: int | None = None


def _context_option(option: ContextOption) -> OptionPlace:
    return OptionPlace("context", htp=False, number=option)


def _graph(option: GraphOption) -> OptionPlace:
    return OptionPlace("graph", htp=False, number=option)


def _htp_graph(option: HtpGraphOption, kind: int | None = None) -> OptionPlace:
    return OptionPlace("graph", htp=True, number=option, kind=kind)


# Options that the vendor's library takes, too. Here they have no effect on results, times or memory.
_IDLE = {
    _context_option(ContextOption.ERROR_REPORTING): "QNN_CONTEXT_CONFIG_OPTION_ERROR_REPORTING",
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
    _context_option(ContextOption.OEM_STRING): "QNN_CONTEXT_CONFIG_OPTION_OEM_STRING",
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
    """Warn about an option without effect; refuse any other."""
    if place in _IDLE:
        warn_of_no_effect(_IDLE[place])
    elif place in _UNSUPPORTED:
        raise unsupported(f"{_UNSUPPORTED[place]} is not supported")
    elif not place.htp:
        raise unsupported(f"{place.owner} option {place.number} is unknown")
    else:
        what, last = (
            (f"option {place.number}", _LAST[place.owner])
            if place.kind is None
            else (f"optimization type {place.kind}", max(Optimization))
        )
        raise InvalidArgument(f"HTP {place.owner} {what} is unknown; the last one is {last}", _WRONG[place.owner])


def warn_of_no_effect(name: str, why: str = "here") -> None:
    """Warn that an option is accepted without effect."""
    log.warning("%s is taken, and has no effect %s", name, why)


def unsupported(message: str) -> QnnError:
    """The error for a part of the interface that neither this library nor the vendor's offers."""
    return QnnError(message, st.QNN_COMMON_ERROR_NOT_SUPPORTED)
