"""Checkpoints: our Llama against its reference, Hugging Face's names, and files that are wrong."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from openhtp import llm
from openhtp.core.errors import BadModel, QnnError, UnsupportedFeature
from openhtp.llm.config import config_from
from tests.llm.conftest import AUSTEN

HF = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 1,
    "hidden_size": 64,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "vocab_size": 32,
    "intermediate_size": 48,
    "max_position_embeddings": 256,
    "tie_word_embeddings": False,
}
LAYER = {
    "input_layernorm": (64,),
    "post_attention_layernorm": (64,),
    "self_attn.q_proj": (64, 64),
    "self_attn.k_proj": (64, 64),
    "self_attn.v_proj": (64, 64),
    "self_attn.o_proj": (64, 64),
    "mlp.gate_proj": (48, 64),
    "mlp.up_proj": (48, 64),
    "mlp.down_proj": (64, 48),
}


def tensors() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    shapes: dict[str, tuple[int, ...]] = {f"model.layers.0.{name}.weight": shape for name, shape in LAYER.items()}
    shapes |= {"model.embed_tokens.weight": (32, 64), "model.norm.weight": (64,), "lm_head.weight": (32, 64)}
    return {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}


def write(folder: Path, held: dict[str, np.ndarray], config: dict[str, Any] = HF, name: str = "model") -> Path:
    (folder / "config.json").write_text(json.dumps(config))
    header, data = {}, b""
    for key, array in held.items():
        kind = {"float32": "F32", "float16": "F16", "uint16": "BF16"}[array.dtype.name]
        header[key] = {
            "dtype": kind,
            "shape": list(array.shape),
            "data_offsets": [len(data), len(data) + array.nbytes],
        }
        data += array.tobytes()
    text = json.dumps(header).encode()
    (folder / f"{name}.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    return folder


def test_the_small_llama_computes_its_reference(austen: llm.Llama) -> None:
    known = np.load(AUSTEN / "reference.npz")
    logits, past = austen.forward(known["ids"])
    assert np.abs(logits - known["logits"]).max() < 0.01
    assert past.tokens == len(known["ids"])
    again, _ = austen.forward(known["ids"][6:], austen.forward(known["ids"][:6])[1])
    assert np.allclose(again, logits[6:], atol=1e-3)


def test_other_names_and_types_give_the_same_model(tmp_path: Path) -> None:
    held = tensors()
    ours = llm.load(write(tmp_path, held))
    assert not ours.config.tied
    assert ours.config.head_dim == 64
    short = {name: (array.view(np.uint32) >> 16).astype(np.uint16) for name, array in held.items()}
    (tmp_path / "b").mkdir()
    rounded = llm.load(write(tmp_path / "b", short))
    assert np.allclose(rounded.weights["embed"], ours.weights["embed"], rtol=1e-2)
    assert np.array_equal(ours.weights["layers.0.gate"], held["model.layers.0.mlp.gate_proj.weight"])


def test_a_checkpoint_may_have_several_files(tmp_path: Path) -> None:
    held = tensors()
    names = list(held)
    write(tmp_path, {name: held[name] for name in names[:5]}, name="one")
    write(tmp_path, {name: held[name] for name in names[5:]}, name="two")
    files = {name: "one.safetensors" if n < 5 else "two.safetensors" for n, name in enumerate(names)}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    assert np.array_equal(llm.load(tmp_path).weights["norm"], held["model.norm.weight"])
    files[names[0]] = "../two.safetensors"
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": files}))
    with pytest.raises(BadModel, match="files of the same folder"):
        llm.load(tmp_path)


def test_wrong_tensors_are_named(tmp_path: Path) -> None:
    held = tensors()
    missing = {name: array for name, array in held.items() if "k_proj" not in name}
    with pytest.raises(BadModel, match=r"'model.layers.0.self_attn.k_proj.weight' .* is missing"):
        llm.load(write(tmp_path, missing))
    with pytest.raises(BadModel, match=r"1 tensors belong to no model of this size, 'model.extra' for one"):
        llm.load(write(tmp_path, held | {"model.extra": np.zeros(3, np.float32)}))
    with pytest.raises(BadModel, match=r"'model.norm.weight' has shape \[63\]; expected \[64\]"):
        llm.load(write(tmp_path, held | {"model.norm.weight": np.zeros(63, np.float32)}))
    with pytest.raises(BadModel, match="not finite"):
        llm.load(write(tmp_path, held | {"model.norm.weight": np.full(64, np.nan, np.float32)}))


@pytest.mark.parametrize(
    ("change", "kind", "words"),
    [
        (
            {"architectures": ["T5ForConditionalGeneration"]},
            UnsupportedFeature,
            "expected one of LlamaForCausalLM",
        ),
        ({"hidden_act": "gelu"}, UnsupportedFeature, "expected one of silu"),
        ({"rope_scaling": {"rope_type": "ntk"}}, UnsupportedFeature, "rope scaling 'ntk'"),
        ({"num_hidden_layers": 0}, BadModel, "layers is 0"),
        ({"vocab_size": "many"}, BadModel, "vocab as 'many'"),
        ({"num_attention_heads": 3, "num_key_value_heads": 2}, BadModel, "3 heads cannot share 2 KV heads"),
    ],
)
def test_configurations_that_are_refused(change: dict[str, Any], kind: type[QnnError], words: str) -> None:
    with pytest.raises(kind, match=words):
        config_from(HF | change)


def test_long_contexts_turn_slowly() -> None:
    scaling = {
        "rope_type": "llama3",
        "factor": 32.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    }
    plain, stretched = config_from(HF), config_from(HF | {"rope_scaling": scaling})
    (fast, _), (slow, _) = plain.rotations(100, 1), stretched.rotations(100, 1)
    assert fast[0, 0] == slow[0, 0]
    assert slow[0, -1] > fast[0, -1]


@pytest.mark.parametrize(
    "damage",
    [b"", b"short", struct.pack("<Q", 1 << 60), struct.pack("<Q", 2) + b"[]", struct.pack("<Q", 2) + b"{x"],
)
def test_damaged_files_are_refused(tmp_path: Path, damage: bytes) -> None:
    write(tmp_path, tensors())
    (tmp_path / "model.safetensors").write_bytes(damage)
    with pytest.raises(BadModel):
        llm.load(tmp_path)


@pytest.mark.parametrize(
    "entry",
    [
        {"dtype": "I4", "shape": [64], "data_offsets": [0, 256]},
        {"dtype": "F32", "shape": [64], "data_offsets": [0, 255]},
        {"dtype": "F32", "shape": [-64], "data_offsets": [0, 256]},
        {"dtype": "F32", "shape": [64], "data_offsets": [-256, 0]},
        {"dtype": "F32", "shape": [1 << 62], "data_offsets": [0, 1 << 64]},
        "text",
    ],
)
def test_entries_that_lie_are_refused(tmp_path: Path, entry: Any) -> None:
    write(tmp_path, tensors())
    text = json.dumps(dict.fromkeys(tensors(), entry)).encode()
    (tmp_path / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + bytes(256))
    with pytest.raises(BadModel, match=r"tensor '.*' of|has shape"):
        llm.load(tmp_path)


@pytest.mark.parametrize("dtype", [[], {}, 7, None])
def test_a_type_that_is_no_word(tmp_path: Path, dtype: object) -> None:
    path = write(tmp_path, tensors()) / "model.safetensors"
    data = path.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    next(iter(header.values()))["dtype"] = dtype
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])
    with pytest.raises(BadModel, match="expected one of F32"):
        llm.load(tmp_path)


@pytest.mark.parametrize(
    "change",
    [
        {"rope_parameters": [1]},
        {"rope_parameters": 0.5},
        {"rope_scaling": {"rope_type": "llama3", "factor": 8, "low_freq_factor": 1, "high_freq_factor": 1}},
        {"rope_theta": 10**400},
        {"rms_norm_eps": 0},
    ],
)
def test_a_config_that_cannot_be(change: dict[str, Any]) -> None:
    with pytest.raises(BadModel):
        config_from(HF | change)
