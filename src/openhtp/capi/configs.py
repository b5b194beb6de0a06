"""Configuration lists of the C interface as options by name: those of the tables in ``openhtp.options``."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from typing import Any

from openhtp.abi import memory
from openhtp.abi.structs import struct
from openhtp.capi import handles, rowless
from openhtp.capi.clipping import clipped
from openhtp.capi.rowless import OptionPlace
from openhtp.core.errors import InvalidArgument
from openhtp.core.option_numbers import (
    CUSTOM,
    ContextOption,
    HtpContextOption,
    HtpGraphOption,
    Optimization,
    PrecisionNumber,
)
from openhtp.core.precision import FloatPrecision
from openhtp.core.value_kinds import GroupMembership, GroupRegistration
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
)

_WIDE = (
    (False, ContextOption.MEMORY_LIMIT_HINT, "context"),
    (True, HtpContextOption.FILE_READ_MEMORY_BUDGET, "context"),
    (True, HtpGraphOption.NUM_HVX_THREADS, "graph"),
)
# What says "as you like". Half precision is what an HTP has, so it is the chip's choice, too.
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
    """The options of a list; those that leave it open are left out.

    What says nothing about a context of this ``origin`` is left out with a warning: clients give one list to all.
    What is beyond a graph's chip, if that is given, is cut to what it has.
    """
    found: dict[str, Any] = {}
    for row, value in _entries(table, address):
        if origin is not None and row.origins and origin not in row.origins:
            if value != row.default and row.number is not None:
                rowless.warn_of_no_effect(row.number.name, f"on what is made by {origin}")
            continue
        if value != _LEFT_OPEN.get((table.owner, row.name)):
            found[row.name] = value
    return found if soc is None else clipped(found, soc)


def read_changes(table: Table, address: int) -> dict[str, Any]:
    """The options of a list for something that exists already; one that is fixed by then is refused."""
    found: dict[str, Any] = {}
    for row, value in _entries(table, address):
        if row.changes is Changeable.NEVER:
            assert row.number is not None
            raise rowless.unsupported(
                f"{row.number.name} cannot be changed any more: it is fixed when the {table.owner} is created"
            )
        found[row.name] = value
    return found


def read_graph_changes(address: int, *, finalized: bool) -> dict[str, Any]:
    """The options of a list for a graph that exists, also those that are set to what they are by default."""
    return {
        row.name: row.default if value == _LEFT_OPEN.get((GRAPH.owner, row.name)) else value
        for row, value in _entries(GRAPH, address, finalized=finalized)
    }


def _entries(table: Table, address: int, *, finalized: bool = False) -> Iterator[tuple[Option, Any]]:
    """Rows of a list and their values. What has no row is refused, or does nothing and is warned of.

    ``finalized``: the list is for a graph that is finalized.
    """
    owner = table.owner
    for place in memory.pointers(address, f"the {owner}'s configuration"):
        config = memory.structure(struct("Config"), place, f"the {owner}'s configuration")
        htp, option, body = False, config.option, config.of
        if option == CUSTOM:
            custom = memory.structure(
                struct(_CUSTOM[owner]), body.custom or 0, f"the {owner}'s custom configuration"
            )
            htp, option, body = True, custom.option, custom.of
        if finalized and htp and option == Optimization.SLC_ALLOCATOR:
            # The documented way to turn it off has the kind where the option belongs, and no kind. Taken for the
            # option of that number, it would be about finalizing, which is over.
            yield _rows(owner)[_SLC], bool(body.optimization.value)
            continue
        optimizes = owner == "graph" and htp and option == HtpGraphOption.OPTIMIZATION
        kind = body.optimization.type if optimizes else None
        row = _rows(owner).get((htp, option, kind))
        if row is None:
            rowless.take_or_refuse(OptionPlace(owner, htp, option, kind))
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
            raise rowless.unsupported(
                f"a queue depth of type {body.queue_depth.kind}; expected a number ({_NUMERIC})"
            )
        return body.queue_depth.depth
    plain = body.number32 if hasattr(body, "number32") else body.number & 0xFFFFFFFF
    if (number.htp, number.value, owner) in _WIDE:
        plain = body.number64 if hasattr(body, "number64") else body.number
    return _word(kind, row, owner, plain)


def _word(kind: Any, row: Option, owner: str, number: int) -> Any:
    """Where C has a number for what is a word in Python."""
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

    held = handles.find_or_none(ContextHeld, handle)
    return None if held is None else held.context
