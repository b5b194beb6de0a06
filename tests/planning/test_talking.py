"""Language models in scenarios: conversations as runs, and passes cut to what others can wait for."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import openhtp
from openhtp.core.errors import InvalidArgument
from openhtp.planning import BadScenario
from openhtp.planning.chunks import compare_chunks
from openhtp.planning.parsing import parse_scenario

EXAMPLE = Path(__file__).parents[2] / "examples" / "assistant-and-cameras.yaml"


def scenario(llm: dict[str, Any], *, platform: str = "windows", **more: Any) -> dict[str, Any]:
    return {
        "unit": "ms",
        "duration": 20000,
        "device": {"soc": "SM8750", "platform": platform},
        "clients": [
            {"name": "camera", "priority": "high", "deadline": 33, "run": 5},
            {"name": "assistant", "priority": "low", "llm": {"preset": "llama-3.2-3b", **llm}, **more},
        ],
        "events": [{"client": "camera", "every": 33}, {"client": "assistant", "closed": 1}],
    }


def test_a_conversation_alone_takes_what_its_runs_take() -> None:
    alone = scenario({"prompt": 256, "generate": 11})
    alone["clients"], alone["events"] = alone["clients"][1:], [{"client": "assistant", "at": 0}]
    alone["device"]["eviction"] = 0
    found = openhtp.plan(alone)["assistant"]
    talk = parse_scenario(json.dumps(alone)).clients[0].talk
    assert talk is not None
    assert (talk.prompt_runs, talk.token_runs) == (2, 10)
    assert found.runs == 12
    assert found.ttft_p50 == pytest.approx(2 * talk.prompt_ns / 1e6)
    assert found.tokens_per_s == pytest.approx(1e9 / talk.token_ns, rel=1e-3)


@pytest.mark.parametrize("platform", ["windows", "linux"])
def test_auto_cuts_passes_so_that_no_frame_is_late(platform: str) -> None:
    auto = openhtp.plan(scenario({"prompt": 512, "generate": 64, "chunk": "auto"}, platform=platform))
    whole = openhtp.plan(scenario({"prompt": 512, "generate": 64}, platform=platform))
    assert auto["camera"].missed == 0
    if platform == "windows":
        assert whole["camera"].missed > 100
    else:
        # Who may interrupt need not wait: nothing is cut, and the first token comes as soon as it can.
        assert whole["camera"].missed == 0
        assert auto["assistant"].ttft_p50 == whole["assistant"].ttft_p50


def test_auto_leaves_time_for_others_that_wait_too() -> None:
    crowd = scenario({"prompt": 512, "generate": 64, "chunk": "auto"})
    crowd["clients"].insert(1, {"name": "rear", "priority": "high", "deadline": 66, "run": 8})
    crowd["events"].insert(1, {"client": "rear", "every": 66, "from": 1})
    found = openhtp.plan(crowd)
    assert found.missed == 0
    # What a frame may have ahead of it: a part of a pass, and the other camera's frame.
    talk = parse_scenario(json.dumps(crowd)).clients[2].talk
    assert talk is not None
    assert talk.prompt_ns <= (33 - 5 - 8) * 1e6


def test_the_example_has_no_late_frame() -> None:
    found = openhtp.plan(EXAMPLE)
    assert found.missed == 0
    row = found.summary()["clients"]["assistant"]
    assert row["ttft_p99"] >= row["ttft_p50"] > 0
    assert row["tokens_per_s"] > 5


@pytest.mark.parametrize(
    ("run", "missed", "p99"), [(82.0, 457, 95.0), (27.3, 0, 31.6), (36.0, 201, 45.0), (12.0, 0, 13.0)]
)
def test_frames_wait_for_runs_of_known_length(run: float, missed: int, p99: float) -> None:
    # An AR-128 pass of 3B parameters on an 8 Elite, whole and in three parts, and an AR-32 pass.
    fixed = scenario({})
    fixed["clients"][1] = {"name": "assistant", "priority": "low", "run": run}
    for platform, late, within in (("windows", missed, p99), ("linux", 0, 6.5)):
        fixed["device"]["platform"] = platform
        camera = openhtp.plan(fixed)["camera"]
        assert (camera.runs, camera.missed) == (607, late)
        assert camera.p99 <= within + 1e-6 if platform == "linux" else camera.p99 == pytest.approx(within)


def test_chunks_are_compared() -> None:
    rows = {(row.chunk, row.parts): row for row in compare_chunks("llama-3.2-3b", "SM8750", run_ms=5, every_ms=33)}
    assert list(rows) == [(128, 1), (128, 3), (64, 1), (64, 3), (32, 1), (32, 3)]
    whole, cut = rows[128, 1], rows[32, 3]
    assert whole.beside["waits"].missed > 100
    assert cut.beside["waits"].missed == whole.beside["pre-empts"].missed == 0
    assert cut.longest_ms < whole.longest_ms
    assert cut.beside["pre-empts"].ttft_p50 > whole.beside["pre-empts"].ttft_p50
    with pytest.raises(InvalidArgument, match="parts is"):
        compare_chunks("llama-3.2-3b", "SM8750", run_ms=5, every_ms=33, parts=(0,))


@pytest.mark.parametrize(
    ("llm", "more", "words"),
    [
        ({"preset": "gpt-9"}, {}, "gpt-9"),
        ({"layers": 3}, {}, "not both"),
        ({"prompt": 9000}, {}, "does not fit a context"),
        ({"chunk": "some"}, {}, "chunk"),
        ({}, {"run": 5}, "give 'llm' or how long a run takes"),
        ({"parts": 0}, {}, "parts"),
    ],
)
def test_mistakes_are_named(llm: dict[str, Any], more: dict[str, Any], words: str) -> None:
    with pytest.raises(BadScenario, match=words):
        openhtp.plan(scenario(llm, **more))


def test_own_shapes_need_all_sizes() -> None:
    own = scenario({})
    shape = {"layers": 4, "hidden": 256, "heads": 4, "kv_heads": 2, "head_dim": 64, "ffn": 768, "vocab": 1024}
    own["clients"][1]["llm"] = shape
    assert openhtp.plan(own)["assistant"].runs > 10
    own["clients"][1]["llm"] = {key: size for key, size in shape.items() if key != "ffn"}
    with pytest.raises(BadScenario, match="'ffn' is missing"):
        openhtp.plan(own)
