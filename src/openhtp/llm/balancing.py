"""Ranges of keys and values made even before they are stored in 8 bits; the model's results stay the same.

A layer's cache has one scale, and a few of its channels are several times larger than the others, which then have
few steps left. Attention multiplies keys with queries, so a key can be divided by a factor if its query is
multiplied by it. The two elements of a rotation need the same factor. Values are added up and multiplied by the
output matrix, whose columns take the factors.

Some elements of keys are nearly the same in all places of a text, far from zero. One point is taken from all keys
of a layer: it adds the same to all scores of a query, which their shares do not show. Keys turn from place to
place, so their ranges are those of every place in the context, wherever the text had them.

Before that, the residual stream gets another basis. The layers hand on one vector a token. Every matrix reads it
behind a norm or adds to it, and a norm does not change when the vector is turned, so all of them can turn with
it once the norms' weights are part of the matrices behind them. Steps of a row are as large as its largest weight
asks for, so a basis is better in which the largest weights are smaller; it is found by descent.

Then each pair of elements that turns together is turned by an angle more, as are its queries, so their
product stays as it is. Where a pair of keys lies far from zero and turns slowly, the angle decides how large a
square has to be that holds the pair in all places of the context. Such a pair makes most of the error of 8-bit
keys, as queries multiply it by large numbers.

So it gets the room of pairs that queries hardly look at. Behind the rotation, some elements of a key are mixed:
sums and differences of all of them are stored, in which that pair is large and the others are small. It is stored
several times over then, and errors cancel each other in part. Queries are mixed alike: scores stay as they are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import numpy.typing as npt

from openhtp.llm.adapter import Adapter
from openhtp.llm.config import LlamaConfig
from openhtp.llm.model import KEY_CENTRE, KEY_MIX, Array, Llama, Thin, Watch
from openhtp.llm.quantizing import Range, Ranges

# By how much an element of the values may exceed its largest one in the text before it limits all the others.
_ROOM = 1.2
# The places that each key of the text is turned to, besides its own.
_TURNS = 32
# How much of the difference between the columns of ``down`` is taken away.
_EVENNESS = 0.5
# The factor of an element that is never used is bounded.
_LEAST = 1e-3
# Directions in which the extent of keys is measured, a multiple of four, and places that each key is turned to.
_DIRECTIONS = 96
_PLACES = 33
# The matrices behind each norm of a layer, and those that add to the residual stream.
_BEHIND = {"attention_norm": ("wq", "wk", "wv"), "ffn_norm": ("gate", "up")}
_ADDING = ("wo", "down")
# Steps of a descent, and by how much the first one turns each axis, in radians.
_DESCENT = 224
_SHORTEST_DESCENT = 32
_FIRST_TURN = 0.05
_MOMENTUM = 0.9
# The norms of a row that stand for its largest weight, in the first and in the second half of a descent.
_EXPONENTS = (18, 34)
_LEAST_SHARE = 0.1
# Rows of the output matrix that are looked at, and floating-point operations that a descent may take.
_MOST_ROWS = 2048
_MOST_WORK = 3e11

# Keys that are looked at for mixing, places that each is turned to, pairs that may be mixed with each other, and
# how a pair's share of the error decides about its share of the room.
_SAMPLES, _SAMPLE_TURNS = 256, 8
_MIXED_SIZES = (2, 4, 8, 16, 32)
_ROOM_EXPONENTS = (0.25, 1 / 3, 0.4)
# The least share of a head's error for which a pair is mixed, and of the largest gain for which a layer is.
_LEAST_OF_HEAD, _LEAST_OF_GAINS = 0.02, 0.1

Angles = npt.NDArray[np.float64]


@dataclasses.dataclass(frozen=True, slots=True)
class Balance:
    """Factors of rows and columns of weights, centres and mixes of keys, and the ranges that keys then have."""

    rows: Mapping[str, Array]
    columns: Mapping[str, Array]
    constants: Mapping[str, Array]
    key_ranges: Ranges

    def of_model(self, model: Llama) -> Llama:
        """The same model in other weights."""
        weights = dict(model.weights)
        for name, factors in self.rows.items():
            weights[name] = (weights[name].T * factors).T
            if f"{name}_bias" in weights:
                weights[f"{name}_bias"] = weights[f"{name}_bias"] * factors
        for name, factors in self.columns.items():
            weights[name] = weights[name] * factors
        return Llama.of(model.config, {**weights, **self.constants}, tokenizer=model.tokenizer)

    def with_even_columns(self, model: Llama) -> Balance:
        """Also factors of the columns of ``down``, whose inputs take them from ``up``."""
        rows, columns = dict(self.rows), dict(self.columns)
        for layer in range(model.config.layers):
            factors = _column_factors(model.weights[f"layers.{layer}.down"])
            rows[f"layers.{layer}.up"], columns[f"layers.{layer}.down"] = 1.0 / factors, factors
        return dataclasses.replace(self, rows=rows, columns=columns)

    def of_adapter(self, adapter: Adapter) -> Adapter:
        """The same adapter beside those weights."""
        return dataclasses.replace(adapter, matrices=self.of_run(adapter.matrices))

    def of_run(self, added: Mapping[str, Thin]) -> dict[str, Thin]:
        """The matrices that an adapter adds, beside those weights."""
        return {name: self.of_thin(name, thin) for name, thin in added.items()}

    def of_thin(self, name: str, thin: Thin) -> Thin:
        """The matrices that an adapter adds to one weight, balanced."""
        rows, columns = self.rows.get(name), self.columns.get(name)
        up = thin.up if rows is None else thin.up * rows[:, None]
        return Thin(thin.down if columns is None else thin.down * columns, up)


class Extent:
    """How far each element of keys and values goes, found by watching every tensor of texts from place 0 on."""

    def __init__(self, model: Llama, context: int, *, centred: bool) -> None:
        """``centred``: keys may have a point taken from them; bounded scores would show it."""
        self._config = model.config
        self._mixes = {name: mix for name, mix in model.weights.items() if name.endswith(KEY_MIX)}
        self._context = context
        self._centred = centred and model.config.attention_cap is None
        self._spans: dict[str, tuple[Array, Array]] = {}

    def watch(self) -> Watch:
        """What the model is run with."""

        def seen(name: str, values: Array) -> Array:
            if name.endswith(".value"):
                self._note(name, values)
            elif name.endswith(".k_rotated"):
                layer = name.removesuffix("k_rotated")
                mix = self._mixes.get(f"{layer}{KEY_MIX}")
                for turned in _in_places(self._config, self._context, values, _TURNS):
                    self._note(f"{layer}key", turned if mix is None else turned @ mix)
            return values

        return seen

    def span(self, name: str) -> tuple[Array, Array]:
        """The least and the largest value of each element; of keys, in all places and mixed."""
        return self._spans[name]

    def _note(self, name: str, values: Array) -> None:
        low, high = values.min(axis=1), values.max(axis=1)
        known = self._spans.get(name, (low, high))
        self._spans[name] = np.minimum(known[0], low), np.maximum(known[1], high)

    def balance(self, model: Llama) -> Balance:
        """Factors that make all elements of a layer's keys, and of its values, about equally large."""
        config = self._config
        shared = config.heads // config.kv_heads
        rows: dict[str, Array] = {}
        columns: dict[str, Array] = {}
        centres: dict[str, Array] = {}
        ranges: dict[str, Range] = {}
        for layer in range(config.layers):
            prefix = f"layers.{layer}."
            low, high = self._spans[f"{prefix}key"]
            centre = (low + high) / 2 if self._centred else np.zeros_like(low)
            first, second = np.split(np.maximum(high - centre, centre - low), 2, axis=1)
            pair = np.maximum(first, second)
            mix = self._mixes.get(f"{prefix}{KEY_MIX}")
            if mix is not None:
                # Elements that are mixed need one factor.
                together = mix[:, : pair.shape[1], : pair.shape[1]] != 0
                pair = np.where(together, pair[:, None, :], 0.0).max(axis=2)
            if config.qk_norm:
                # A norm undoes what the matrix before it does; its weights are common to all heads.
                common = pair.max(axis=0)
                keys = _shares(np.concatenate([common, common]))
                rows[f"{prefix}k_norm"], rows[f"{prefix}q_norm"] = 1.0 / keys, keys
            else:
                keys = _shares(np.concatenate([pair, pair], axis=1))
                rows[f"{prefix}wk"] = 1.0 / keys.reshape(-1)
                rows[f"{prefix}wq"] = np.repeat(keys, shared, axis=0).reshape(-1)
            most = float((np.concatenate([pair, pair], axis=1) / keys).max())
            ranges[f"{prefix}key"] = (-most, most)
            if self._centred:
                centres[f"{prefix}{KEY_CENTRE}"] = np.asarray(centre / keys, np.float32)
            low, high = self._spans[f"{prefix}value"]
            values = _shares(np.maximum(-low, high), _ROOM)
            rows[f"{prefix}wv"] = 1.0 / values.reshape(-1)
            columns[f"{prefix}wo"] = np.repeat(values, shared, axis=0).reshape(-1)
        return Balance(rows, columns, centres, ranges)


def _in_places(config: LlamaConfig, context: int, keys: Array, turns: int) -> Iterator[Array]:
    """Keys [kv_heads, tokens, head_dim] as they would be in other places of the context."""
    last = max(0, context - keys.shape[1])
    first, second = np.split(keys, 2, axis=-1)
    for begin in sorted({last * turn // turns for turn in range(turns + 1)}):
        cos, sin = config.rotations(begin, 1, context)
        yield np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1)


def _shares(largest: Array, room: float = 1.0) -> Array:
    """Each element as a share of the largest one; elements near the largest get 1."""
    most = max(float(largest.max()), 1e-12)
    return np.asarray(np.clip(largest * (room / most), _LEAST, 1.0), np.float32)


def _column_factors(matrix: Array) -> Array:
    """Factors of columns that make those smaller whose weights limit the steps of their rows."""
    shares = np.abs(matrix) / np.maximum(np.abs(matrix).max(axis=1, keepdims=True), 1e-12)
    factors = np.maximum(shares.max(axis=0), _LEAST) ** -_EVENNESS
    return np.asarray(factors / np.exp(np.log(factors).mean()), np.float32)


@dataclasses.dataclass(frozen=True, slots=True)
class Framing:
    """An angle for each pair of the rows of some weights: [heads, pairs of a head]."""

    angles: Mapping[str, Angles]

    def of_model(self, model: Llama) -> Llama:
        """The same model in other weights."""
        weights = dict(model.weights)
        for name in self.angles:
            weights[name] = self._turned(name, weights[name])
            if f"{name}_bias" in weights:
                weights[f"{name}_bias"] = self._turned(name, weights[f"{name}_bias"])
        return Llama.of(model.config, weights, tokenizer=model.tokenizer)

    def of_adapter(self, adapter: Adapter) -> Adapter:
        """The same adapter beside those weights."""
        return dataclasses.replace(adapter, matrices=self.of_run(adapter.matrices))

    def of_run(self, added: Mapping[str, Thin]) -> dict[str, Thin]:
        """The matrices that an adapter adds, beside those weights."""
        return {name: Thin(thin.down, self._turned(name, thin.up)) for name, thin in added.items()}

    def _turned(self, name: str, matrix: Array) -> Array:
        """Rows of a weight, turned pair by pair."""
        angles = self.angles.get(name)
        if angles is None:
            return matrix
        heads, half = angles.shape
        pairs = matrix.astype(np.float64).reshape(heads, 2, half, -1)
        cos, sin = np.cos(angles)[..., None], np.sin(angles)[..., None]
        first, second = pairs[:, 0], pairs[:, 1]
        turned = np.stack([first * cos - second * sin, first * sin + second * cos], axis=1)
        return np.asarray(turned.reshape(matrix.shape), np.float32)


class Reach:
    """How far pairs of keys reach in every direction, found by watching texts from place 0 on."""

    def __init__(self, config: LlamaConfig, context: int, *, centred: bool) -> None:
        """``centred``: a point may be taken from keys, so their distance from zero does not count."""
        self._config = config
        self._context = context
        self._centred = centred
        self._reach: dict[str, Angles] = {}

    def watch(self) -> Watch:
        """What the model is run with."""

        def seen(name: str, values: Array) -> Array:
            if name.endswith(".k_rotated"):
                self._note(name, values)
            return values

        return seen

    def framing(self) -> Framing:
        """The angles with which the keys of each layer fit into the smallest squares."""
        shared = self._config.heads // self._config.kv_heads
        angles: dict[str, Angles] = {}
        for name, reach in self._reach.items():
            prefix = name.removesuffix("k_rotated")
            best = self._best_angles(self._in_all_places(reach))
            angles[f"{prefix}wk"] = best
            angles[f"{prefix}wq"] = np.repeat(best, shared, axis=0)
        return Framing(angles)

    def _note(self, name: str, keys: Array) -> None:
        """``keys`` are [kv_heads, tokens, head_dim], turned by their places; turned back, they are at place 0."""
        heads, tokens, size = keys.shape
        cos, sin = self._config.rotations(0, tokens, self._context)
        low, high = keys[..., : size // 2], keys[..., size // 2 :]
        first, second = low * cos + high * sin, high * cos - low * sin
        known = self._reach.get(name)
        reach = np.empty((_DIRECTIONS, heads, size // 2))
        for number in range(_DIRECTIONS):
            angle = 2 * np.pi * number / _DIRECTIONS
            reach[number] = (first * np.float32(np.cos(angle)) + second * np.float32(np.sin(angle))).max(axis=1)
        self._reach[name] = reach if known is None else np.maximum(known, reach)

    def _in_all_places(self, reach: Angles) -> Angles:
        """How far keys reach that may lie in any place: each pair is turned by a part of a round."""
        wide = np.full_like(reach, -np.inf)
        for begin in np.linspace(0, self._context - 1, _PLACES).astype(int):
            cos, sin = self._config.rotations(int(begin), 1, self._context)
            steps = np.rint(np.arctan2(sin[0], cos[0]) * _DIRECTIONS / (2 * np.pi)).astype(int)
            for pair, step in enumerate(steps):
                wide[..., pair] = np.maximum(wide[..., pair], np.roll(reach[..., pair], step, axis=0))
        return wide

    def _best_angles(self, reach: Angles) -> Angles:
        """The angle by which each pair is to be turned."""
        quarter = _DIRECTIONS // 4
        ahead, behind = reach[: 2 * quarter], reach[2 * quarter :]
        spans = ahead + behind if self._centred else np.maximum(ahead, behind)
        squares = np.maximum(spans[:quarter], spans[quarter:])
        # The square along a direction is the square along the axes for pairs that are turned back by its angle.
        return np.asarray(-2 * np.pi * squares.argmin(axis=0) / _DIRECTIONS)


def framed(
    model: Llama,
    adapters: Sequence[Adapter],
    runs: Sequence[Mapping[str, Thin]],
    windows: Sequence[Sequence[int]],
    *,
    context: int,
    centred: bool,
) -> tuple[Llama, list[Adapter], list[Mapping[str, Thin]]]:
    """The model, its adapters and its runs with keys in smaller ranges, measured on some text.

    Norms of keys have weights for each element, so keys with norms stay as they are.
    """
    if model.config.qk_norm:
        return model, list(adapters), list(runs)
    reach = Reach(model.config, context, centred=centred and model.config.attention_cap is None)
    for added in runs or ({},):
        for ids in windows:
            model.forward(ids, watch=reach.watch(), added=added)
    framing = reach.framing()
    others = [framing.of_adapter(adapter) for adapter in adapters]
    return framing.of_model(model), others, [framing.of_run(added) for added in runs]


class _Mixer:
    """Chooses which pairs of each head's keys are mixed, from keys and queries of texts from place 0 on."""

    def __init__(self, config: LlamaConfig, context: int, tokens: int) -> None:
        """``tokens`` is how many it will be shown."""
        self._config = config
        self._context = context
        self._stride = max(1, -(-tokens // _SAMPLES))
        self._keys: dict[str, list[Array]] = {}
        # How large queries are: the sum of the squares of each pair, for each head of keys.
        self._squares: dict[str, Angles] = {}

    def watch(self) -> Watch:
        """What the model is run with."""

        def seen(name: str, values: Array) -> Array:
            layer, _, kind = name.rpartition(".")
            if kind == "k_rotated":
                turned = _in_places(self._config, self._context, values, _SAMPLE_TURNS)
                self._keys.setdefault(layer, []).extend(keys[:, :: self._stride] for keys in turned)
            elif kind == "q_rotated":
                squares = np.square(values.astype(np.float64)).sum(axis=1)
                of_pairs = squares.reshape(self._config.kv_heads, -1, 2, squares.shape[1] // 2).sum(axis=(1, 2))
                self._squares[layer] = self._squares.get(layer, 0.0) + of_pairs
            return values

        return seen

    def balance(self) -> Balance:
        """Factors of keys and queries, and the mixes of layers in which that pays."""
        found = {layer: self._of_layer(layer) for layer in self._keys}
        most = max(gain for _, _, gain in found.values())
        shared, rows, mixes = self._config.heads // self._config.kv_heads, {}, {}
        for layer, (factors, mix, gain) in found.items():
            if gain <= _LEAST_OF_GAINS * most or not gain:
                continue
            mixes[f"{layer}.{KEY_MIX}"], both = mix, np.tile(factors, 2)
            rows[f"{layer}.wk"] = np.asarray(both.reshape(-1), np.float32)
            # Mixing both multiplies products by the number of elements that are mixed.
            back = 1.0 / (both * np.abs(mix).sum(axis=2))
            rows[f"{layer}.wq"] = np.asarray(np.repeat(back, shared, axis=0).reshape(-1), np.float32)
        return Balance(rows, {}, mixes, {})

    def _of_layer(self, layer: str) -> tuple[Angles, Array, float]:
        """Factors of pairs [kv_heads, pairs], the mix, and by how much the error of scores gets smaller."""
        keys, squares = np.concatenate(self._keys[layer], axis=1), self._squares[layer]
        size, factors, gains = self._config.head_dim, np.ones(squares.shape), 0.0
        mix = np.tile(np.eye(size, dtype=np.float32), (len(keys), 1, 1))
        for head, of_head in enumerate(keys):
            halves = np.stack(np.split(of_head.astype(np.float64), 2, axis=-1))
            for pairs, shares, gain in _mixed_pairs(halves, squares[head]):
                factors[head, pairs] = shares
                for half in (0, size // 2):
                    mix[head][np.ix_(pairs + half, pairs + half)] = _signs(len(pairs))
                gains += gain
        return factors, mix, gains


def _mixed_pairs(halves: Angles, squares: Angles) -> Iterator[tuple[npt.NDArray[np.int64], Angles, float]]:
    """Pairs of a head that are mixed with each other, their factors, and by how much their error gets smaller.

    ``halves`` are keys [2, tokens, pairs]. A pair's error is the square of its range times that of its queries.
    The pair with the largest error gets the room of those with the smallest ones.
    """
    ranges = np.maximum(np.ptp(halves, axis=1).max(axis=0) / 2, 1e-12)
    errors = squares * np.square(ranges)
    left, total = [int(pair) for pair in np.argsort(-errors, kind="stable")], errors.sum()
    while len(left) > 1 and errors[left[0]] > _LEAST_OF_HEAD * total:
        best: tuple[npt.NDArray[np.int64], Angles, float] | None = None
        for size in _MIXED_SIZES:
            if size > len(left):
                break
            pairs = np.array([left[0], *left[len(left) - size + 1 :]])
            for exponent in _ROOM_EXPONENTS:
                shares = np.maximum(errors[pairs] / total, 1e-12) ** exponent / ranges[pairs]
                most = np.ptp((halves[..., pairs] * shares) @ _signs(size), axis=1).max() / 2
                after = most * most * (squares[pairs] / np.square(shares)).sum() / size
                gain = float(errors[pairs].sum() - after)
                if gain > (0.0 if best is None else best[2]):
                    best = pairs, shares / most, gain
        if best is None:
            left = left[1:]
            continue
        yield best
        left = left[1 : len(left) - len(best[0]) + 1]


def _signs(size: int) -> Array:
    """A matrix of 1 and -1 [size, size] whose rows are orthogonal; it is symmetric."""
    signs = np.ones((1, 1), np.float32)
    while len(signs) < size:
        signs = np.block([[signs, signs], [signs, -signs]])
    return signs


def mixed(
    model: Llama,
    adapters: Sequence[Adapter],
    runs: Sequence[Mapping[str, Thin]],
    windows: Sequence[Sequence[int]],
    *,
    context: int,
) -> tuple[Llama, list[Adapter], list[Mapping[str, Thin]]]:
    """The model, its adapters and its runs with keys that are mixed where that makes scores more exact.

    Norms of keys have weights for each element, so keys with norms stay as they are.
    """
    if model.config.qk_norm:
        return model, list(adapters), list(runs)
    mixer = _Mixer(model.config, context, max(1, len(runs)) * sum(map(len, windows)))
    for added in runs or ({},):
        for ids in windows:
            model.forward(ids, watch=mixer.watch(), added=added)
    balance = mixer.balance()
    others = [balance.of_adapter(adapter) for adapter in adapters]
    return balance.of_model(model), others, [balance.of_run(added) for added in runs]


@dataclasses.dataclass(frozen=True, slots=True)
class Basis:
    """Other axes for the residual stream, as the columns of a matrix, and the weights that norms had before."""

    axes: Array
    norms: Mapping[str, Array]

    def of_model(self, model: Llama) -> Llama:
        """The same model in other weights; the norms that matrices follow have the weight 1."""
        weights = {name: self._turned(name, weight) for name, weight in model.weights.items()}
        weights |= {name: np.ones_like(weight) for name, weight in self.norms.items()}
        # The output matrix has the weights of a norm in it, so it is no longer the embedding.
        return Llama.of(dataclasses.replace(model.config, tied=False), weights, tokenizer=model.tokenizer)

    def of_adapter(self, adapter: Adapter) -> Adapter:
        """The same adapter beside those weights."""
        return dataclasses.replace(adapter, matrices=self.of_run(adapter.matrices))

    def of_run(self, added: Mapping[str, Thin]) -> dict[str, Thin]:
        """The matrices that an adapter adds, beside those weights."""
        return {
            name: Thin(thin.down, self._turned(name, thin.up))
            if name.endswith(_ADDING)
            else Thin(self._turned(name, thin.down), thin.up)
            for name, thin in added.items()
        }

    def _turned(self, name: str, weight: Array) -> Array:
        """A weight that reads the residual stream, or adds to it, in terms of the new axes."""
        kind = name.rpartition(".")[2]
        if name == "embed":
            return np.asarray(weight @ self.axes, np.float32)
        if kind.removesuffix("_bias") in _ADDING:
            return np.asarray(self.axes.T @ weight, np.float32)
        norm = norm_before(name)
        return weight if norm is None else np.asarray((weight * self.norms[norm]) @ self.axes, np.float32)


def norm_before(name: str) -> str | None:
    """The norm whose results a matrix is multiplied with, if it reads the residual stream."""
    layer, _, kind = name.rpartition(".")
    if name == "output":
        return "norm"
    return next((f"{layer}.{norm}" for norm, kinds in _BEHIND.items() if kind in kinds), None)


def basis_for(model: Llama) -> Basis | None:
    """Axes on which the largest weights of rows are smaller.

    None if norms follow matrices, as their weights belong to the old axes, or if looking for axes takes too long.
    """
    if model.config.post_norms:
        return None
    descent = _Descent(model)
    norms = {norm: model.weights[norm] for norm in map(norm_before, model.weights) if norm is not None}
    return Basis(descent.axes(), norms) if descent.steps >= _SHORTEST_DESCENT else None


class _Descent:
    """Looks for the axes on which the largest weights of the output matrix and of ``down`` are smallest.

    These two make most of the error of 8-bit weights.
    """

    def __init__(self, model: Llama) -> None:
        self._size = model.config.hidden
        output = np.asarray(model.weights["output"] * model.weights["norm"], np.float32)
        output = output[:: -(-len(output) // _MOST_ROWS)]
        self._output: Array = output / _largest_weights(output)
        downs = [model.weights[f"layers.{layer}.down"] for layer in range(model.config.layers)]
        self._downs = [down / _largest_weights(down) for down in downs]
        work = 4 * self._size * (output.size + downs[0].size)
        self.steps = min(_DESCENT, int(_MOST_WORK / work))

    def axes(self) -> Array:
        """The axes, as the columns of a matrix."""
        axes: Array = np.eye(self._size, dtype=np.float32)
        whole, pace = axes, np.zeros_like(axes)
        for step in range(self.steps):
            down = self._downs[step % len(self._downs)]
            exponent = _EXPONENTS[2 * step // self.steps]
            slope = self._output.T @ _slope(self._output @ axes, exponent)
            slope += down @ _slope(axes.T @ down, exponent).T
            turn = axes.T @ slope
            pace = np.asarray(_MOMENTUM * pace + (turn - turn.T), np.float32)
            length = float(np.sqrt(np.square(pace).sum(axis=1).mean())) + 1e-30
            half = pace * np.float32(_FIRST_TURN * (1 - step / self.steps) / length / 2)
            # This quotient is orthogonal for any antisymmetric matrix.
            axes = np.asarray(axes @ np.linalg.solve(whole + half, whole - half), np.float32)
        left, _, right = np.linalg.svd(axes.astype(np.float64))
        return np.asarray(left @ right, np.float32)


def _largest_weights(matrix: Array) -> np.float32:
    """The largest weights of all rows, as the root of the sum of their squares."""
    return np.float32(max(np.sqrt(np.square(np.abs(matrix).max(axis=1)).sum()), 1e-20))


def _slope(matrix: Array, exponent: int) -> Array:
    """How the squares of rows' norms with that exponent, less 2 a power of 2, grow with each weight."""
    shares = np.abs(matrix)
    shares /= np.maximum(shares.max(axis=1, keepdims=True), np.float32(1e-20))
    # Powers of smaller ones count for nothing, and computing with numbers that small takes many times as long.
    shares[shares < _LEAST_SHARE] = 0.0
    squares = power = np.square(shares)
    for _ in range((exponent - 2).bit_length() - 2):
        power = np.square(power)
    totals = (power * squares).sum(axis=1, keepdims=True)
    return np.asarray(power * matrix * totals ** np.float32(2 / exponent - 1), np.float32)


def balanced(
    model: Llama,
    adapters: Sequence[Adapter],
    runs: Sequence[Mapping[str, Thin]],
    windows: Sequence[Sequence[int]],
    *,
    context: int,
    wide: bool,
    rebased: bool = False,
    mixes: bool = False,
) -> tuple[Llama, list[Adapter], Ranges]:
    """The model and its adapters with even keys and values, measured on some text, and the ranges of keys.

    ``runs`` as for ranges. ``wide``: activations have steps to spare, so keys can be centred, and the inputs of
    ``down`` may be uneven. ``rebased``: the residual stream may have other axes. ``mixes``: keys may be mixed.
    """
    basis = basis_for(model) if rebased else None
    if basis is not None:
        model, adapters = basis.of_model(model), [basis.of_adapter(adapter) for adapter in adapters]
        runs = [basis.of_run(added) for added in runs]
    model, adapters, runs = framed(model, adapters, runs, windows, context=context, centred=wide)
    if mixes:
        model, adapters, runs = mixed(model, adapters, runs, windows, context=context)
    extent = Extent(model, context, centred=wide)
    for added in runs or ({},):
        for ids in windows:
            model.forward(ids, watch=extent.watch(), added=added)
    balance = extent.balance(model)
    if wide:
        balance = balance.with_even_columns(model)
    return balance.of_model(model), [balance.of_adapter(adapter) for adapter in adapters], balance.key_ranges
