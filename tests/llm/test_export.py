"""Bundles: names, sizes, saving, what is refused, and how good the quantized Llama is."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import openhtp as htp
from openhtp import llm
from openhtp.core.errors import BadModel, InvalidArgument
from openhtp.frontend.data_formats import read_data_formats
from openhtp.program.binary import read_binary
from tests.llm.conftest import AUSTEN


def test_names_are_those_that_genie_knows(tiny: llm.Llama) -> None:
    bundle = llm.export(tiny, ar=(32, 1), parts=2)
    names = [name for binary in bundle.binaries for name in read_binary(binary).graph_names]
    assert names == [
        "prompt_ar32_cl256_1_of_2",
        "token_ar1_cl256_1_of_2",
        "prompt_ar32_cl256_2_of_2",
        "token_ar1_cl256_2_of_2",
    ]
    first, last = (read_binary(binary).graph_info(names[2 * n]) for n, binary in enumerate(bundle.binaries))
    assert [spec.name for spec in first.inputs] == [
        "input_ids",
        "attention_mask",
        "position_ids_cos",
        "position_ids_sin",
        "cache_index",
        "past_key_0_in",
        "past_value_0_in",
    ]
    assert [spec.name for spec in last.outputs] == ["past_key_1_out", "past_value_1_out", "logits"]
    assert {spec.name: spec.data_format.name for spec in first.inputs}["past_key_0_in"] == "HMX_WEIGHT_LAYOUT"


def test_graphs_share_their_weights(austen: llm.Llama) -> None:
    ids = [5] * 64
    sizes = {ar: len(llm.export(austen, ar=ar, calibration=ids).binaries[0]) for ar in ((128, 32, 1), (1,))}
    assert sizes[128, 32, 1] <= 1.15 * sizes[(1,)]


def test_a_bundle_is_saved_and_opened(tiny: llm.Llama, device: htp.Device, tmp_path: Path) -> None:
    bundle = llm.export(tiny, ar=(32, 1), precision="w8a8")
    bundle.save(tmp_path / "b")
    again = llm.Bundle.at(tmp_path / "b")
    assert again.about == bundle.about
    assert again.binaries == list(bundle.binaries)
    with llm.Generator(bundle, device) as one, llm.Generator(again, device) as two:
        assert one.complete([1, 2, 3], max_new=5) == two.complete([1, 2, 3], max_new=5)
    about = json.loads((tmp_path / "b" / "bundle.json").read_text())
    changes: list[tuple[dict[str, object], str]] = [
        *[({"version": 9}, "version 9"), ({"ar": []}, "no AR graphs"), ({"parts": "x"}, "parts")],
        # Layers that no part has, and parts that have none.
        *[
            ({"parts": [part]}, "from layer 0 to")
            for part in ([], [0], [0, 1, 2], [0, 0], [1, 2], [-1, 2], [2, 0])
        ],
    ]
    for change, words in changes:
        (tmp_path / "b" / "bundle.json").write_text(json.dumps(about | change))
        with pytest.raises(BadModel, match=words):
            llm.Bundle.at(tmp_path / "b")
    with pytest.raises(BadModel, match="No such file"):
        llm.Bundle.at(tmp_path / "none")


@pytest.mark.parametrize("out", [True, False])
def test_a_bundle_has_its_data_format_file(tiny: llm.Llama, tmp_path: Path, out: bool) -> None:
    bundle = llm.export(tiny, ar=(32, 1), parts=2, native_out=out)
    formats = read_data_formats(bundle.save(tmp_path) / "data_format_config.json")
    for binary in map(read_binary, bundle.binaries):
        for name in binary.graph_names:
            info = binary.graph_info(name)
            native = {s.name: s.data_format for s in (*info.inputs, *info.outputs) if s.data_format}
            assert formats[name] == native
    assert len(formats) == 4


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"context": 1920}, r"context 1920 is no multiple of 256 \(next: 2048\)"),
        ({"ar": (512, 1), "context": 1024}, "AR-512 is more than the 256 tokens"),
        ({"ar": ()}, r"such as \(128, 32, 1\)"),
        ({"ar": (0,)}, r"such as \(128, 32, 1\)"),
        ({"ar": (512,), "native_kv": False}, "AR-512 does not fit a context of 256"),
        ({"parts": 3}, "parts is 3; expected 1 to 2"),
        ({"precision": "w2a2"}, "expected one of w8a16, w8a8, w4a16"),
        ({"masked_softmax": "D"}, "expected A, B, C, none"),
        ({"native_kv": False, "native_out": True}, "native_out without native_kv"),
        ({"calibration": [1]}, "calibration has 1 tokens"),
        ({"calibration": [1, 999]}, "token numbers from 0 to 95"),
        ({"context": -1}, "context is -1"),
    ],
)
def test_what_cannot_be_exported(tiny: llm.Llama, options: dict[str, Any], words: str) -> None:
    with pytest.raises(InvalidArgument, match=words):
        llm.export(tiny, **options)


# Enough to see that it works.
CALIBRATION = list(range(100, 228))


def nats(logits: np.ndarray, ids: np.ndarray) -> float:
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    chances = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return float(-chances[np.arange(len(ids) - 1), ids[1:]].mean())


@pytest.mark.slow
@pytest.mark.parametrize(("precision", "loss"), [("w8a16", 0.02), ("w8a8", 0.15), ("w4a16", 0.15)])
def test_quantizing_loses_little(austen: llm.Llama, device: htp.Device, precision: str, loss: float) -> None:
    held = np.load(AUSTEN / "held_out_tokens.npy").astype(np.int64)[:512]
    with llm.Generator(llm.export(austen, precision=precision, ar=(128, 1)), device) as one:
        found = nats(asyncio.run(one.score(held.tolist())), held)
    assert abs(found - nats(austen.forward(held)[0], held)) < loss


def test_text_streams_in_whole_characters(austen: llm.Llama, device: htp.Device) -> None:
    async def pieces(chat: llm.Generator) -> list[str]:
        return [piece async for piece in chat.generate("It is a truth universally acknowledged", max_new=20)]

    with llm.Generator(llm.export(austen, ar=(32, 1), calibration=CALIBRATION), device) as one:
        found = asyncio.run(pieces(one))
        assert all(isinstance(piece, str) for piece in found)
        assert "".join(found) == one.tokenizer.decode(one.tokens)[len("It is a truth universally acknowledged") :]


def test_a_tokenizer_of_another_model_is_refused(tiny: llm.Llama, device: htp.Device, tmp_path: Path) -> None:
    bundle = llm.export(tiny, ar=(1,))
    other = llm.Bundle(bundle.about, bundle.binaries, AUSTEN / "tokenizer.json")
    with llm.Generator(other, device) as one, pytest.raises(BadModel, match="ends at 95: it is another"):
        one.complete("text")
    broken = tmp_path / "tokenizer.json"
    broken.write_text("{}")
    with (
        llm.Generator(llm.Bundle(bundle.about, bundle.binaries, broken), device) as one,
        pytest.raises(BadModel, match="cannot be read"),
    ):
        one.complete("text")
