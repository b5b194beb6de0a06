"""How a language model's passes should be cut beside a camera: every choice, with and without pre-emption."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from openhtp.core.checks import shown, whole_number
from openhtp.core.errors import InvalidArgument
from openhtp.cost.llm import estimate_llm
from openhtp.planning import plan
from openhtp.planning.models import CHUNKS

# A more urgent graph waits for the end of the run on Windows, and for the end of the step elsewhere.
PLATFORMS = {"waits": "windows", "pre-empts": "linux"}
_SECONDS = 20
_MOST_PARTS = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformFigures:
    """The figures of both clients on one kind of platform, modelled; times in milliseconds."""

    missed: int
    frames: int
    camera_p99: float
    ttft_p50: float
    tokens_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkRow:
    """One way to cut passes: tokens and parts, the length of the longest run, and the figures by platform."""

    chunk: int
    parts: int
    longest_ms: float
    beside: dict[str, PlatformFigures]


def compare_chunks(
    model: str,
    soc: str,
    *,
    run_ms: float,
    every_ms: float,
    deadline_ms: float | None = None,
    prompt: int = 512,
    generate: int = 128,
    parts: Sequence[int] = (1, 3),
    progress: Callable[[float], None] | None = None,
) -> list[ChunkRow]:
    """Plan a conversation beside a camera that is more urgent, for every number of tokens and parts of a pass."""
    pieces = [whole_number(number) for number in parts]
    if not pieces or any(number is None or not 1 <= number <= _MOST_PARTS for number in pieces):
        raise InvalidArgument(f"parts is {shown(parts)}; expected numbers from 1 to {_MOST_PARTS}")
    llm_estimate = estimate_llm(model, soc, prompt=prompt)
    ways = [(chunk, number) for chunk in CHUNKS for number in pieces if number is not None]
    rows = []
    for done, (chunk, number) in enumerate(ways, 1):
        camera = {"deadline": every_ms if deadline_ms is None else deadline_ms, "run": run_ms}
        talk = {"preset": model, "prompt": prompt, "generate": generate, "chunk": chunk, "parts": number}
        beside = {
            word: _planned(_scenario(soc, platform, camera, every_ms, talk))
            for word, platform in PLATFORMS.items()
        }
        longest = max(llm_estimate.pass_of(chunk), llm_estimate.decode_ms) / number
        rows.append(ChunkRow(chunk=chunk, parts=number, longest_ms=longest, beside=beside))
        if progress is not None:
            progress(done / len(ways))
    return rows


def _scenario(
    soc: str, platform: str, camera: dict[str, float], every: float, talk: dict[str, Any]
) -> dict[str, Any]:
    return {
        "unit": "ms",
        "duration": 1000 * _SECONDS,
        "device": {"soc": soc, "platform": platform},
        "clients": [
            {"name": "camera", "priority": "high", **camera},
            {"name": "llm", "priority": "low", "llm": talk},
        ],
        "events": [{"client": "camera", "every": every}, {"client": "llm", "closed": 1}],
    }


def _planned(scenario: dict[str, Any]) -> PlatformFigures:
    result = plan(scenario)
    camera, llm = result["camera"], result["llm"]
    assert camera.p99 is not None
    assert llm.ttft_p50 is not None
    assert llm.tokens_per_s is not None
    return PlatformFigures(
        missed=camera.missed,
        frames=camera.runs,
        camera_p99=camera.p99,
        ttft_p50=llm.ttft_p50,
        tokens_per_s=llm.tokens_per_s,
    )
