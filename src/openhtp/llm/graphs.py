"""One part of a model as a QNN graph that takes N tokens at a time and a KV cache of fixed length.

ScatterElements puts new keys and values into the cache, head by head: the only structure that suits both a flat
and a native cache. In the form that AI Hub exports, Concat puts them behind a cache that is shorter by as many
places, and no index is needed. The tensors between ops have the names under which the float model shows them, so
that their ranges are found by name.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from openhtp.core.dtype import DType
from openhtp.core.enumerations import DataFormat
from openhtp.core.opcall import OpCall
from openhtp.core.quant import AxisScaleOffset, Encoding, ScaleOffset
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.ir.builder import GraphBuilder
from openhtp.ir.graph import Graph
from openhtp.llm.adapter import AdapterPlan
from openhtp.llm.model import KEY_CENTRE, KEY_MIX, Llama, product_factor
from openhtp.llm.quantizing import (
    FIXED,
    INPUTS,
    KV_ZERO,
    Levels,
    Precision,
    Range,
    Ranges,
    activation_encoding,
    kv_encoding,
)

# Masked scores are this much lower than any other, or more: their share rounds to nothing.
MASK_DEPTH = 20.0
_MASK_B = -20.0
_FLAGS = ScaleOffset(1.0, 0)
# The input of embedded tokens, as transformers call it; Genie knows it by that name.
_EMBEDDED = "inputs_embeds"
_U8, _U16 = DType.UFIXED_POINT_8, DType.UFIXED_POINT_16


@dataclass(frozen=True, slots=True, kw_only=True)
class PartPlan:
    """The plan of one graph: layers ``begin`` to ``end``, for ``ar`` tokens and a context."""

    name: str
    number: int
    parts: int
    begin: int
    end: int
    ar: int
    context: int
    native: bool
    native_out: bool
    # Of MaskedSoftmax: "A", "B" or "C"; "" adds the mask.
    pattern: str
    # New tokens follow the cache by Concat; otherwise ScatterElements puts them into it.
    concat: bool = False
    # The rows of the embedding come from the client, in place of token numbers.
    embedded: bool = False

    @property
    def is_first(self) -> bool:
        """Whether it takes tokens."""
        return self.number == 1

    @property
    def is_last(self) -> bool:
        """Whether it gives logits."""
        return self.number == self.parts


def hidden_name(part: int) -> str:
    """The name of the tensor that a part hands to the next."""
    return f"hidden_{part}"


def stored_table(model: Llama, ranges: Ranges, dtype: DType) -> tuple[npt.NDArray[Any], ScaleOffset]:
    """The embedding in the type of activations, so that looking up does not round."""
    quant = activation_encoding(ranges["embed_table"], dtype)
    stored = quant.quantize(model.table, *dtype.integer_range)
    return stored.astype(dtype.numpy), quant


def mask_depth(ranges: Ranges, layers: Sequence[int]) -> float:
    """How much is subtracted from a masked score, so that it is below any other score."""
    spans = [ranges[f"layers.{layer}.scores"] for layer in layers]
    return float(np.ceil(max(high - low for low, high in spans) * 1.1 + MASK_DEPTH))


def part_graph(
    model: Llama,
    plan: PartPlan,
    precision: Precision,
    ranges: Ranges,
    levels: Levels,
    room: AdapterPlan | None = None,
) -> Graph:
    """Write the graph of one part, with room for adapters if there is a plan of them."""
    return _Part(model, plan, precision, ranges, levels, room).write()


class _Part:
    def __init__(
        self,
        model: Llama,
        plan: PartPlan,
        precision: Precision,
        ranges: Ranges,
        levels: Levels,
        room: AdapterPlan | None,
    ) -> None:
        self._model = model
        self._levels = levels
        self._room = room
        self._config = model.config
        self._plan = plan
        self._precision = precision
        self._ranges = ranges
        self._dtype = precision.activation
        self._scribe = Scribe(plan.name)
        self._place = ""
        self._mask: TensorSpec
        self._rotations: tuple[TensorSpec, TensorSpec]
        self._indices: tuple[TensorSpec, TensorSpec] | None = None

    def write(self) -> Graph:
        scribe, plan, config = self._scribe, self._plan, self._config
        if plan.is_first:
            hidden = scribe.reshaped("embed_rows", self._rows(), (plan.ar, config.hidden))
        else:
            shape = (1, 1, plan.ar, config.hidden)
            before = f"layers.{plan.begin - 1}.after_ffn"
            passed = scribe.given(hidden_name(plan.number - 1), shape, self._dtype, self._encoding(before))
            hidden = scribe.reshaped("hidden_rows", passed, (plan.ar, config.hidden))
        self._declare_shared()
        caches: list[tuple[TensorSpec, TensorSpec]] = [
            (self._cache("key", layer), self._cache("value", layer)) for layer in range(plan.begin, plan.end)
        ]
        for layer, (keys, values) in zip(range(plan.begin, plan.end), caches, strict=True):
            self._place = f"layers.{layer}."
            hidden = self._layer(layer, hidden, keys, values)
        self._place = ""
        if plan.is_last:
            normed = self._norm("norm", hidden)
            scribe.made(
                "logits", "Reshape", [self._logits(normed)], (1, plan.ar, config.vocab), result=DataFormat.DENSE
            )
        else:
            shape = (1, 1, plan.ar, config.hidden)
            scribe.made(hidden_name(plan.number), "Reshape", [hidden], shape, result=DataFormat.DENSE)
        return scribe.finish()

    # Inputs

    def _rows(self) -> TensorSpec:
        """The embedding of each token: looked up here, or by the client."""
        scribe, ar, shape = self._scribe, self._plan.ar, (1, self._plan.ar, self._config.hidden)
        stored, quant = stored_table(self._model, self._ranges, self._dtype)
        if self._plan.embedded:
            return scribe.given(_EMBEDDED, shape, self._dtype, quant)
        ids = scribe.given("input_ids", (1, ar), DType.INT_32)
        table = scribe.constant("embed", stored, self._dtype, quant)
        return scribe.made("embed_out", "Gather", [table, ids], shape, axis=0)

    def _declare_shared(self) -> None:
        scribe, plan, config = self._scribe, self._plan, self._config
        shape = (1, 1, plan.ar, plan.context)
        if plan.pattern == "C":
            self._mask = scribe.given("attention_mask", shape, _U8, _FLAGS)
        elif plan.pattern:
            self._mask = self._flags(scribe.given("attention_mask", shape, _U16, _FLAGS))
        else:
            depth = mask_depth(self._ranges, range(config.layers))
            quant = ScaleOffset(depth / (2**self._dtype.bits - 1), -(2**self._dtype.bits - 1))
            self._mask = scribe.given("attention_mask", shape, self._dtype, quant)
        turned = (1, 1, plan.ar, config.head_dim // 2)
        unit = activation_encoding((-1.0, 1.0), self._dtype)
        self._rotations = (
            scribe.given("position_ids_cos", turned, self._dtype, unit),
            scribe.given("position_ids_sin", turned, self._dtype, unit),
        )
        if plan.concat:
            return
        index = scribe.given("cache_index", (1,), DType.INT_32)
        # Sums with one row of ones per element of a head: for each element, the places of its tokens.
        iota = np.broadcast_to(np.arange(plan.ar, dtype=np.int32), (1, 1, config.head_dim, plan.ar))
        places = scribe.constant("iota", iota, DType.INT_32)
        along = scribe.made("key_index", "ElementWiseAdd", [index, places], iota.shape)
        self._indices = along, scribe.transposed("value_index", along, (0, 1, 3, 2))

    def _flags(self, mask: TensorSpec) -> TensorSpec:
        """A 16-bit mask as truth values: kept entries are 0 (pattern A) or not 0 (pattern B)."""
        zero = self._scribe.constant("mask_zero", np.zeros((1,), np.uint16), _U16, _FLAGS)
        op = "ElementWiseEqual" if self._plan.pattern == "A" else "ElementWiseNotEqual"
        return self._scribe.made("keeps", op, [mask, zero], mask.shape, dtype=DType.BOOL_8)

    def _cache(self, side: str, layer: int) -> TensorSpec:
        config, plan = self._config, self._plan
        length = plan.context - (plan.ar if plan.concat else 0)
        matrix = (config.head_dim, length) if side == "key" else (length, config.head_dim)
        quant = kv_encoding(self._ranges[f"layers.{layer}.{side}"])
        tiled = DataFormat.HMX_WEIGHT_LAYOUT if plan.native else DataFormat.DENSE
        return self._scribe.given(f"past_{side}_{layer}_in", (config.kv_heads, 1, *matrix), _U8, quant, tiled)

    # A layer

    def _layer(self, layer: int, hidden: TensorSpec, keys: TensorSpec, values: TensorSpec) -> TensorSpec:
        config, ar = self._config, self._plan.ar
        x = self._norm("attention_norm", hidden)
        q = self._in_heads("q", self._linear("q", x, "wq"), config.heads)
        k = self._in_heads("k", self._linear("k", x, "wk"), config.kv_heads)
        if config.qk_norm:
            q, k = self._norm("q_norm", q), self._norm("k_norm", k)
        q = self._mixed("q", self._rotated("q", q), config.heads)
        k = self._centred(self._mixed("k", self._rotated("k", k), config.kv_heads))
        v = self._in_heads("v", self._linear("v", x, "wv"), config.kv_heads)
        old = [self._updated("key", layer, keys, k), self._updated("value", layer, values, v)]
        heads = [self._attention(head, q, old) for head in range(config.heads)]
        attended = self._scribe.joined(self._name("heads"), heads, -1)
        rows = self._scribe.reshaped(self._name("rows"), attended, (ar, config.heads * config.head_dim))
        result = self._linear("o", rows, "wo")
        if config.post_norms:
            result = self._norm("attention_post_norm", result)
        hidden = self._binary("after_attention", "ElementWiseAdd", hidden, result)
        x = self._norm("ffn_norm", hidden)
        active = self._activated(self._linear("gate_out", x, "gate"))
        inner = self._binary("inner", "ElementWiseMultiply", active, self._linear("up_out", x, "up"))
        result = self._linear("down_out", inner, "down")
        if config.post_norms:
            result = self._norm("ffn_post_norm", result)
        return self._binary("after_ffn", "ElementWiseAdd", hidden, result)

    def _mixed(self, name: str, rotated: TensorSpec, heads: int) -> TensorSpec:
        """Rotated queries or keys with elements mixed head by head, if the layer has a mix."""
        mix = self._model.weights.get(self._name(KEY_MIX))
        if mix is None:
            return rotated
        # Encoded as a cache is, so that these products are of the same types as those of the attention.
        stored = np.repeat(mix + KV_ZERO, heads // len(mix), axis=0)[None].astype(np.uint8)
        signs = self._scribe.constant(self._name(f"{name}_mix"), stored, _U8, ScaleOffset(1.0, -KV_ZERO))
        quant = self._encoding(f"{name}_mixed")
        return self._scribe.made(
            self._name(f"{name}_mixed"), "MatMul", [rotated, signs], rotated.shape, quant=quant
        )

    def _centred(self, keys: TensorSpec) -> TensorSpec:
        """Rotated keys less their centre, if they have one."""
        name = self._name(KEY_CENTRE)
        centre = self._model.weights.get(name)
        if centre is None:
            return keys
        quant = activation_encoding((float(centre.min()), float(centre.max())), self._dtype)
        stored = quant.quantize(centre[None, :, None], *self._dtype.integer_range).astype(self._dtype.numpy)
        point = self._scribe.constant(name, stored, self._dtype, quant)
        return self._binary("k_centred", "ElementWiseSubtract", keys, point)

    def _activated(self, gate: TensorSpec) -> TensorSpec:
        if self._config.activation == "gelu_tanh":
            # The HTP has the exact function only; its approximation by tanh is at most 0.0005 away.
            return self._scribe.made(self._name("gelu"), "Gelu", [gate], gate.shape, quant=self._encoding("gelu"))
        slope = self._scribe.made(
            self._name("sigmoid"), "Sigmoid", [gate], gate.shape, quant=self._encoding("sigmoid")
        )
        return self._binary("silu", "ElementWiseMultiply", gate, slope)

    def _updated(self, side: str, layer: int, past: TensorSpec, new: TensorSpec) -> list[TensorSpec]:
        """The cache of each head with its new tokens, which are also given out."""
        scribe, plan = self._scribe, self._plan
        caches, fresh = [], []
        for head in range(self._config.kv_heads):
            name = self._name(f"{side}_{head}")
            tokens = scribe.sliced(f"{name}_new", new, 1, head, head + 1)
            if side == "key":
                tokens = scribe.transposed(f"{name}_turned", tokens, (0, 1, 3, 2))
            if (tokens.dtype, tokens.quant) != (past.dtype, past.quant):
                tokens = scribe.made(
                    f"{name}_stored", "Convert", [tokens], tokens.shape, dtype=past.dtype, quant=past.quant
                )
            fresh.append(tokens)
            old = scribe.sliced(f"{name}_old", past, 0, head, head + 1)
            caches.append(self._with_new(side, f"{name}_all", old, tokens))
        tiled = DataFormat.HMX_WEIGHT_LAYOUT if plan.native_out else DataFormat.DENSE
        scribe.joined(f"past_{side}_{layer}_out", fresh, 0, result=tiled)
        return caches

    def _with_new(self, side: str, name: str, old: TensorSpec, tokens: TensorSpec) -> TensorSpec:
        axis = 3 if side == "key" else 2
        if self._indices is None:
            return self._scribe.joined(name, [old, tokens], axis)
        index = self._indices[0 if side == "key" else 1]
        return self._scribe.made(name, "ScatterElements", [old, index, tokens], old.shape, axis=axis)

    def _attention(self, head: int, q: TensorSpec, caches: Sequence[Sequence[TensorSpec]]) -> TensorSpec:
        scribe, config, plan = self._scribe, self._config, self._plan
        shared = head // (config.heads // config.kv_heads)
        name = self._name(f"head_{head}")
        query = scribe.sliced(f"{name}_q", q, 1, head, head + 1)
        shape = (1, 1, plan.ar, plan.context)
        cap = config.attention_cap
        kind = "scores" if cap is None else "raw_scores"
        scores = scribe.made(
            f"{name}_{kind}", "MatMul", [query, caches[0][shared]], shape, quant=self._encoding(kind)
        )
        if cap is not None:
            scores = self._capped(f"{name}_scores", scores, cap, "scores")
        masked = self._selected(name, scores) if plan.pattern else self._masked(name, scores)
        chances = scribe.made(
            f"{name}_chances", "Softmax", [masked], shape, quant=self._encoding("probabilities"), axis=3
        )
        out = (1, 1, plan.ar, config.head_dim)
        return scribe.made(
            f"{name}_out", "MatMul", [chances, caches[1][shared]], out, quant=self._encoding("attended")
        )

    def _masked(self, name: str, scores: TensorSpec) -> TensorSpec:
        low, high = self._range("scores")
        depth = mask_depth(self._ranges, range(self._config.layers))
        quant = activation_encoding((low - depth, high), self._dtype)
        return self._scribe.made(
            f"{name}_masked", "ElementWiseAdd", [scores, self._mask], scores.shape, quant=quant
        )

    def _selected(self, name: str, scores: TensorSpec) -> TensorSpec:
        """Masked scores as MaskedSoftmax wants them: the least of their row, and 20 less."""
        scribe = self._scribe
        low, high = self._range("scores")
        least = scribe.made(
            f"{name}_least",
            "ReduceMin",
            [scores],
            (*scores.shape[:-1], 1),
            axes=np.array([3], np.uint32),
            keep_dims=True,
        )
        most = (1 << self._dtype.bits) - 1
        below = ScaleOffset(-_MASK_B / most, -most)
        b = scribe.constant("mask_b", np.zeros((1,), self._dtype.numpy), self._dtype, below)
        wide = activation_encoding((low + _MASK_B, high), self._dtype)
        floor = scribe.made(f"{name}_floor", "ElementWiseAdd", [least, b], least.shape, quant=wide)
        inputs = [self._mask, scores, floor]
        return scribe.made(
            f"{name}_chosen", "ElementWiseSelect", inputs, scores.shape, dtype=self._dtype, quant=wide
        )

    # Pieces of a layer

    def _name(self, name: str) -> str:
        return self._place + name

    def _range(self, name: str) -> Range:
        return FIXED.get(name) or self._ranges[self._name(name)]

    def _encoding(self, name: str) -> ScaleOffset:
        return activation_encoding(self._range(name), self._dtype)

    def _norm(self, name: str, hidden: TensorSpec) -> TensorSpec:
        factor = np.float32(product_factor(self._name(name), self._config))
        weight = self._model.weights[self._name(name)] * factor
        quant = activation_encoding((float(weight.min()), float(weight.max())), self._dtype)
        stored = quant.quantize(weight, *self._dtype.integer_range).astype(self._dtype.numpy)
        gamma = self._scribe.constant(self._name(name), stored, self._dtype, quant)
        return self._scribe.made(
            self._name(f"{name}_out"),
            "RmsNorm",
            [hidden, gamma],
            hidden.shape,
            quant=self._encoding(f"{name}_out"),
            epsilon=self._config.eps,
            axes=np.array([hidden.rank - 1], np.uint32),
        )

    def _logits(self, normed: TensorSpec) -> TensorSpec:
        cap = self._config.logit_cap
        if cap is None:
            return self._linear("logits", normed, "output", bits=8)
        return self._capped("logits_rows", self._linear("raw_logits", normed, "output", bits=8), cap, "logits")

    def _capped(self, output: str, x: TensorSpec, cap: float, name: str) -> TensorSpec:
        """The cap times the tanh of numbers that were divided by it."""
        most = (1 << self._dtype.bits) - 1
        unit = ScaleOffset(2.0 / most, -(most // 2))
        bent = self._scribe.made(f"{output}_bent", "Tanh", [x], x.shape, quant=unit)
        level = np.full((1,), most, self._dtype.numpy)
        factor = self._scribe.constant(f"cap_{cap:g}", level, self._dtype, ScaleOffset(cap / most, 0))
        quant = self._encoding(name)
        return self._scribe.made(output, "ElementWiseMultiply", [bent, factor], x.shape, quant=quant)

    def _linear(self, name: str, x: TensorSpec, weight: str, *, bits: int | None = None) -> TensorSpec:
        width = self._precision.weight_bits if bits is None else bits
        output = self._name(name) if name != "logits" else "logits_rows"
        if self._room is not None and self._name(weight) in self._room.ranks:
            base = self._multiplied(f"{output}_base", x, weight, f"{name}_base", width)
            return self._binary(name, "ElementWiseAdd", base, self._added(name, x, weight))
        return self._multiplied(output, x, weight, name, width)

    def _multiplied(self, output: str, x: TensorSpec, weight: str, name: str, width: int) -> TensorSpec:
        """A product with a weight, plus its bias if it has one; a wide weight is the sum of two."""
        full = self._name(weight)
        if weight not in self._precision.wide:
            stored, quant = self._levels.of(full, width)
            matrix = self._scribe.constant(full, stored, DType.SFIXED_POINT_8, quant)
            return self._product(output, x, [matrix, *self._bias(weight, x, quant)], self._encoding(name))
        high, low = (
            self._scribe.constant(f"{full}_{half}", stored, DType.SFIXED_POINT_8, quant)
            for half, (stored, quant) in zip(("high", "low"), self._levels.halves_of(full), strict=True)
        )
        assert isinstance(high.quant, AxisScaleOffset)
        first = self._product(
            f"{output}_high", x, [high, *self._bias(weight, x, high.quant)], self._encoding(name)
        )
        # No x within its range makes a product with the second matrix larger than this.
        most = self._levels.longest_row(full) * max(map(abs, self._range(INPUTS[weight])))
        second = self._product(f"{output}_low", x, [low], activation_encoding((-most, most), self._dtype))
        sums = [first, second]
        return self._scribe.made(output, "ElementWiseAdd", sums, first.shape, quant=self._encoding(name))

    def _bias(self, weight: str, x: TensorSpec, quant: AxisScaleOffset) -> list[TensorSpec]:
        """The bias of a weight that is stored with some scales, if it has one."""
        if weight not in self._config.biases:
            return []
        assert isinstance(x.quant, ScaleOffset)
        steps, encoding = self._levels.bias_of(self._name(weight), quant, x.quant.scale)
        return [self._scribe.constant(self._name(f"{weight}_bias"), steps, DType.SFIXED_POINT_32, encoding)]

    def _product(
        self, output: str, x: TensorSpec, factors: Sequence[TensorSpec], quant: ScaleOffset
    ) -> TensorSpec:
        """A product with a matrix, plus its bias if that is given, too."""
        shape = (x.shape[0], factors[0].shape[0])
        return self._scribe.made(output, "FullyConnected", [x, *factors], shape, quant=quant)

    def _added(self, name: str, x: TensorSpec, weight: str) -> TensorSpec:
        """The sum that an adapter adds: a product with two thin matrices that can be exchanged."""
        assert self._room is not None
        halves = self._room.halves(self._name(weight), self._config, self._dtype.bits)
        for half, half_name in zip(halves, ("down", "up"), strict=True):
            empty = np.zeros(half.shape, half.dtype.numpy)
            matrix = self._scribe.constant(half.name, empty, half.dtype, half.quant, updateable=True)
            step = f"{name}_{half_name}"
            x = self._product(self._name(step), x, [matrix], self._encoding(step))
        return x

    def _binary(self, name: str, op: str, left: TensorSpec, right: TensorSpec) -> TensorSpec:
        return self._scribe.made(self._name(name), op, [left, right], left.shape, quant=self._encoding(name))

    def _in_heads(self, name: str, x: TensorSpec, heads: int) -> TensorSpec:
        """[tokens, heads * dim] as [1, heads, tokens, dim]."""
        split = self._scribe.reshaped(
            self._name(f"{name}_split"), x, (1, self._plan.ar, heads, self._config.head_dim)
        )
        return self._scribe.transposed(self._name(f"{name}_heads"), split, (0, 2, 1, 3))

    def _rotated(self, name: str, whole: TensorSpec) -> TensorSpec:
        scribe, half = self._scribe, self._config.head_dim // 2
        first = scribe.sliced(self._name(f"{name}_first"), whole, 3, 0, half)
        second = scribe.sliced(self._name(f"{name}_second"), whole, 3, half, 2 * half)
        cos, sin = self._rotations
        product = "ElementWiseMultiply"
        quant = self._encoding(f"{name}_rotated")
        halves = []
        for side, op, by_cos, by_sin in (
            ("low", "ElementWiseSubtract", first, second),
            ("high", "ElementWiseAdd", second, first),
        ):
            parts = [
                self._binary(f"{name}_{side}", product, by_cos, cos),
                self._binary(f"{name}_{side}_turned", product, by_sin, sin),
            ]
            halves.append(scribe.made(self._name(f"{name}_rotated_{side}"), op, parts, first.shape, quant=quant))
        return scribe.joined(self._name(f"{name}_rotated"), halves, 3)


Array = npt.NDArray[Any]
Shape = tuple[int, ...]


class Scribe:
    """A graph being written. Nodes are named after their outputs."""

    def __init__(self, name: str) -> None:
        self._builder = GraphBuilder(name)

    def given(
        self,
        name: str,
        shape: Shape,
        dtype: DType,
        quant: Encoding | None = None,
        data_format: DataFormat = DataFormat.DENSE,
    ) -> TensorSpec:
        """An input."""
        return self._added(TensorSpec(name, shape, dtype, quant, TensorKind.APP_WRITE, data_format=data_format))

    def constant(
        self, name: str, data: Array, dtype: DType, quant: Encoding | None = None, *, updateable: bool = False
    ) -> TensorSpec:
        """A constant, written once however often it is used; ``updateable``: it can be exchanged later."""
        known = self._builder.tensors.get(name)
        if known is not None:
            return known
        kind = TensorKind.UPDATEABLE_STATIC if updateable else TensorKind.STATIC
        spec = TensorSpec(name, data.shape, dtype, quant, kind)
        self._builder.add_tensor(spec, np.ascontiguousarray(data))
        return spec

    def made(
        self,
        name: str,
        op: str,
        inputs: Sequence[TensorSpec],
        shape: Shape,
        *,
        dtype: DType | None = None,
        quant: Encoding | None = None,
        result: DataFormat | None = None,
        **params: Any,
    ) -> TensorSpec:
        """Add a node and return its result; type and encoding are those of the first input unless given.

        ``result`` makes it an output of the graph, in that data format.
        """
        first = inputs[0]
        if dtype is None:
            dtype, quant = first.dtype, first.quant if quant is None else quant
        kind = TensorKind.NATIVE if result is None else TensorKind.APP_READ
        spec = TensorSpec(name, shape, dtype, quant, kind, data_format=result or DataFormat.DENSE)
        self._added(spec)
        self._builder.add_node(OpCall(op, f"{name}:{op}", tuple(inputs), (spec,), params, "qti.aisw"))
        return spec

    def reshaped(self, name: str, tensor: TensorSpec, shape: Shape) -> TensorSpec:
        """The elements of ``tensor`` in another shape."""
        return self.made(name, "Reshape", [tensor], shape)

    def transposed(self, name: str, tensor: TensorSpec, perm: Sequence[int]) -> TensorSpec:
        """Axes in another order."""
        shape = tuple(tensor.shape[axis] for axis in perm)
        return self.made(name, "Transpose", [tensor], shape, perm=np.array(perm, np.uint32))

    def sliced(self, name: str, tensor: TensorSpec, axis: int, begin: int, end: int) -> TensorSpec:
        """A range of one axis; the tensor itself if that is all of it."""
        axis %= tensor.rank
        if (begin, end) == (0, tensor.shape[axis]):
            return tensor
        ranges = [[0, size, 1] for size in tensor.shape]
        ranges[axis] = [begin, end, 1]
        shape = (*tensor.shape[:axis], end - begin, *tensor.shape[axis + 1 :])
        return self.made(name, "StridedSlice", [tensor], shape, ranges=np.array(ranges, np.int32))

    def joined(
        self, name: str, parts: Sequence[TensorSpec], axis: int, result: DataFormat | None = None
    ) -> TensorSpec:
        """Tensors of one encoding behind each other."""
        axis %= parts[0].rank
        total = sum(part.shape[axis] for part in parts)
        shape = (*parts[0].shape[:axis], total, *parts[0].shape[axis + 1 :])
        return self.made(name, "Concat", parts, shape, axis=axis, result=result)

    def finish(self) -> Graph:
        """The verified graph."""
        return self._builder.finish()

    def _added(self, spec: TensorSpec) -> TensorSpec:
        self._builder.add_tensor(spec)
        return spec
