"""Tiny models of each family as the ``transformers`` package computes them.

``python -m tests.llm.transformers_models`` writes ``transformers_reference.json``: for every case the
``config.json`` that the package writes, the names and shapes of its tensors, and logits of some tokens. Weights
are not stored: they are random numbers that follow from the names.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

from tests.llm.test_checkpoint import write

REFERENCE = Path(__file__).parent / "transformers_reference.json"
IDS = [3, 17, 40, 5, 5, 28, 11, 46, 0, 33, 21, 9]
_SIZES = {
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "vocab_size": 48,
    "intermediate_size": 40,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": None,
}
_PHI = {name: value for name, value in _SIZES.items() if name != "head_dim"} | {"hidden_size": 64}
_LONG = {
    "rope_type": "longrope",
    "short_factor": [1.0, 1.1, 1.2, 1.3, 1.4, 1.5, 1.7, 2.0],
    "long_factor": [1.0, 1.5, 2.0, 3.0, 4.0, 6.0, 8.0, 9.0],
}
# Class of the configuration, and what it is made with.
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("LlamaConfig", {"tie_word_embeddings": False, "rope_theta": 500.0}),
    "llama, rope llama3": (
        "LlamaConfig",
        {
            "tie_word_embeddings": True,
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 32,
            },
        },
    ),
    "llama, rope linear": ("LlamaConfig", {"rope_scaling": {"rope_type": "linear", "factor": 4.0}}),
    "llama, biases": ("LlamaConfig", {"attention_bias": True, "mlp_bias": True}),
    "mistral": ("MistralConfig", {"sliding_window": 64}),
    "qwen2": ("Qwen2Config", {"tie_word_embeddings": True, "rope_theta": 1e6}),
    "qwen2, rope yarn": (
        "Qwen2Config",
        {"rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}},
    ),
    "qwen2, rope yarn between whole pairs": (
        "Qwen2Config",
        {
            "rope_scaling": {
                "rope_type": "yarn",
                "factor": 4.0,
                "original_max_position_embeddings": 64,
                "truncate": False,
            }
        },
    ),
    "qwen3": ("Qwen3Config", {"tie_word_embeddings": True, "rope_theta": 1e6}),
    "gemma": ("GemmaConfig", {}),
    "gemma2": (
        "Gemma2Config",
        {
            "query_pre_attn_scalar": 24,
            "sliding_window": 64,
            "attn_logit_softcapping": 1.5,
            "final_logit_softcapping": 2.0,
        },
    ),
    "phi3": ("Phi3Config", {"sliding_window": 64}),
    "phi3, rope longrope": ("Phi3Config", {"original_max_position_embeddings": 64, "rope_scaling": _LONG}),
    "phi3, rope longrope, long text": (
        "Phi3Config",
        {"original_max_position_embeddings": 8, "rope_scaling": _LONG},
    ),
}


def weights(shapes: dict[str, list[int]]) -> dict[str, np.ndarray]:
    """Random numbers for tensors of these shapes; they follow from the names alone."""
    arrays = {}
    for name, shape in shapes.items():
        rng = np.random.default_rng(list(hashlib.sha256(name.encode()).digest()[:8]))
        values = rng.normal(size=shape)
        if name.endswith("norm.weight"):
            values = 1.0 + 0.2 * values
        elif name.endswith(".weight"):
            values *= 1.5 * shape[-1] ** -0.5
        arrays[name] = values.astype(np.float32)
    return arrays


def computed(case: str) -> dict[str, Any]:
    """A case's configuration, shapes and logits, by the ``transformers`` package."""
    import torch
    import transformers

    kind, options = CASES[case]
    sizes = _PHI if kind == "Phi3Config" else _SIZES
    config = getattr(transformers, kind)(**sizes, **options)
    config.architectures = [kind.replace("Config", "ForCausalLM")]
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        transformers.AutoModelForCausalLM.from_config(config).save_pretrained(folder)
        content = json.loads((folder / "config.json").read_text())
        stored = transformers.AutoModelForCausalLM.from_pretrained(folder).state_dict()
        shapes = {key: list(tensor.shape) for key, tensor in stored.items()}
        if content.get("tie_word_embeddings", kind.startswith("Gemma")):
            shapes.pop("lm_head.weight", None)
        write(folder, weights(shapes), content)
        _say_that_torch_wrote(folder / "model.safetensors")
        model = transformers.AutoModelForCausalLM.from_pretrained(
            folder, attn_implementation="eager", dtype=torch.float32
        )
        with torch.no_grad():
            logits = model(torch.tensor([IDS])).logits[0].numpy()
    rows = [[round(float(value), 6) for value in row] for row in logits]
    return {"config": content, "shapes": shapes, "logits": rows}


def _say_that_torch_wrote(path: Path) -> None:
    """Add the entry that the package wants to see in a file of tensors."""
    data = path.read_bytes()
    length = int.from_bytes(data[:8], "little")
    header = {"__metadata__": {"format": "pt"}, **json.loads(data[8 : 8 + length])}
    text = json.dumps(header).encode()
    path.write_bytes(len(text).to_bytes(8, "little") + text + data[8 + length :])


if __name__ == "__main__":
    REFERENCE.write_text(
        json.dumps({case: computed(case) for case in CASES}, indent=None).replace('}, "', '},\n"')
    )
