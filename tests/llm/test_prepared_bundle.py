"""Bundles from the store of prepared models: the same as an export, whatever the store holds."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import openhtp as htp
from openhtp import llm
from openhtp.core.errors import WrongState
from openhtp.core.model_store import CacheEntry, ModelStore
from openhtp.llm.model import Thin
from openhtp.llm.prepared_bundle import PreparedBundle, prepare_bundle
from tests.llm.conftest import AUSTEN
from tests.llm.test_adapter import peft
from tests.llm.test_checkpoint import HF, tensors, write


def saved_tiny(folder: Path) -> Path:
    """A checkpoint that is small, with the words of the example."""
    folder.mkdir()
    rng = np.random.default_rng(1)
    ends = ("model.embed_tokens.weight", "lm_head.weight")
    words = {name: rng.normal(size=(1024, 64)).astype(np.float32) for name in ends}
    write(folder, tensors() | words, HF | {"vocab_size": 1024})
    (folder / "tokenizer.json").write_bytes((AUSTEN / "tokenizer.json").read_bytes())
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return saved_tiny(tmp_path / "model")


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "store")


def prepared(model: Path, store: ModelStore | None, **options: Any) -> PreparedBundle:
    return prepare_bundle(model, store=store, **{"ar": (32, 1), "soc": "SM8650", **options})


def test_what_is_kept_is_what_was_exported(model: Path, store: ModelStore) -> None:
    steps: list[str] = []
    first = prepared(model, store, progress=lambda what, done: steps.append(what))
    again = prepared(model, store)
    assert (first.origin, again.origin) == ("exported", "quantized")
    assert first.bundle.files() == again.bundle.files() == prepared(model, None).bundle.files()
    assert again.bundle.tokenizer == model / "tokenizer.json"
    assert list(dict.fromkeys(steps)) == [
        "looking for it in the cache",
        "writing a text to calibrate with",
        "making keys and values even",
        "calibrating",
        "rounding weights, writing graphs",
    ]


def test_all_that_a_bundle_depends_on_is_in_its_key(model: Path, store: ModelStore) -> None:
    prepared(model, store)
    assert prepared(model, store, soc="SM8550").origin == "quantized"
    assert prepared(model, store, precision="w8a8").origin == "exported"
    assert prepared(model, store, ar=(64, 1)).origin == "exported"
    (model / "notes.txt").write_text("no part of the model")
    assert prepared(model, store).origin == "quantized"
    weights = bytearray((model / "model.safetensors").read_bytes())
    weights[-1] ^= 1
    (model / "model.safetensors").write_bytes(weights)
    assert prepared(model, store).origin == "exported"


@pytest.mark.parametrize("damage", ["cut", "nonsense", "other files", "no description"])
def test_what_the_store_cannot_use_is_exported_anew(model: Path, store: ModelStore, damage: str) -> None:
    files = prepared(model, store).bundle.files()
    (row,) = store.models()
    if damage == "cut":
        row.path.write_bytes(row.path.read_bytes()[:-1])
    elif damage == "nonsense":
        row.path.write_bytes(b"nonsense")
    else:  # a good file of a store, under the right key, with a bundle in it that is none
        key = row.path.stem.removeprefix("llm-")
        wrong = {"bundle.json": files["bundle.json"]} if damage == "other files" else {"bundle.json": b"{"}
        assert CacheEntry(store, "llm", "wrong", key).offer(wrong)
    again = prepared(model, store)
    assert (again.origin, again.bundle.files()) == ("exported", files)
    assert prepared(model, store).origin == "quantized"


def test_a_compiled_bundle_writes_the_same_text(model: Path, store: ModelStore, device: htp.Device) -> None:
    texts, origins, ready = [], [], []
    for _ in range(2):
        one = prepared(model, store)
        with llm.Generator(one.bundle, device) as chat:
            texts.append(chat.complete([1, 2, 3], max_new=40))
            origins.append(one.origin)
            ready.append((chat.was_prepared, one.keep(chat)))
    assert texts[0] == texts[1]
    assert origins == ["exported", "compiled"]
    assert ready == [(False, True), (True, False)]


def test_an_adapter_is_a_part_of_the_key(
    model: Path, store: ModelStore, tmp_path: Path, device: htp.Device
) -> None:
    rng = np.random.default_rng(3)
    key = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
    pair = {f"{key}A.weight": (4, 64), f"{key}B.weight": (64, 4)}
    texts = []
    for name in ("formal", "formal", "plain"):
        if not (tmp_path / name).exists():
            matrices = {tensor: rng.normal(size=shape).astype(np.float32) for tensor, shape in pair.items()}
            peft(tmp_path / name, matrices, target_modules=["q_proj"])
        one = prepared(model, store, adapter=str(tmp_path / name))
        with llm.Generator(one.bundle, device, adapter=one.adapter) as chat:
            texts.append((one.origin, one.adapter, chat.complete([1, 2, 3], max_new=8)))
            assert not one.keep(chat)  # its graphs have the adapter in them
    assert [text[:2] for text in texts] == [("exported", "formal"), ("quantized", "formal"), ("exported", "plain")]
    assert texts[0][2] == texts[1][2]
    assert prepared(model, store).bundle.adapters == {}


def test_a_full_disk_costs_only_the_cache(
    model: Path, store: ModelStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(fd: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", fail)
    assert prepared(model, store).origin == "exported"
    assert "the prepared model is not kept" in caplog.text
    assert store.models() == []


def test_a_generator_with_an_adapter_is_not_compiled(tiny: llm.Llama, device: htp.Device) -> None:
    rng = np.random.default_rng(2)
    thin = Thin(*(rng.normal(size=shape).astype(np.float32) for shape in ((4, 64), (128, 4))))
    adapter = llm.Adapter("formal", {"layers.0.wq": thin})
    bundle = llm.export(tiny, ar=(1,), adapters=[adapter])
    with llm.Generator(bundle, device, adapter="formal") as chat, pytest.raises(WrongState, match="'formal'"):
        chat.compiled()
