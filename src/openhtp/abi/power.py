"""Power votes as the C structures that carry them, and back."""

from __future__ import annotations

from typing import Any

from openhtp.hw.power import DcvsVote, HmxVote

_PARTS = (
    ("dcvs_enable", "dcvs_enable"),
    ("sleep_latency", "sleep_latency_us"),
    ("sleep_disable", "sleep_disable"),
)
_CORNERS = ("bus", "core")
_PLACES = ("min", "target", "max")


def fill_dcvs(body: Any, vote: DcvsVote, context_id: int) -> None:
    """Write a vote; what it leaves out is marked as not voted for."""
    body.context_id, body.power_mode = context_id, vote.power_mode
    for field, name in _PARTS:
        value = getattr(vote, name)
        if value is not None:
            setattr(body, f"set_{field}", 1)
            setattr(body, field, int(value))
    for field in _CORNERS:
        corners = getattr(vote, field)
        if corners is not None:
            setattr(body, f"set_{field}", 1)
            for bound, corner in zip(_PLACES, corners, strict=True):
                setattr(body, f"{field}_{bound}", int(corner))


def dcvs_of(body: Any) -> DcvsVote:
    """Read a vote. Raises InvalidArgument for corners out of order and for numbers that name nothing."""
    return DcvsVote(
        power_mode=body.power_mode,
        dcvs_enable=bool(body.dcvs_enable) if body.set_dcvs_enable else None,
        sleep_latency_us=body.sleep_latency if body.set_sleep_latency else None,
        sleep_disable=bool(body.sleep_disable) if body.set_sleep_disable else None,
        bus=_corners(body, "bus_") if body.set_bus else None,
        core=_corners(body, "core_") if body.set_core else None,
    )


def hmx_of(body: Any) -> HmxVote:
    """Read a vote for the HMX; corners beside ``pick_default`` mean nothing and are left out."""
    if body.pick_default:
        return HmxVote(pick_default=True)
    return HmxVote(corners=_corners(body, ""), level=body.level)


def _corners(body: Any, prefix: str) -> Any:
    """Three numbers, which the vote makes corners of."""
    return tuple(getattr(body, f"{prefix}{bound}") for bound in _PLACES)
