"""LoRA adapters: PEFT folders, the merged model as a measure, and exchanging them while graphs stay loaded."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import openhtp as htp
from openhtp import llm
from openhtp.core.errors import BadBinary, BadModel, DeviceLost, InvalidArgument, QnnError, UnsupportedFeature
from tests.llm.test_checkpoint import write

CONFIG: dict[str, Any] = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj", "down_proj"]}
# Sizes of the tiny Llama: hidden 64, two heads of 64, one KV head, 96 inside.
SHAPES = {"self_attn.q_proj": (128, 64), "self_attn.v_proj": (64, 64), "mlp.down_proj": (64, 96)}
PROMPT = [7, 3, 50, 21, 9, 90, 11]


def pairs(seed: int, rank: int = 4, modules: tuple[str, ...] = tuple(SHAPES), size: float = 1.0) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    held = {}
    for layer in (0, 1):
        for module in modules:
            rows, columns = SHAPES[module]
            key = f"base_model.model.model.layers.{layer}.{module}.lora_"
            held[f"{key}A.weight"] = (size * rng.normal(size=(rank, columns)) / columns**0.5).astype(np.float32)
            held[f"{key}B.weight"] = (rng.normal(size=(rows, rank)) / rank**0.5).astype(np.float32)
    return held


def peft(folder: Path, held: dict[str, Any], **changes: Any) -> Path:
    folder.mkdir()
    write(folder, held, {}, name="adapter_model")
    (folder / "config.json").unlink()
    (folder / "adapter_config.json").write_text(json.dumps(CONFIG | changes))
    return folder


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("adapters")


@pytest.fixture(scope="module")
def adapters(folder: Path, tiny: llm.Llama) -> dict[str, llm.Adapter]:
    peft(folder / "one", pairs(1))
    # Another rank and only one matrix, and small numbers.
    peft(folder / "two", pairs(2, rank=2, modules=("mlp.down_proj",), size=0.2), r=2, use_rslora=True)
    return {name: llm.load_adapter(folder / name, tiny.config) for name in ("one", "two")}


@pytest.fixture(scope="module")
def bundle(tiny: llm.Llama, adapters: dict[str, llm.Adapter]) -> llm.Bundle:
    return llm.export(tiny, ar=(32, 1), parts=2, adapters=list(adapters.values()))


@pytest.fixture(scope="module")
def loaded(bundle: llm.Bundle, device: htp.Device) -> Iterator[llm.Generator]:
    with llm.Generator(bundle, device) as made:
        yield made


def test_scaling_is_that_of_peft(adapters: dict[str, llm.Adapter]) -> None:
    held = pairs(1)
    key = "base_model.model.model.layers.1.mlp.down_proj.lora_"
    thin = adapters["one"].matrices["layers.1.down"]
    assert np.allclose(thin.up @ thin.down, 8 / 4 * held[f"{key}B.weight"] @ held[f"{key}A.weight"], atol=1e-5)
    held = pairs(2, rank=2, modules=("mlp.down_proj",), size=0.2)
    thin = adapters["two"].matrices["layers.1.down"]
    assert set(adapters["two"].matrices) == {"layers.0.down", "layers.1.down"}
    expected = 8 / 2**0.5 * held[f"{key}B.weight"] @ held[f"{key}A.weight"]
    assert np.allclose(thin.up @ thin.down, expected, atol=1e-5)


def test_the_float_model_computes_the_same_merged_or_beside(
    tiny: llm.Llama, adapters: dict[str, llm.Adapter]
) -> None:
    one = adapters["one"]
    beside = tiny.forward(PROMPT, added=one.matrices)[0]
    assert np.allclose(beside, one.merged(tiny).forward(PROMPT)[0], atol=1e-3)
    assert not np.allclose(beside, tiny.forward(PROMPT)[0], atol=0.5)


def test_logits_are_those_of_the_merged_model(
    tiny: llm.Llama, adapters: dict[str, llm.Adapter], loaded: llm.Generator
) -> None:
    for name in ("one", None, "two"):
        loaded.reset()
        loaded.use_adapter(name)
        assert loaded.adapter == name
        found = asyncio.run(loaded.score(PROMPT))
        merged = tiny if name is None else adapters[name].merged(tiny)
        exact = merged.forward(PROMPT)[0]
        assert np.abs(found - exact).max() < 0.08 * np.abs(exact).max()
        # Where the float model prefers a token clearly; 8-bit weights and caches change logits by up to 0.14.
        second, best = np.sort(exact, axis=1)[:, -2:].T
        sure = best - second > 0.15
        assert sure.sum() >= len(PROMPT) / 2
        assert np.array_equal(found.argmax(axis=1)[sure], exact.argmax(axis=1)[sure])


def test_an_adapter_is_like_exporting_the_merged_model(
    tiny: llm.Llama, adapters: dict[str, llm.Adapter], loaded: llm.Generator, device: htp.Device
) -> None:
    loaded.reset()
    loaded.use_adapter("one")
    found = asyncio.run(loaded.score(PROMPT))
    with llm.Generator(llm.export(adapters["one"].merged(tiny), ar=(32, 1)), device) as merged:
        other = asyncio.run(merged.score(PROMPT))
    assert np.abs(found - other).max() < 0.08 * np.abs(other).max()


def test_sequences_on_the_same_graphs_have_adapters_of_their_own(
    bundle: llm.Bundle, device: htp.Device, loaded: llm.Generator
) -> None:
    names = ("one", "two", None)
    chats = [llm.Generator(bundle, device, shares=loaded, adapter=name) for name in names]

    async def collect(chat: llm.Generator) -> list[int]:
        return [token async for token in chat.generate(PROMPT, max_new=6)]

    async def together() -> list[list[int]]:
        return await asyncio.gather(*map(collect, chats))

    mixed = asyncio.run(together())
    for chat in chats:
        chat.reset()
    assert mixed == [chat.complete(PROMPT, max_new=6) for chat in chats]
    assert mixed[0] != mixed[2]
    for chat in chats:
        chat.free()


def test_a_bundle_keeps_its_adapters(bundle: llm.Bundle, device: htp.Device, tmp_path: Path) -> None:
    bundle.save(tmp_path / "b")
    again = llm.Bundle.at(tmp_path / "b")
    assert again.adapters == {name: list(sections) for name, sections in bundle.adapters.items()}
    with llm.Generator(again, device, adapter="one") as one, llm.Generator(bundle, device, adapter="one") as two:
        assert one.complete(PROMPT, max_new=4) == two.complete(PROMPT, max_new=4)
    damaged = tmp_path / "b" / "adapter_one_1_of_2.bin"
    data = bytearray(damaged.read_bytes())
    data[-1] ^= 1
    damaged.write_bytes(bytes(data))
    with llm.Generator(llm.Bundle.at(tmp_path / "b"), device, adapter="one") as chat:
        with pytest.raises(BadBinary, match="checksum"):
            chat.complete(PROMPT, max_new=2)
        chat.use_adapter("two")
        assert len(chat.complete(max_new=2)) == 2


def test_a_restarted_device_has_the_adapter_again(bundle: llm.Bundle) -> None:
    with htp.Backend() as backend:
        device = backend.create_device(soc="SM8650")
        chat = llm.Generator(bundle, device, adapter="one")
        whole = chat.complete(PROMPT, max_new=8)
        chat.reset()
        written: list[int] = []

        async def until_killed() -> None:
            async for token in chat.generate(PROMPT, max_new=8):
                written.append(token)
                if len(written) == 3:
                    os.kill(device.pid, signal.SIGKILL)

        with pytest.raises(DeviceLost):
            asyncio.run(until_killed())
        assert written + chat.complete(max_new=8 - len(written)) == whole


def changed(key: str, array: Any) -> dict[str, Any]:
    return pairs(1) | {f"base_model.model.model.layers.0.{key}": array}


@pytest.mark.parametrize(
    ("held", "changes", "kind", "words"),
    [
        ({}, {"peft_type": "IA3"}, UnsupportedFeature, "type 'IA3'; expected 'LORA'"),
        ({}, {"use_dora": True}, UnsupportedFeature, "use_dora is True; expected False"),
        ({}, {"modules_to_save": ["lm_head"]}, UnsupportedFeature, "modules_to_save"),
        ({}, {"r": 3}, BadModel, "says rank 3; tensors have 4"),
        ({}, {"lora_alpha": "many"}, BadModel, "lora_alpha 'many'"),
        (changed("self_attn.z_proj.lora_A.weight", np.zeros((4, 64), np.float32)), {}, BadModel, "no matrix of a"),
        (changed("mlp.up_proj.lora_A.weight", np.zeros((4, 64), np.float32)), {}, BadModel, "has no partner"),
        (changed("self_attn.q_proj.lora_A.weight", np.zeros((4, 63), np.float32)), {}, BadModel, r"\[rank, 64\]"),
        (
            changed("self_attn.q_proj.lora_A.weight", np.full((4, 64), np.inf, np.float32)),
            {},
            BadModel,
            "not finite",
        ),
    ],
)
def test_adapters_that_are_refused(
    tiny: llm.Llama, tmp_path: Path, held: Any, changes: Any, kind: type[QnnError], words: str
) -> None:
    place = peft(tmp_path / "a", held or pairs(1), **changes)
    with pytest.raises(kind, match=words):
        llm.load_adapter(place, tiny.config)


def test_adapters_that_do_not_fit_are_refused(
    tiny: llm.Llama, adapters: dict[str, llm.Adapter], bundle: llm.Bundle, device: htp.Device
) -> None:
    other = llm.Llama(layers=1, hidden=64, heads=2, kv_heads=1, head_dim=64, vocab=96, ffn=96, context=256)
    with pytest.raises(InvalidArgument, match=r"is another model's: its 'layers.1"):
        llm.export(other, ar=(1,), adapters=[adapters["one"]])
    with pytest.raises(InvalidArgument, match="two adapters are named 'one'"):
        llm.export(tiny, ar=(1,), adapters=[adapters["one"], adapters["one"]])
    with pytest.raises(InvalidArgument, match=r"is named '\.\./x'"):
        llm.Adapter("../x", {})
    with pytest.raises(InvalidArgument, match="adapter is 'three'; the bundle has 'one', 'two'"):
        llm.Generator(bundle, device, adapter="three")
    with pytest.raises(BadModel, match="No such file"):
        llm.load_adapter("nowhere", tiny.config)
