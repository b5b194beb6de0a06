"""What weights are called: our names, and those in checkpoints of Hugging Face and of ours. ``N`` is the layer."""

from __future__ import annotations

import re

_OUTER = {
    "embed": ("model.embed_tokens.weight", "tok_embeddings.weight"),
    "norm": ("model.norm.weight", "norm.weight"),
    "output": ("lm_head.weight", "output.weight"),
}
_INNER = {
    "attention_norm": ("model.layers.N.input_layernorm.weight", "layers.N.attention_norm.weight"),
    "ffn_norm": ("model.layers.N.post_attention_layernorm.weight", "layers.N.ffn_norm.weight"),
    "wq": ("model.layers.N.self_attn.q_proj.weight", "layers.N.wq.weight"),
    "wk": ("model.layers.N.self_attn.k_proj.weight", "layers.N.wk.weight"),
    "wv": ("model.layers.N.self_attn.v_proj.weight", "layers.N.wv.weight"),
    "wo": ("model.layers.N.self_attn.o_proj.weight", "layers.N.wo.weight"),
    "gate": ("model.layers.N.mlp.gate_proj.weight", "layers.N.w1.weight"),
    "down": ("model.layers.N.mlp.down_proj.weight", "layers.N.w2.weight"),
    "up": ("model.layers.N.mlp.up_proj.weight", "layers.N.w3.weight"),
}
_LAYER = re.compile(r"layers\.(\d+)\.")
_KIND_OF = {other: kind for kind, others in (_OUTER | _INNER).items() for other in others}


def checkpoint_names(name: str) -> tuple[str, ...]:
    """The names that a weight of ours may have in a checkpoint."""
    if name in _OUTER:
        return _OUTER[name]
    _, layer, kind = name.split(".")
    return tuple(other.replace("N", layer, 1) for other in _INNER[kind])


def our_name(name: str) -> str | None:
    """Our name of a checkpoint's tensor; None if it is none of a Llama's."""
    layer = _LAYER.search(name)
    kind = _KIND_OF.get(_LAYER.sub("layers.N.", name, count=1))
    if kind is None:
        return None
    return kind if layer is None else f"layers.{int(layer[1])}.{kind}"
