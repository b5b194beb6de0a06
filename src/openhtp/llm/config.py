"""The shape of a Llama: what its checkpoint's ``config.json`` says, checked."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from openhtp.core.checks import real_number, shown, whole_number
from openhtp.core.errors import BadModel, UnsupportedFeature

_MOST = 1 << 24


@dataclass(frozen=True, slots=True, kw_only=True)
class RopeScaling:
    """Llama 3's stretching of rotary frequencies, for contexts longer than those of its first training."""

    factor: float
    low: float
    high: float
    # Tokens.
    original: float

    def __post_init__(self) -> None:
        for name in ("factor", "low", "high", "original"):
            _require_positive(f"rope scaling's {name}", getattr(self, name))
        if not float(self.original).is_integer():
            raise BadModel(f"rope scaling has {self.original} as original; expected a whole number")
        if self.low == self.high:
            raise BadModel(f"rope scaling goes from {self.low:g} to {self.high:g}; expected two numbers")


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaConfig:
    """Sizes of a Llama-type decoder."""

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

    def __post_init__(self) -> None:
        for name in ("layers", "hidden", "heads", "kv_heads", "head_dim", "vocab", "ffn", "context"):
            size = whole_number(getattr(self, name))
            if size is None or not 1 <= size <= _MOST:
                raise BadModel(f"{name} is {shown(getattr(self, name))}; expected a whole number from 1 up")
        if self.heads % self.kv_heads:
            raise BadModel(f"{self.heads} heads cannot share {self.kv_heads} KV heads; expected a multiple")
        if self.head_dim % 2:
            raise BadModel(f"head_dim is {self.head_dim}; rotary positions need an even number")
        _require_positive("eps", self.eps)
        _require_positive("theta", self.theta)
        for token in (*self.eos, *(() if self.bos is None else (self.bos,))):
            if whole_number(token) is None or not 0 <= token < self.vocab:
                raise BadModel(f"bos_token_id or eos_token_id is {shown(token)}; expected 0 to {self.vocab - 1}")

    @property
    def parameters(self) -> int:
        """How many numbers all weight matrices have; norms are not counted."""
        attention = self.hidden * self.head_dim * (2 * self.heads + 2 * self.kv_heads)
        whole = self.layers * (attention + 3 * self.hidden * self.ffn)
        return whole + self.vocab * self.hidden * (1 if self.tied else 2)

    def kv_bytes(self, context: int) -> int:
        """Bytes of an 8-bit KV cache."""
        return 2 * self.layers * self.kv_heads * self.head_dim * context

    def rotations(self, begin: int, count: int) -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
        """Cosine and sine of positions ``begin`` on, each [count, head_dim/2]."""
        angles = np.outer(np.arange(begin, begin + count), _frequencies(self))
        return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)


def _require_positive(what: str, value: object) -> None:
    number = real_number(value)
    if number is None or number <= 0:
        raise BadModel(f"{what} is {shown(value)}; expected a finite number above 0")


@functools.lru_cache(maxsize=16)
def _frequencies(config: LlamaConfig) -> npt.NDArray[np.float64]:
    plain = config.theta ** (-np.arange(0, config.head_dim, 2, dtype=np.float64) / config.head_dim)
    scaling = config.scaling
    if scaling is None:
        return plain
    turns = scaling.original * plain / (2 * np.pi)
    blend = np.clip((turns - scaling.low) / (scaling.high - scaling.low), 0.0, 1.0)
    return plain * (blend + (1.0 - blend) / scaling.factor)


# Our name of a size: names in Hugging Face's files, then in ours.
_NAMES = {
    "layers": ("num_hidden_layers", "layers", "n_layers"),
    "hidden": ("hidden_size", "d", "dim", "hidden"),
    "heads": ("num_attention_heads", "heads", "n_heads"),
    "vocab": ("vocab_size", "vocab"),
    "ffn": ("intermediate_size", "ffn", "feed_forward", "hidden_dim"),
    "context": ("max_position_embeddings", "context", "max_seq_len"),
}
_ARCHITECTURES = ("LlamaForCausalLM",)


def config_from(content: Mapping[str, Any]) -> LlamaConfig:
    """The sizes in a ``config.json``. Raises UnsupportedFeature for architectures that are no Llama."""
    _check_architecture(content)
    sizes = {name: _required(content, name, names) for name, names in _NAMES.items()}
    kv_heads = _either(content, ("num_key_value_heads", "kv_heads", "n_kv_heads"), sizes["heads"])
    head_dim = _either(content, ("head_dim",), None) or sizes["hidden"] // max(1, sizes["heads"])
    rope = content.get("rope_parameters") or {}
    if not isinstance(rope, Mapping):
        raise BadModel(f"config.json gives rope_parameters as {shown(rope)}; expected an object")
    return LlamaConfig(
        **sizes,
        kv_heads=_whole("kv_heads", kv_heads),
        head_dim=_whole("head_dim", head_dim),
        eps=_real("eps", _either(content, ("rms_norm_eps", "norm_eps", "eps"), 1e-5)),
        theta=_real("theta", _either(content, ("rope_theta", "theta"), rope.get("rope_theta", 10000.0))),
        scaling=_scaling(content.get("rope_scaling") or rope or None),
        tied=bool(_either(content, ("tie_word_embeddings", "tied_embeddings"), False)),
        bos=content.get("bos_token_id"),
        eos=_tokens(content.get("eos_token_id")),
    )


def _check_architecture(content: Mapping[str, Any]) -> None:
    named = content.get("architectures") or list(_ARCHITECTURES)
    if not isinstance(named, list) or not any(name in _ARCHITECTURES for name in named):
        raise UnsupportedFeature(
            f"the checkpoint is a {shown(named)}; expected {_ARCHITECTURES[0]}, the architecture that is exported"
        )
    activation = content.get("hidden_act", "silu")
    if activation not in ("silu", "swish"):
        raise UnsupportedFeature(f"hidden_act is {shown(activation)}; expected 'silu'")
    for name in ("attention_bias", "mlp_bias"):
        if content.get(name):
            raise UnsupportedFeature(f"{name} is set; expected a Llama without biases")


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


def _scaling(value: Any) -> RopeScaling | None:
    if value is None:
        return None
    kind = value.get("rope_type", value.get("type", "default")) if isinstance(value, Mapping) else value
    if kind == "default":
        return None
    if kind != "llama3":
        raise UnsupportedFeature(f"rope scaling {shown(kind)}; expected none, or 'llama3'")
    return RopeScaling(
        factor=_real("rope factor", value.get("factor")),
        low=_real("low_freq_factor", value.get("low_freq_factor")),
        high=_real("high_freq_factor", value.get("high_freq_factor")),
        original=_whole("original_max_position_embeddings", value.get("original_max_position_embeddings")),
    )
