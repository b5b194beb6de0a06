"""A Llama in float: its weights, and plain numpy to compute it with.

Exported graphs are compared with this model and calibrated by it: ``watch`` sees every tensor that a graph will
quantize, under its name in the graph.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from openhtp.core.errors import InvalidArgument
from openhtp.llm.config import LlamaConfig

Array = npt.NDArray[np.float32]
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
        rng = np.random.default_rng(seed)
        weights: dict[str, Array] = {}
        for name, shape in self.shapes(config).items():
            if len(shape) == 1:
                weights[name] = np.ones(shape, np.float32)
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

    @staticmethod
    def shapes(config: LlamaConfig) -> dict[str, tuple[int, ...]]:
        """The shape of every weight, by our names; matrices are [out, in]."""
        queries, cache = config.heads * config.head_dim, config.kv_heads * config.head_dim
        inner = {
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
        run = _Pass(self, config.rotations(before.tokens, places), watch, added or {}, abreast)
        hidden = watch("embed_out", self.weights["embed"][numbers])
        keys, values = [], []
        for layer in range(config.layers):
            hidden, key, value = run.layer(layer, hidden, before.keys[layer], before.values[layer])
            keys.append(key)
            values.append(value)
        last = watch("norm_out", rms_norm(hidden, self.weights["norm"], config.eps))
        return watch("logits", last @ self.weights["output"].T), Past(tuple(keys), tuple(values))


def product_factor(weight: str, config: LlamaConfig) -> float:
    """The factor of a product with a weight: queries are scaled once, rather than all their scores."""
    return float(config.head_dim**-0.5) if weight.endswith(".wq") else 1.0


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
            y = x @ weight(kind).T * scale
            thin = self.added.get(prefix + kind)
            if thin is not None:
                low = seen(f"{name}_down", x @ thin.down.T)
                y = seen(f"{name}_base", y) + seen(f"{name}_up", low @ thin.up.T * scale)
            return seen(name, np.asarray(y, np.float32))

        x = seen("attention_norm_out", rms_norm(hidden, weight("attention_norm"), config.eps))
        q = self._rotated(seen, "q", linear("q", x, "wq"), config.heads)
        new_k = seen("key", self._rotated(seen, "k", linear("k", x, "wk"), config.kv_heads))
        new_v = seen("value", self._in_heads(linear("v", x, "wv"), config.kv_heads))
        keys = np.concatenate([keys, new_k], axis=1)
        values = np.concatenate([values, new_v], axis=1)
        joined = _attention(seen, q, keys, values)
        if not self.abreast:
            joined = np.ascontiguousarray(joined.transpose(1, 0, 2))
        attended = seen("attended", joined.reshape(len(x), -1))
        hidden = seen("after_attention", hidden + linear("o", attended, "wo"))
        x = seen("ffn_norm_out", rms_norm(hidden, weight("ffn_norm"), config.eps))
        gate = linear("gate_out", x, "gate")
        slope = seen("sigmoid", np.asarray(1.0 / (1.0 + np.exp(-gate)), np.float32))
        inner = seen("inner", seen("silu", gate * slope) * linear("up_out", x, "up"))
        hidden = seen("after_ffn", hidden + linear("down_out", inner, "down"))
        return hidden, keys, values

    def _rotated(self, seen: Watch, name: str, x: Array, heads: int) -> Array:
        x = self._in_heads(x, heads)
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


def _attention(seen: Watch, q: Array, keys: Array, values: Array) -> Array:
    tokens, repeat = q.shape[1], len(q) // len(keys)
    scores = seen("scores", q @ np.repeat(keys, repeat, axis=0).transpose(0, 2, 1))
    places = np.arange(keys.shape[1])
    future = places[None, :] > (keys.shape[1] - tokens + np.arange(tokens))[:, None]
    masked = np.where(future, -np.inf, scores)
    power = np.exp(masked - masked.max(axis=-1, keepdims=True))
    probabilities = seen("probabilities", np.asarray(power / power.sum(axis=-1, keepdims=True), np.float32))
    return np.asarray(probabilities @ np.repeat(values, repeat, axis=0), np.float32)
