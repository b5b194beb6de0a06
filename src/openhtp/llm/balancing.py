"""Ranges of keys and values made even before they are stored in 8 bits; what the model computes stays the same.

A layer's cache has one scale, and a few of its channels are several times larger than the others, which then have
few steps left. Attention takes products of keys with queries: what a key is divided by, its query can be
multiplied by. Both elements that a rotation turns into each other need the same factor. Values are added up
and multiplied by the output matrix, whose columns take their factors. All of it is done in the weights.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from openhtp.llm.adapter import Adapter
from openhtp.llm.model import Array, Llama, Thin, Watch

# How much larger than in the text seen an element may become before it limits all the others.
_ROOM = 1.2
# An element that is never used must not be blown up without end.
_LEAST = 1e-3


@dataclasses.dataclass(frozen=True, slots=True)
class Balance:
    """What rows and columns of weights are multiplied with."""

    rows: Mapping[str, Array]
    columns: Mapping[str, Array]

    def of_model(self, model: Llama) -> Llama:
        """The same model in other weights."""
        weights = dict(model.weights)
        for name, factors in self.rows.items():
            weights[name] = weights[name] * factors[:, None]
        for name, factors in self.columns.items():
            weights[name] = weights[name] * factors
        return Llama.of(model.config, weights, tokenizer=model.tokenizer)

    def of_adapter(self, adapter: Adapter) -> Adapter:
        """The same adapter beside those weights."""
        matrices = {name: self.of_thin(name, thin) for name, thin in adapter.matrices.items()}
        return dataclasses.replace(adapter, matrices=matrices)

    def of_thin(self, name: str, thin: Thin) -> Thin:
        """What is added to one weight."""
        rows, columns = self.rows.get(name), self.columns.get(name)
        up = thin.up if rows is None else thin.up * rows[:, None]
        return Thin(thin.down if columns is None else thin.down * columns, up)


class Extent:
    """How large each element of keys and values becomes, seen by watching every tensor."""

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
            place = f"layers.{layer}."
            first, second = np.split(self._largest[f"{place}key"], 2, axis=1)
            pair = np.maximum(first, second)
            keys = _shares(np.concatenate([pair, pair], axis=1))
            rows[f"{place}wk"] = 1.0 / keys.reshape(-1)
            rows[f"{place}wq"] = np.repeat(keys, shared, axis=0).reshape(-1)
            values = _shares(self._largest[f"{place}value"])
            rows[f"{place}wv"] = 1.0 / values.reshape(-1)
            columns[f"{place}wo"] = np.repeat(values, shared, axis=0).reshape(-1)
        return Balance(rows, columns)


def _shares(largest: Array) -> Array:
    """Each element's part of the largest one; those near it are left as they are."""
    most = max(float(largest.max()), 1e-12)
    return np.asarray(np.clip(largest * (_ROOM / most), _LEAST, 1.0), np.float32)


def balanced(
    model: Llama, adapters: Sequence[Adapter], runs: Sequence[Mapping[str, Thin]], windows: Sequence[Sequence[int]]
) -> tuple[Llama, list[Adapter]]:
    """The model and its adapters with even keys and values, by what some text shows; ``runs`` as for ranges."""
    extent = Extent()
    for added in runs or ({},):
        for ids in windows:
            model.forward(ids, watch=extent.watch(), added=added)
    balance = extent.balance(model)
    return balance.of_model(model), [balance.of_adapter(adapter) for adapter in adapters]
