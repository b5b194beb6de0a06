"""``perf_profile`` and ``votes`` in a scenario: the clocks that clients ask for, and those that they can get."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

from openhtp.core.errors import QnnError
from openhtp.core.validating import WrittenFields, WrittenValue
from openhtp.hw.clocks import FULL, Clocks, StandingVote, clocks_for
from openhtp.hw.perf_profiles import PERF_PROFILES
from openhtp.hw.power import FIRST_ARCH_WITH_HMX_VOTES, DcvsVote, HmxCorner, HmxVote, VoltageCorner
from openhtp.hw.soc import SocSpec
from openhtp.planning import keys
from openhtp.planning.keys import ranged

CORNERS = tuple(corner.name.lower() for corner in VoltageCorner)
HMX_CORNERS = tuple(corner.name.lower() for corner in HmxCorner)


def read_profile(fields: WrittenFields) -> str | None:
    """The perf profile of a device or a client."""
    return fields["perf_profile"].choice(*PERF_PROFILES) if "perf_profile" in fields else None


def read_votes(fields: WrittenFields, soc: SocSpec | None) -> StandingVote | None:
    """Votes of a client that stand for the whole plan."""
    value = fields.get("votes")
    if value is None:
        return None
    if "perf_profile" in fields:
        value.fail("give 'perf_profile' or 'votes', not both: a vote of one's own ends a profile")
    inner = value.fields(keys.VOTES)
    corners = {clock: inner[clock].choice(*CORNERS) for clock in ("core", "bus") if clock in inner}
    try:
        dcvs = DcvsVote(dcvs_enable=False, **corners) if corners else None  # type: ignore[arg-type]
        return StandingVote(dcvs=dcvs, hmx=_hmx(value, inner, dcvs, soc))
    except QnnError as error:
        value.fail(error.message)


def _hmx(value: WrittenValue, inner: WrittenFields, dcvs: DcvsVote | None, soc: SocSpec | None) -> HmxVote | None:
    if "hmx" not in inner:
        if dcvs is None:
            value.fail(f"expected some of {', '.join(keys.VOTES)}")
        return None
    if dcvs is None or not dcvs.votes_core:
        inner["hmx"].fail("an HMX vote needs a core vote beside it: give 'core', too")
    if soc is not None and soc.arch < FIRST_ARCH_WITH_HMX_VOTES:
        inner["hmx"].fail(f"HMX votes need v{FIRST_ARCH_WITH_HMX_VOTES} or newer; {soc.name} is {soc.arch_name}")
    return HmxVote(corners=inner["hmx"].choice(*HMX_CORNERS))  # type: ignore[arg-type]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ballot:
    """The votes on the clocks of one core: profiles and votes of clients, and a profile that always stands."""

    profiles: tuple[str, ...] = ()
    standing: tuple[StandingVote, ...] = ()
    always: str | None = None

    @property
    def is_empty(self) -> bool:
        """Whether nobody votes, so that times are those that were published: of burst mode."""
        return not self.profiles and not self.standing and self.always is None

    @property
    def busiest(self) -> Clocks:
        """The clocks while something is done for every client."""
        return self.possible[0]

    @property
    def possible(self) -> tuple[Clocks, ...]:
        """All clocks that can come of it as votes rise and fall; the fastest first."""
        if self.is_empty:
            return (FULL,)
        fixed = [*self.standing, *([] if self.always is None else [PERF_PROFILES[self.always].busy])]
        states = [(PERF_PROFILES[name].busy, PERF_PROFILES[name].rest) for name in sorted(set(self.profiles))]
        reachable = {clocks_for([*fixed, *chosen]) for chosen in itertools.product(*states)}
        return tuple(sorted(reachable, key=lambda clocks: clocks.ratios, reverse=True))

    @property
    def words(self) -> str:
        """Whose clocks the fastest are, for notes; nothing in burst mode."""
        if self.busiest == FULL:
            return ""
        named = [name for name in (self.always, *self.profiles) if name is not None]
        return next((f" in {name}" for name in named if PERF_PROFILES[name].clocks() == self.busiest), " by votes")


def ballots(
    device: WrittenValue, clients: Sequence[WrittenValue], soc: SocSpec | None, cores: int
) -> tuple[Ballot, ...]:
    """The votes for each core."""
    always = read_profile(device.fields(keys.DEVICE))
    profiles: list[list[str]] = [[] for _ in range(cores)]
    standing: list[list[StandingVote]] = [[] for _ in range(cores)]
    for client in clients:
        fields = client.fields(keys.CLIENT)
        core = ranged(fields, "core", 0)
        profile, votes = read_profile(fields), read_votes(fields, soc)
        if core >= cores:
            continue  # which is told when the client is read
        if profile is not None:
            profiles[core].append(profile)
        if votes is not None:
            standing[core].append(votes)
    return tuple(
        Ballot(profiles=tuple(own), standing=tuple(votes), always=always)
        for own, votes in zip(profiles, standing, strict=True)
    )
