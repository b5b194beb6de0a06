"""The shape of a decoder: the content of its checkpoint's ``config.json``, checked."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from openhtp.core.checks import real_number, shown, whole_number
from openhtp.core.errors import BadModel, UnsupportedFeature
from openhtp.llm.positions import RopeScaling, frequencies, require_positive, scaling_from

_MOST = 1 << 24


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaConfig:
    """Sizes of a Llama-type decoder, and where it differs from a Llama."""

    layers: int
    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    ffn: int
    context: int = 4096
    eps: float = 1e-5
    theta: float = 10000.0
    scaling: RopeScaling | None = None
    tied: bool = True
    # Tokens that begin and end a text, if the checkpoint names them.
    bos: int | None = None
    eos: tuple[int, ...] = ()
    # Of the inner layer's gate: "silu" or "gelu_tanh".
    activation: str = "silu"
    # Kinds of weights that have biases: "wq", "gate" and so on.
    biases: tuple[str, ...] = ()
    # Queries and keys are normalized, head by head.
    qk_norm: bool = False
    # The results of attention and of the inner layer are normalized before they are added.
    post_norms: bool = False
    embed_scale: float = 1.0
    # The factor of attention's scores; the inverse root of head_dim unless given.
    attention_scale: float | None = None
    # Scores and logits are bounded by tanh: x becomes cap * tanh(x / cap).
    attention_cap: float | None = None
    logit_cap: float | None = None
    # Tokens that the layer with the shortest sight sees, counting its own.
    window: int | None = None

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "heads", "kv_heads", "head_dim", "vocab", "ffn", "context"):
            size = whole_number(getattr(self, name))
            if size is None or not 1 <= size <= _MOST:
                raise BadModel(f"{name} is {shown(getattr(self, name))}; expected a whole number from 1 up")
        if self.heads % self.kv_heads:
            raise BadModel(f"{self.heads} heads cannot share {self.kv_heads} KV heads; expected a multiple")
        if self.head_dim % 2:
            raise BadModel(f"head_dim is {self.head_dim}; rotary positions need an even number")
        for name in ("eps", "theta", "embed_scale", "attention_scale", "attention_cap", "logit_cap"):
            if getattr(self, name) is not None or name in ("eps", "theta", "embed_scale"):
                require_positive(name, getattr(self, name))
        if self.activation not in _ACTIVATIONS:
            raise BadModel(f"activation is {shown(self.activation)}; expected one of {', '.join(_ACTIVATIONS)}")
        if self.window is not None and (whole_number(self.window) is None or self.window < 1):
            raise BadModel(f"the sliding window is {shown(self.window)}; expected a number of tokens")
        if not set(self.biases) <= _MATRICES:
            raise BadModel(f"biases are of {shown(self.biases)}; expected some of {', '.join(sorted(_MATRICES))}")
        for token in (*self.eos, *(() if self.bos is None else (self.bos,))):
            if whole_number(token) is None or not 0 <= token < self.vocab:
                raise BadModel(f"bos_token_id or eos_token_id is {shown(token)}; expected 0 to {self.vocab - 1}")

    @property
    def score_scale(self) -> float:
        """The factor of queries.

        That makes up for the size of a head, for positions that make queries and keys larger, and for a cap.
        """
        scale = self.head_dim**-0.5 if self.attention_scale is None else self.attention_scale
        grown = 1.0 if self.scaling is None else self.scaling.attention**2
        return scale * grown / (self.attention_cap or 1.0)

    @property
    def parameters(self) -> int:
        """How many numbers all weight matrices have; norms are not counted."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        whole = self.layers * (attention + 3 * self.hidden * self.ffn)
        return whole + self.vocab * self.hidden * (1 if self.tied else 2)

    def kv_bytes(self, context: int) -> int:
        """Bytes of an 8-bit KV cache."""
        return 2 * self.layers * self.kv_heads * self.head_dim * context

    def rotations(
        self, begin: int, count: int, reach: int | None = None
    ) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Cosine and sine of positions ``begin`` on, each [count, head_dim/2].

        ``reach``: how many tokens the text may have, which some stretchings depend on; these unless given.
        """
        angles = self.angles(begin, count, reach)
        return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)

    def angles(self, begin: int, count: int, reach: int | None = None) -> npt.NDArray[np.float64]:
        """How far each pair of a head's elements is turned, from position ``begin`` on; as for ``rotations``."""
        return np.outer(np.arange(begin, begin + count), _frequencies(self, reach or begin + count))


_ACTIVATIONS = ("silu", "gelu_tanh")
_MATRICES = frozenset(("wq", "wk", "wv", "wo", "gate", "up", "down"))


@functools.lru_cache(maxsize=16)
def _frequencies(config: LlamaConfig, reach: int) -> npt.NDArray[np.float64]:
    return frequencies(config.theta, config.head_dim, config.scaling, reach)


# Families of decoders: features of an architecture besides the sizes that its config.json gives. All are Llamas
# with differences: biases, norms of queries and keys, norms after a block, another activation, a scaled
# embedding, bounded scores. Each difference is a field of ``LlamaConfig``, from which graphs are written.

_ATTENTION = ("wq", "wk", "wv", "wo")
_FFN = ("gate", "up", "down")
_ACTIVATION_WORDS = {"silu": "silu", "swish": "silu", "gelu_pytorch_tanh": "gelu_tanh", "gelu_new": "gelu_tanh"}


@dataclass(frozen=True, slots=True, kw_only=True)
class DecoderFamily:
    """The features of an architecture, and the defaults where a configuration leaves a value out."""

    # Weights that have biases.
    biases: tuple[str, ...] = ()
    # Queries and keys are normalized, head by head.
    qk_norm: bool = False
    # The results of attention and of the inner layer are normalized before they are added.
    post_norms: bool = False
    # Added to the weights of all norms.
    norm_offset: float = 0.0
    # The embedding is multiplied by the root of its size.
    scales_embedding: bool = False
    tied: bool = False
    activation: str = "silu"
    eps: float = 1e-6
    # Whether a sliding window counts without a key that turns it on.
    slides: bool = True


FAMILIES = {
    "LlamaForCausalLM": DecoderFamily(eps=1e-5, slides=False),
    "MistralForCausalLM": DecoderFamily(),
    "Qwen2ForCausalLM": DecoderFamily(biases=("wq", "wk", "wv"), slides=False),
    "Qwen3ForCausalLM": DecoderFamily(qk_norm=True, slides=False),
    "GemmaForCausalLM": DecoderFamily(
        norm_offset=1.0, scales_embedding=True, tied=True, activation="gelu_tanh", slides=False
    ),
    "Gemma2ForCausalLM": DecoderFamily(
        norm_offset=1.0, scales_embedding=True, tied=True, activation="gelu_tanh", post_norms=True
    ),
    "Phi3ForCausalLM": DecoderFamily(eps=1e-5),
}


def family_of(content: Mapping[str, Any]) -> DecoderFamily:
    """The family of a ``config.json``; a Llama if none is named. Raises UnsupportedFeature for any other."""
    named = content.get("architectures") or ["LlamaForCausalLM"]
    known = (
        [name for name in named if isinstance(name, str) and name in FAMILIES] if isinstance(named, list) else []
    )
    if not known:
        raise UnsupportedFeature(
            f"the checkpoint is a {shown(named)}; expected one of {', '.join(FAMILIES)}, which are the"
            " architectures that are exported"
        )
    return FAMILIES[known[0]]


def _activation_of(content: Mapping[str, Any], family: DecoderFamily) -> str:
    """The activation of the inner layers: ``silu`` or ``gelu_tanh``."""
    word = content.get("hidden_activation") or content.get("hidden_act")
    # Gemma's first files say "gelu" and mean the approximation by tanh.
    if word is None or (word == "gelu" and family.activation == "gelu_tanh"):
        return family.activation
    if not isinstance(word, str) or word not in _ACTIVATION_WORDS:
        raise UnsupportedFeature(f"hidden_act is {shown(word)}; expected one of {', '.join(_ACTIVATION_WORDS)}")
    return _ACTIVATION_WORDS[word]


def _biases_of(content: Mapping[str, Any], family: DecoderFamily) -> tuple[str, ...]:
    """Weights that have biases."""
    attention = _ATTENTION if content.get("attention_bias") else family.biases
    return attention + (_FFN if content.get("mlp_bias") else ())


def _window_of(content: Mapping[str, Any], family: DecoderFamily) -> Any:
    """How many tokens back a layer looks at least; None if every layer sees all."""
    kinds = content.get("layer_types")
    if isinstance(kinds, list) and "sliding_attention" not in kinds:
        return None
    return content.get("sliding_window") if content.get("use_sliding_window", family.slides) else None


# Our name of a size: names in Hugging Face's files, then in ours.
_NAMES = {
    "layers": ("num_hidden_layers", "layers", "n_layers"),
    "hidden": ("hidden_size", "d", "dim", "hidden"),
    "heads": ("num_attention_heads", "heads", "n_heads"),
    "vocab": ("vocab_size", "vocab"),
    "ffn": ("intermediate_size", "ffn", "feed_forward", "hidden_dim"),
    "context": ("max_position_embeddings", "context", "max_seq_len"),
}


def sizes_from(content: Mapping[str, Any]) -> dict[str, int]:
    """Layers, heads and other sizes in a ``config.json``, whatever the architecture."""
    for name in ("num_experts", "num_local_experts", "n_routed_experts"):
        if content.get(name):
            raise UnsupportedFeature(f"{name} is {shown(content[name])}; expected a model whose layers all run")
    sizes = {name: _required(content, name, names) for name, names in _NAMES.items()}
    kv_heads = _either(content, ("num_key_value_heads", "kv_heads", "n_kv_heads"), sizes["heads"])
    head_dim = _either(content, ("head_dim",), None) or sizes["hidden"] // max(1, sizes["heads"])
    return sizes | {"kv_heads": _whole("kv_heads", kv_heads), "head_dim": _whole("head_dim", head_dim)}


def config_from(content: Mapping[str, Any]) -> LlamaConfig:
    """The shape that a ``config.json`` describes. Raises UnsupportedFeature for unknown architectures."""
    family, sizes = family_of(content), sizes_from(content)
    rope = content.get("rope_parameters") or {}
    if not isinstance(rope, Mapping):
        raise BadModel(f"config.json gives rope_parameters as {shown(rope)}; expected an object")
    partial = _either(content, ("partial_rotary_factor",), rope.get("partial_rotary_factor", 1.0))
    if partial != 1.0:
        raise UnsupportedFeature(f"partial_rotary_factor is {shown(partial)}; expected 1: all of a head is turned")
    scalar = content.get("query_pre_attn_scalar")
    return LlamaConfig(
        **sizes,
        eps=_real("eps", _either(content, ("rms_norm_eps", "norm_eps", "eps"), family.eps)),
        theta=_real("theta", _either(content, ("rope_theta", "theta"), rope.get("rope_theta", 10000.0))),
        scaling=scaling_from(
            content.get("rope_scaling") or rope or None,
            context=sizes["context"],
            original=content.get("original_max_position_embeddings"),
            head_dim=sizes["head_dim"],
        ),
        tied=bool(_either(content, ("tie_word_embeddings", "tied_embeddings"), family.tied)),
        bos=content.get("bos_token_id"),
        eos=_tokens(content.get("eos_token_id")),
        activation=_activation_of(content, family),
        biases=_biases_of(content, family),
        qk_norm=family.qk_norm,
        post_norms=family.post_norms,
        embed_scale=float(sizes["hidden"] ** 0.5) if family.scales_embedding else 1.0,
        attention_scale=None if scalar is None else _real("query_pre_attn_scalar", scalar) ** -0.5,
        attention_cap=content.get("attn_logit_softcapping"),
        logit_cap=content.get("final_logit_softcapping"),
        window=_window_of(content, family),
    )


def _tokens(value: Any) -> tuple[int, ...]:
    """One token, several, or none."""
    if value is None:
        return ()
    return tuple(value) if isinstance(value, list) else (value,)


def _either(content: Mapping[str, Any], names: tuple[str, ...], default: Any) -> Any:
    return next((content[name] for name in names if content.get(name) is not None), default)


def _required(content: Mapping[str, Any], what: str, names: tuple[str, ...]) -> int:
    value = _either(content, names, None)
    if value is None:
        raise BadModel(f"config.json does not say {names[0]!r} ({what})")
    return _whole(what, value)


def _whole(what: str, value: object) -> int:
    number = whole_number(value)
    if number is None:
        raise BadModel(f"config.json gives {what} as {shown(value)}; expected a whole number")
    return number


def _real(what: str, value: object) -> float:
    number = real_number(value)
    if number is None or number <= 0:
        raise BadModel(f"config.json gives {what} as {shown(value)}; expected a number above 0")
    return number
