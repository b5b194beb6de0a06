"""Ranges of keys and values made even before they are stored in 8 bits; the model's results stay the same.

A layer's cache has one scale, and a few of its channels are several times larger than the others, which then have
few steps left. Attention multiplies keys with queries, so a key can be divided by a factor if its query is
multiplied by it. The two elements of a rotation need the same factor. Values are added up and multiplied by the
output matrix, whose columns take the factors. Only weights are changed.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from openhtp.llm.adapter import Adapter
from openhtp.llm.model import Array, Llama, Thin, Watch

# By how much an element may exceed its largest value in the text before it limits all the others.
_ROOM = 1.2
# The factor of an element that is never used is bounded.
_LEAST = 1e-3


@dataclasses.dataclass(frozen=True, slots=True)
class Balance:
    """Factors of rows and columns of weights."""

    rows: Mapping[str, Array]
    columns: Mapping[str, Array]

    def of_model(self, model: Llama) -> Llama:
        """The same model in other weights."""
        weights = dict(model.weights)
        for name, factors in self.rows.items():
            if weights[name].ndim == 1:
                weights[name] = weights[name] * factors
                continue
            weights[name] = weights[name] * factors[:, None]
            if f"{name}_bias" in weights:
                weights[f"{name}_bias"] = weights[f"{name}_bias"] * factors
        for name, factors in self.columns.items():
            weights[name] = weights[name] * factors
        return Llama.of(model.config, weights, tokenizer=model.tokenizer)

    def of_adapter(self, adapter: Adapter) -> Adapter:
        """The same adapter beside those weights."""
        matrices = {name: self.of_thin(name, thin) for name, thin in adapter.matrices.items()}
        return dataclasses.replace(adapter, matrices=matrices)

    def of_thin(self, name: str, thin: Thin) -> Thin:
        """The matrices that an adapter adds to one weight, balanced."""
        rows, columns = self.rows.get(name), self.columns.get(name)
        up = thin.up if rows is None else thin.up * rows[:, None]
        return Thin(thin.down if columns is None else thin.down * columns, up)


class Extent:
    """The largest value of each element of keys and values, found by watching every tensor."""

    def __init__(self) -> None:
        self._largest: dict[str, Array] = {}

    def watch(self) -> Watch:
        """What the model is run with."""

        def seen(name: str, values: Array) -> Array:
            if name.endswith((".key", ".value")):
                peaks = np.abs(values).max(axis=1)
                self._largest[name] = np.maximum(self._largest.get(name, peaks), peaks)
            return values

        return seen

    def balance(self, model: Llama) -> Balance:
        """Factors that make all elements of a layer's keys, and of its values, about equally large."""
        config = model.config
        shared = config.heads // config.kv_heads
        rows: dict[str, Array] = {}
        columns: dict[str, Array] = {}
        for layer in range(config.layers):
            prefix = f"layers.{layer}."
            first, second = np.split(self._largest[f"{prefix}key"], 2, axis=1)
            pair = np.maximum(first, second)
            if config.qk_norm:
                # A norm undoes what the matrix before it does; its weights are common to all heads.
                common = pair.max(axis=0)
                keys = _shares(np.concatenate([common, common]))
                rows[f"{prefix}k_norm"], rows[f"{prefix}q_norm"] = 1.0 / keys, keys
            else:
                keys = _shares(np.concatenate([pair, pair], axis=1))
                rows[f"{prefix}wk"] = 1.0 / keys.reshape(-1)
                rows[f"{prefix}wq"] = np.repeat(keys, shared, axis=0).reshape(-1)
            values = _shares(self._largest[f"{prefix}value"])
            rows[f"{prefix}wv"] = 1.0 / values.reshape(-1)
            columns[f"{prefix}wo"] = np.repeat(values, shared, axis=0).reshape(-1)
        return Balance(rows, columns)


def _shares(largest: Array) -> Array:
    """Each element as a share of the largest one; elements near the largest get 1."""
    most = max(float(largest.max()), 1e-12)
    return np.asarray(np.clip(largest * (_ROOM / most), _LEAST, 1.0), np.float32)


def balanced(
    model: Llama, adapters: Sequence[Adapter], runs: Sequence[Mapping[str, Thin]], windows: Sequence[Sequence[int]]
) -> tuple[Llama, list[Adapter]]:
    """The model and its adapters with even keys and values, measured on some text; ``runs`` as for ranges."""
    extent = Extent()
    for added in runs or ({},):
        for ids in windows:
            model.forward(ids, watch=extent.watch(), added=added)
    balance = extent.balance(model)
    return balance.of_model(model), [balance.of_adapter(adapter) for adapter in adapters]
