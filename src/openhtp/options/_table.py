"""A table of options: rows, and how a caller's arguments become checked values."""

from __future__ import annotations

import enum
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from openhtp.core.checks import shown
from openhtp.core.errors import InternalError, InvalidArgument, UnsupportedFeature
from openhtp.core.status import Status
from openhtp.core.telling import warn_once
from openhtp.core.validating import ArgumentPlace, did_you_mean
from openhtp.core.value_kinds import ValueKind
from openhtp.hw.soc import ANY_PLATFORM

log = logging.getLogger(__name__)

# Arguments as a caller gave them.
Arguments = Mapping[str, object]


class PreparedWhere(enum.Enum):
    """Where a graph is made for which the option can be chosen: on the device that runs it, or ahead of time."""

    ANYWHERE = "online and offline"
    OFFLINE = "offline only"


# Where graphs are prepared ahead of time. Of this emulator, `linux` is both that host and a device.
PREPARING = ("linux",)


class ContextOrigin(enum.StrEnum):
    """The origin of a context's graphs: they are composed in it, or come from a binary, or from one of a list."""

    COMPOSED = "create_context"
    BINARY = "create_context_from_binary"
    LIST = "create_contexts_from_binaries"


class Changeable(enum.Enum):
    """Until when a value can be changed."""

    NEVER = "fixed at creation"
    BEFORE_EXECUTION = "until the first execution"
    OFF_AND_ON = "off and on again at any time"
    ALWAYS = "at any time"
    EACH_CALL = "given with each call"


class EffectPlace(enum.Enum):
    """Where the effect of an option can be seen. An option that has none must say so (``Option.no_effect``)."""

    RESULTS = "results"
    MODELLED_TIMES = "modelled times"
    MEASURED_TIMES = "measured times"
    ORDER = "who runs and who waits"
    MEMORY = "the memory that is used and counted"
    BINARY = "the context binary"
    PROFILE = "profiles"
    REFUSALS = "what is refused"
    WARNINGS = "a warning"
    STATE = "what a device says of itself"
    FILES = "files that are written"
    CALLBACKS = "calls of the caller's functions"


@dataclass(frozen=True, slots=True, kw_only=True)
class Number:
    """Where the option stands in the C API: its place in a config list.

    ``htp`` tells the HTP's own list from the common one. ``kind`` is the sub-number of options that have kinds of
    their own, as the HTP's graph optimizations do.
    """

    name: str
    value: int
    htp: bool = False
    kind: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One row. ``default`` None leaves the choice to the object above, or to the device.

    ``aliases`` are other names that the documents have for it. ``origins`` and ``platforms`` say where it can be
    given, everywhere if empty; ``needs`` names options that must be on with it.
    ``same_as`` names an option that is the same in another unit: ``factor`` of that unit make one of this one.
    A device whose platform nobody named has it, too, which is said once. ``documented_limit`` is another limit
    that the documents set; here the option works beyond it, which is said once.
    ``no_effect`` says, for an option that is accepted and does nothing yet, why that is so.
    ``sets`` names the option of another table that this one leads to, as ``graph.vtcm_mb``.
    ``seen`` says where its effect can be seen; one that sets another, or is one in another unit, has the other's.
    """

    name: str
    kind: ValueKind
    about: str
    default: Any = None
    number: Number | None = None
    config_key: str | None = None
    since_arch: int | None = None
    prepared: PreparedWhere = PreparedWhere.ANYWHERE
    changes: Changeable = Changeable.NEVER
    in_binary: bool = False
    excludes: tuple[str, ...] = ()
    needs: tuple[str, ...] = ()
    aliases: tuple[str, ...] = ()
    origins: tuple[ContextOrigin, ...] = ()
    platforms: tuple[str, ...] = ()
    same_as: str | None = None
    factor: int = 1
    sets: str | None = None
    documented_limit: str = ""
    no_effect: str = ""
    seen: tuple[EffectPlace, ...] = ()

    @property
    def prepares_offline(self) -> bool:
        """Whether it is chosen while a graph is prepared, and that ahead of time: not on the chip's own system."""
        return self.prepared is PreparedWhere.OFFLINE and ContextOrigin.BINARY not in self.origins

    def read(self, value: object, owner: str, status: Status) -> Any:
        """A caller's value, checked."""
        if value is None and self.default is None:
            return None
        return ArgumentPlace(owner, self.name, status).read(value, self.kind)


class OptionValues(Mapping[str, Any]):
    """Checked values of all options of a table, by name or as attributes. Immutable."""

    __slots__ = ("_table", "_values")

    def __init__(self, table: Table, values: Mapping[str, Any]) -> None:
        self._table = table
        self._values = dict(values)

    def __getitem__(self, name: str) -> Any:
        return self._values[name]

    def __getattr__(self, name: str) -> Any:
        try:
            return self._values[name]
        except KeyError:
            raise AttributeError(f"{self._table.owner} has no option {name!r}") from None

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, OptionValues) and self._table is other._table and self._values == other._values

    def __hash__(self) -> int:
        return hash(tuple(self._values.items()))

    def __reduce__(self) -> tuple[object, ...]:
        return (_unpickled, (self._table.owner, dict(self._values)))

    def replace(self, **changed: object) -> OptionValues:
        """These values with some replaced, which are checked."""
        checked = {
            name: self._table.option(name).read(value, self._table.owner, self._table.status)
            for name, value in changed.items()
        }
        return OptionValues(self._table, {**self._values, **checked})

    def stored(self) -> dict[str, Any]:
        """What travels in a context binary, as plain values."""
        return {
            row.name: value.value if isinstance(value := self._values[row.name], enum.Enum) else value
            for row in self._table.rows
            if row.in_binary and row.same_as is None
        }

    def __repr__(self) -> str:
        chosen = [
            f"{row.name}={self._values[row.name]!r}"
            for row in self._table.rows
            if row.name in self._values and self._values[row.name] != row.default
        ]
        return f"<{self._table.owner} options {', '.join(chosen) or 'as by default'}>"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """All options of one kind of object; bad values are refused with ``status``."""

    owner: str
    about: str
    status: Status
    rows: tuple[Option, ...]
    _by_name: dict[str, Option] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        names = {name: row for row in self.rows for name in (row.name, *row.aliases)}
        object.__setattr__(self, "_by_name", names)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def option(self, name: str) -> Option:
        """The row of this name. An unknown one is refused, with those that are spelled alike."""
        row = self._by_name.get(name)
        if row is None:
            names = ", ".join(row.name for row in self.rows)
            hint = did_you_mean(name, self._by_name, most=3) or f"expected one of {names}"
            raise ArgumentPlace(self.owner, shown(name), self.status).error(f"does not exist; {hint}")
        return row

    def number(self, name: str) -> Number:
        """Where an option stands in the C API."""
        number = self.option(name).number
        if number is None:
            raise InternalError(f"{self.owner} option {name} has no number in the C API")
        return number

    def defaults(self) -> OptionValues:
        """The values of a caller that gives none."""
        return self.read({})

    def read(
        self,
        arguments: Arguments,
        *,
        arch: int | None = None,
        platform: str | None = None,
        origin: ContextOrigin | None = None,
    ) -> OptionValues:
        """Check arguments against the rows and against each other.

        None counts as not given where the row has no default; ``arch`` is that of the chip, ``platform`` that of
        the device and ``origin`` how the object is made, where they are known.
        """
        values = {row.name: row.default for row in self.rows if row.same_as is None}
        # Options that were given a value other than their default.
        chosen: dict[str, Option] = {}
        for name, value in arguments.items():
            row = self.option(name)
            if value is None and row.default is None:
                continue
            checked = row.read(value, self.owner, self.status)
            if row.name in chosen and values[row.same_as or row.name] != checked * row.factor:
                raise InvalidArgument(f"{self.owner} option {row.name} is given twice", self.status)
            values[row.same_as or row.name] = checked if row.same_as is None else checked * row.factor
            if checked != row.default:
                chosen[row.name] = row
        for row in chosen.values():
            self._check_together(row, chosen)
            self._check_where(row, arch, platform, origin)
        if platform is not None:
            for row in chosen.values():
                self._tell_of_limit(row, platform)
        return OptionValues(self, values)

    def read_stored(self, stored: Arguments) -> OptionValues:
        """Values from a context binary. Rows that it does not carry have their defaults.

        Names without a row are those of a later version, and are left alone as its other additions are.
        """
        known = {name: value for name, value in stored.items() if name in self._by_name}
        for name in known:
            if not self._by_name[name].in_binary:
                raise InvalidArgument(
                    f"{self.owner} option {name} does not belong in a context binary", self.status
                )
        return self.read(known)

    def _check_together(self, row: Option, chosen: Mapping[str, Option]) -> None:
        for other in row.excludes:
            if other in chosen:
                raise InvalidArgument(
                    f"{self.owner} options {row.name} and {other} exclude each other", self.status
                )
        for other in row.needs:
            if other not in chosen:
                raise InvalidArgument(
                    f"{self.owner} option {row.name} needs {other} as well; give both or neither", self.status
                )

    def _tell_of_limit(self, row: Option, platform: str) -> None:
        limit = row.documented_limit
        if row.platforms and platform == ANY_PLATFORM:
            limit = (
                f"on {' and '.join(row.platforms)} only; this device has it, because its platform was not named"
            )
        if limit:
            words = f"the documents have {self.owner} option {row.name} {limit}"
            warn_once(log, ("limit", self.owner, row.name, platform), words)

    def _check_where(
        self, row: Option, arch: int | None, platform: str | None, origin: ContextOrigin | None
    ) -> None:
        what = f"{self.owner} option {row.name}"
        if arch is not None and row.since_arch is not None and arch < row.since_arch:
            raise UnsupportedFeature(
                f"{what} needs a Hexagon v{row.since_arch} or newer; this one is v{arch}", self.status
            )
        if platform is not None and row.prepares_offline and platform not in (ANY_PLATFORM, *PREPARING):
            raise UnsupportedFeature(
                f"{what} is for graphs that are prepared offline, on {' or '.join(PREPARING)}; this device's"
                f" platform is {platform}: prepare them there, and load the binary here",
                self.status,
            )
        if platform is not None and row.platforms and platform not in (ANY_PLATFORM, *row.platforms):
            raise UnsupportedFeature(
                f"{what} exists on {' and '.join(row.platforms)} only; this device's platform is {platform}",
                self.status,
            )
        if origin is not None and row.origins and origin not in row.origins:
            raise InvalidArgument(
                f"{what} is for {' and '.join(row.origins)} only; it was given to {origin}", self.status
            )


def _unpickled(owner: str, values: dict[str, Any]) -> OptionValues:
    from openhtp import options

    return next(table for table in options.TABLES if table.owner == owner).read(values)
