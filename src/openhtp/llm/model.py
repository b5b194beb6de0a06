"""A decoder in float: its weights, and plain numpy to compute it with.

Exported graphs are compared with this model and calibrated by it: ``watch`` sees every tensor that a graph will
quantize, under its name in the graph.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from openhtp.core.checks import shown, whole_number
from openhtp.core.errors import InvalidArgument
from openhtp.llm.config import LlamaConfig

Array = npt.NDArray[np.float32]
# A point [kv_heads, head_dim] that is taken from a layer's rotated keys, if its weights have one.
KEY_CENTRE = "key_centre"
# A symmetric matrix [kv_heads, head_dim, head_dim] that a layer's rotated queries and keys are multiplied with.
KEY_MIX = "key_mix"
# Gets each tensor with its name; the model goes on with the tensor that it returns.
Watch = Callable[[str, Array], Array]


def ignore(name: str, values: Array) -> Array:
    """A watch that leaves everything as it is."""
    return values


@dataclass(frozen=True, slots=True, eq=False)
class Past:
    """Keys and values of earlier tokens, layer by layer: [kv_heads, tokens, head_dim]."""

    keys: tuple[Array, ...]
    values: tuple[Array, ...]

    @property
    def tokens(self) -> int:
        """How many there are."""
        return int(self.keys[0].shape[1])


class Thin(NamedTuple):
    """Two thin matrices that are added to a weight as ``up @ down``: [rank, in] and [out, rank]."""

    down: Array
    up: Array


class Llama:
    """A Llama-type decoder with its weights in float32.

    ``Llama(layers=..., hidden=..., ...)`` has random ones; ``openhtp.llm.load`` reads a checkpoint.
    """

    def __init__(
        self,
        *,
        layers: int,
        hidden: int,
        heads: int,
        kv_heads: int,
        head_dim: int,
        vocab: int,
        ffn: int | None = None,
        seed: int = 0,
        **others: Any,
    ) -> None:
        config = LlamaConfig(
            layers=layers,
            hidden=hidden,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            vocab=vocab,
            ffn=3 * hidden if ffn is None else ffn,
            **others,
        )
        number = whole_number(seed)
        if number is None or number < 0:
            raise InvalidArgument(f"seed is {shown(seed)}; expected a number, 0 or more")
        rng = np.random.default_rng(number)
        weights: dict[str, Array] = {}
        for name, shape in self.shapes(config).items():
            if len(shape) == 1:
                weights[name] = np.full(shape, name.endswith("norm"), np.float32)
            elif name != "output" or not config.tied:
                weights[name] = rng.normal(0.0, shape[-1] ** -0.5, shape).astype(np.float32)
        self._set(config, weights, None)

    @classmethod
    def of(cls, config: LlamaConfig, weights: Mapping[str, Array], *, tokenizer: Path | None = None) -> Llama:
        """A model of weights that were read and checked."""
        model = cls.__new__(cls)
        model._set(config, weights, tokenizer)
        return model

    def _set(self, config: LlamaConfig, weights: Mapping[str, Array], tokenizer: Path | None) -> None:
        self.config = config
        self.weights = dict(weights)
        if config.tied:
            self.weights["output"] = self.weights["embed"]
        self.tokenizer = tokenizer

    @property
    def table(self) -> Array:
        """The embedding as layers get it."""
        return np.asarray(self.weights["embed"] * np.float32(self.config.embed_scale), np.float32)

    @staticmethod
    def shapes(config: LlamaConfig) -> dict[str, tuple[int, ...]]:
        """The shape of every weight, by our names; matrices are [out, in]."""
        queries, cache = config.heads * config.head_dim, config.kv_heads * config.head_dim
        inner: dict[str, tuple[int, ...]] = {
            "attention_norm": (config.hidden,),
            "wq": (queries, config.hidden),
            "wk": (cache, config.hidden),
            "wv": (cache, config.hidden),
            "wo": (config.hidden, queries),
            "ffn_norm": (config.hidden,),
            "gate": (config.ffn, config.hidden),
            "up": (config.ffn, config.hidden),
            "down": (config.hidden, config.ffn),
        }
        inner |= {f"{kind}_bias": inner[kind][:1] for kind in config.biases}
        if config.qk_norm:
            inner |= {"q_norm": (config.head_dim,), "k_norm": (config.head_dim,)}
        if config.post_norms:
            inner |= {"attention_post_norm": (config.hidden,), "ffn_post_norm": (config.hidden,)}
        shapes: dict[str, tuple[int, ...]] = {"embed": (config.vocab, config.hidden)}
        for layer in range(config.layers):
            shapes |= {f"layers.{layer}.{name}": shape for name, shape in inner.items()}
        return shapes | {"norm": (config.hidden,), "output": (config.vocab, config.hidden)}

    def empty_past(self, texts: int = 1) -> Past:
        """No tokens yet, of one text or of several."""
        config = self.config
        none = np.zeros((texts * config.kv_heads, 0, config.head_dim), np.float32)
        return Past((none,) * config.layers, (none,) * config.layers)

    def forward(
        self,
        ids: Sequence[int],
        past: Past | None = None,
        watch: Watch = ignore,
        added: Mapping[str, Thin] | None = None,
        *,
        abreast: bool = False,
    ) -> tuple[Array, Past]:
        """Logits [tokens, vocab] of tokens that follow ``past``, and the past with them.

        ``added`` has matrices of an adapter, by the weights that they are added to. ``abreast``: each token is the
        next one of a text of its own.
        """
        config = self.config
        before = self.empty_past(len(ids) if abreast else 1) if past is None else past
        numbers = np.asarray(ids, np.int64)
        if numbers.ndim != 1 or not len(numbers) or numbers.min() < 0 or numbers.max() >= config.vocab:
            raise InvalidArgument(f"ids are not a row of token numbers from 0 to {config.vocab - 1}")
        places = 1 if abreast else len(numbers)
        if config.window is not None and before.tokens + places > config.window:
            raise InvalidArgument(
                f"a text of {before.tokens + places} tokens; this model has layers that see"
                f" {config.window} tokens, and longer texts are not computed"
            )
        run = _Pass(self, config.rotations(before.tokens, places), watch, added or {}, abreast)
        scale = np.float32(config.embed_scale)
        hidden = watch("embed_out", np.asarray(self.weights["embed"][numbers] * scale, np.float32))
        keys, values = [], []
        for layer in range(config.layers):
            hidden, key, value = run.layer(layer, hidden, before.keys[layer], before.values[layer])
            keys.append(key)
            values.append(value)
        last = watch("norm_out", rms_norm(hidden, self.weights["norm"], config.eps))
        logits = last @ self.weights["output"].T * np.float32(product_factor("output", config))
        return capped(watch, "logits", logits, config.logit_cap), Past(tuple(keys), tuple(values))


def product_factor(weight: str, config: LlamaConfig) -> float:
    """The factor of a product with a weight: queries are scaled once, rather than all their scores.

    Numbers that are to be bounded are divided by their bound.
    """
    kind = weight.rpartition(".")[2]
    if kind == ("q_norm" if config.qk_norm else "wq"):
        return float(config.score_scale)
    return 1.0 / config.logit_cap if kind == "output" and config.logit_cap else 1.0


def capped(watch: Watch, name: str, values: Array, cap: float | None) -> Array:
    """Numbers that were divided by a cap, bounded by it; without a cap, the numbers as they are."""
    if cap is None:
        return watch(name, np.asarray(values, np.float32))
    bent = np.tanh(watch(f"raw_{name}", np.asarray(values, np.float32)))
    return watch(name, np.asarray(bent * np.float32(cap), np.float32))


def gelu_tanh(x: Array) -> Array:
    """Gelu, approximated by tanh."""
    inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)
    return np.asarray(0.5 * x * (1.0 + np.tanh(inner)), np.float32)


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """Each row divided by its root mean square, times the weight."""
    return np.asarray(x / np.sqrt(np.mean(x * x, axis=-1, keepdims=True) + eps) * weight, np.float32)


@dataclass(frozen=True, slots=True)
class _Pass:
    model: Llama
    rotations: tuple[Array, Array]
    watch: Watch
    added: Mapping[str, Thin]
    abreast: bool

    def layer(self, number: int, hidden: Array, keys: Array, values: Array) -> tuple[Array, Array, Array]:
        config, watch = self.model.config, self.watch
        prefix = f"layers.{number}."

        def weight(name: str) -> Array:
            return self.model.weights[prefix + name]

        def seen(name: str, x: Array) -> Array:
            return watch(prefix + name, x)

        def linear(name: str, x: Array, kind: str) -> Array:
            scale = np.float32(product_factor(prefix + kind, config))
            y = x @ weight(kind).T
            if kind in config.biases:
                y = y + weight(f"{kind}_bias")
            y = y * scale
            thin = self.added.get(prefix + kind)
            if thin is not None:
                low = seen(f"{name}_down", x @ thin.down.T)
                y = seen(f"{name}_base", y) + seen(f"{name}_up", low @ thin.up.T * scale)
            return seen(name, np.asarray(y, np.float32))

        x = seen("attention_norm_out", rms_norm(hidden, weight("attention_norm"), config.eps))
        q = self._in_heads(linear("q", x, "wq"), config.heads)
        k = self._in_heads(linear("k", x, "wk"), config.kv_heads)
        if config.qk_norm:
            factor = np.float32(product_factor(f"{prefix}q_norm", config))
            q = seen("q_norm_out", rms_norm(q, weight("q_norm") * factor, config.eps))
            k = seen("k_norm_out", rms_norm(k, weight("k_norm"), config.eps))
        q = self._rotated(seen, "q", q)
        k = self._rotated(seen, "k", k)
        mix = self.model.weights.get(f"{prefix}{KEY_MIX}")
        if mix is not None:
            q = seen("q_mixed", _mixed(q, mix, config.heads))
            k = seen("k_mixed", _mixed(k, mix, config.kv_heads))
        centre = self.model.weights.get(f"{prefix}{KEY_CENTRE}")
        if centre is not None:
            k = seen("k_centred", k - np.tile(centre, (len(k) // len(centre), 1))[:, None])
        new_k = seen("key", k)
        new_v = seen("value", self._in_heads(linear("v", x, "wv"), config.kv_heads))
        keys = np.concatenate([keys, new_k], axis=1)
        values = np.concatenate([values, new_v], axis=1)
        joined = _attention(seen, q, keys, values, config.attention_cap)
        if not self.abreast:
            joined = np.ascontiguousarray(joined.transpose(1, 0, 2))
        attended = seen("attended", joined.reshape(len(x), -1))
        result = linear("o", attended, "wo")
        if config.post_norms:
            result = seen("attention_post_norm_out", rms_norm(result, weight("attention_post_norm"), config.eps))
        hidden = seen("after_attention", hidden + result)
        x = seen("ffn_norm_out", rms_norm(hidden, weight("ffn_norm"), config.eps))
        gate = linear("gate_out", x, "gate")
        inner = seen("inner", self._activated(seen, gate) * linear("up_out", x, "up"))
        result = linear("down_out", inner, "down")
        if config.post_norms:
            result = seen("ffn_post_norm_out", rms_norm(result, weight("ffn_post_norm"), config.eps))
        hidden = seen("after_ffn", hidden + result)
        return hidden, keys, values

    def _activated(self, seen: Watch, gate: Array) -> Array:
        if self.model.config.activation == "gelu_tanh":
            return seen("gelu", gelu_tanh(gate))
        slope = seen("sigmoid", np.asarray(1.0 / (1.0 + np.exp(-gate)), np.float32))
        return seen("silu", gate * slope)

    def _rotated(self, seen: Watch, name: str, x: Array) -> Array:
        first, second = np.split(x, 2, axis=-1)
        cos, sin = self.rotations
        low = seen(f"{name}_low", first * cos) - seen(f"{name}_low_turned", second * sin)
        high = seen(f"{name}_high", second * cos) + seen(f"{name}_high_turned", first * sin)
        return seen(f"{name}_rotated", np.concatenate([low, high], axis=-1))

    def _in_heads(self, x: Array, heads: int) -> Array:
        """[tokens, heads * dim] as [heads, tokens, dim]; texts that are abreast have heads of their own."""
        if self.abreast:
            return x.reshape(len(x) * heads, 1, -1)
        return np.ascontiguousarray(x.reshape(len(x), heads, -1).transpose(1, 0, 2))


def _mixed(x: Array, mix: Array, heads: int) -> Array:
    """Elements of each head [heads of one text or several, tokens, head_dim], mixed as its keys are."""
    of_keys = x.reshape(-1, len(mix), heads // len(mix), *x.shape[1:])
    return np.asarray((of_keys @ mix[:, None]).reshape(x.shape), np.float32)


def _attention(seen: Watch, q: Array, keys: Array, values: Array, cap: float | None) -> Array:
    tokens, repeat = q.shape[1], len(q) // len(keys)
    scores = capped(seen, "scores", q @ np.repeat(keys, repeat, axis=0).transpose(0, 2, 1), cap)
    places = np.arange(keys.shape[1])
    future = places[None, :] > (keys.shape[1] - tokens + np.arange(tokens))[:, None]
    masked = np.where(future, -np.inf, scores)
    power = np.exp(masked - masked.max(axis=-1, keepdims=True))
    probabilities = seen("probabilities", np.asarray(power / power.sum(axis=-1, keepdims=True), np.float32))
    return np.asarray(probabilities @ np.repeat(values, repeat, axis=0), np.float32)
