"""Power votes to C structures and back."""

from __future__ import annotations

import pytest
from hypothesis import given, strategies as st

from openhtp.abi.power import dcvs_of, fill_dcvs, hmx_of
from openhtp.abi.structs import struct
from openhtp.core.errors import InvalidArgument
from openhtp.hw.power import DcvsVote, HmxVote, PowerMode, VoltageCorner


def test_only_named_parts_are_voted_for() -> None:
    body = struct("DcvsV3")()
    corners = (VoltageCorner.SVS, VoltageCorner.NOM, VoltageCorner.TURBO)
    fill_dcvs(body, DcvsVote(sleep_latency_us=40, bus=corners), 5)
    assert (body.context_id, body.set_sleep_latency, body.sleep_latency) == (5, 1, 40)
    assert (body.set_bus, body.bus_min, body.bus_target, body.bus_max) == (1, 64, 96, 128)
    assert (body.set_core, body.set_dcvs_enable, body.set_sleep_disable) == (0, 0, 0)


@given(
    st.builds(
        DcvsVote,
        power_mode=st.sampled_from(PowerMode),
        dcvs_enable=st.none() | st.booleans(),
        sleep_latency_us=st.none() | st.integers(10, 65535),
        sleep_disable=st.none() | st.booleans(),
        bus=st.none() | st.tuples(*[st.sampled_from(VoltageCorner)] * 3).map(lambda c: tuple(sorted(c))),
    )
)
def test_votes_survive_the_way_there_and_back(vote: DcvsVote) -> None:
    fill_dcvs(body := struct("DcvsV3")(), vote, 1)
    assert dcvs_of(body) == vote


@pytest.mark.parametrize(
    "vote",
    [
        HmxVote(pick_default=True),
        HmxVote(corners="tur", level="low"),
        HmxVote(corners=("svs", "nom", "max")),
    ],
)
def test_hmx_votes_too(vote: HmxVote) -> None:
    body = struct("HmxV2")(pick_default=int(vote.pick_default), level=vote.level)
    for bound, corner in zip(("min", "target", "max"), vote.corners or (), strict=False):
        setattr(body, bound, int(corner))
    assert hmx_of(body) == vote


def test_numbers_that_name_nothing_are_told() -> None:
    body = struct("DcvsV3")(power_mode=3)
    with pytest.raises(InvalidArgument, match="power_mode is 3"):
        dcvs_of(body)
    body = struct("DcvsV3")(power_mode=1, set_core=1, core_min=64, core_target=65, core_max=96)
    with pytest.raises(InvalidArgument, match="core corner is 65"):
        dcvs_of(body)
