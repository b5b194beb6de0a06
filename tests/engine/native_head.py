"""One attention head with a KV cache: the smallest graph that a native cache can be tried on, on any device."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from openhtp.core.hmx_layout import round_up, tokens_to_native
from openhtp.core.quant import ScaleOffset
from openhtp.runtime.objects.context import Context
from openhtp.runtime.objects.graph import Graph

Array = npt.NDArray[Any]

_KEY, _VALUE = ScaleOffset(0.02, -128), ScaleOffset(0.01, -128)


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeHead:
    """What the head looks like. The defaults are the one structure that an HTP takes.

    ``index`` is how places are made: ``add``, ``multiply`` (by ones, for one token), ``const_first``, ``tile``,
    ``multiply_add`` or ``input`` (all of them given); ``value_index`` is the ``transpose`` of it, or ``own``.
    ``join`` is ``scatter`` or ``concat``. New tokens are made by a ``convert``, or come from the ``client`` in 8
    bits. ``mask`` is ``add``, ``select`` or ``none``.
    """

    tokens: int = 1
    head_dim: int = 64
    context: int = 512
    activation: str = "ufixed16"
    native: tuple[bool, bool] = (True, True)
    native_out: bool = False
    heads: int = 1
    zero_point: int = 128
    index: str = "add"
    index_type: str = "int32"
    value_index: str = "transpose"
    join: str = "scatter"
    new: str = "convert"
    mask: str = "add"
    whole_out: bool = False

    def build(self, context: Context, name: str = "head", **options: Any) -> Graph:
        """Write the graph; it still has to be finalized."""
        return _Writer(self, context.create_graph(name, **options)).write()

    def feeds(self, index: int, seed: int = 0, *, native: bool | None = None) -> dict[str, Array]:
        """Inputs of an execution at a place of the cache: random tokens before it, and a mask that allows them."""
        rng = np.random.default_rng(seed)
        d, n, length = self.head_dim, self.tokens, self.context
        keys, values = self._filled(rng, index)
        tiled = self.native if native is None else (native, native)
        mask = np.zeros((1, 1, n, length), np.uint16 if self.activation == "ufixed16" else np.uint8)
        attend = np.iinfo(mask.dtype).max
        mask[..., :index] = attend
        place = round_up(index)
        mask[..., place : place + n] = np.tri(n, dtype=mask.dtype)[:, : length - place] * attend
        low, high = (20000, 45000) if self.activation == "ufixed16" else (80, 176)
        kind = np.uint16 if self.activation == "ufixed16" else np.uint8
        found: dict[str, Array] = {
            "q": rng.integers(low, high, (self.heads, 1, n, d)).astype(kind),
            "past_key_0_in": tokens_to_native("key", keys) if tiled[0] else keys,
            "past_value_0_in": tokens_to_native("value", values) if tiled[1] else values,
            "cache_index": np.array([place if native is False else index], self._index_dtype()),
        }
        for side, shape in (("k", (self.heads, 1, d, n)), ("v", (self.heads, 1, n, d))):
            tokens = rng.integers(0, 256, shape).astype(np.uint8)
            found |= {f"{side}_new": tokens} if self.new == "client" else {f"{side}_wide": tokens * np.uint16(256)}
        if self.index == "input":
            places = np.arange(n) + index
            found["cache_index"] = np.broadcast_to(places, (1, 1, d, n)).astype(np.int32).copy()
        if self.mask == "add":
            found["attention_mask"] = mask
        elif self.mask == "select":
            found["attention_mask"] = (mask > 0).astype(np.uint8)
        return found

    def _index_dtype(self) -> Any:
        return np.uint32 if self.index_type == "uint32" else np.int32

    def _filled(self, rng: np.random.Generator, tokens: int) -> tuple[Array, Array]:
        keys = np.full((self.heads, 1, self.head_dim, self.context), 128, np.uint8)
        values = np.full((self.heads, 1, self.context, self.head_dim), 128, np.uint8)
        keys[..., :tokens] = rng.integers(0, 256, (*keys.shape[:3], tokens))
        values[..., :tokens, :] = rng.integers(0, 256, (self.heads, 1, tokens, self.head_dim))
        return keys, values


class _Writer:
    def __init__(self, head: NativeHead, graph: Graph) -> None:
        self._head = head
        self._graph = graph
        wide = head.activation == "ufixed16"
        self._q = ScaleOffset(1e-4 if wide else 0.02, -32768 if wide else -128)
        self._scores = ScaleOffset(8e-4 if wide else 0.2, -32768 if wide else -128)
        self._masked = ScaleOffset(1.5e-3 if wide else 0.4, -52000 if wide else -200)
        self._mask = ScaleOffset(50 / 65535 if wide else 50 / 255, -65535 if wide else -255)
        self._chances = ScaleOffset(1 / 65536 if wide else 1 / 256, 0)
        self._out = ScaleOffset(5e-5 if wide else 0.01, -32768 if wide else -128)

    def write(self) -> Graph:
        head, graph = self._head, self._graph
        h, d, n, length = head.heads, head.head_dim, head.tokens, head.context
        self._given("q", (h, 1, n, d), head.activation, self._q)
        key = ScaleOffset(_KEY.scale, -head.zero_point)
        self._given("past_key_0_in", (h, 1, d, length), "ufixed8", key, native=head.native[0])
        self._given("past_value_0_in", (h, 1, length, d), "ufixed8", _VALUE, native=head.native[1])
        self._new("k", (h, 1, d, n), key)
        self._new("v", (h, 1, n, d), _VALUE)
        keys = self._joined("key", (h, 1, d, length), key, 3)
        values = self._joined("value", (h, 1, length, d), _VALUE, 2)
        self._made("scores", "MatMul", ["q", keys], (h, 1, n, length), head.activation, self._scores)
        last = self._masking((h, 1, n, length))
        self._made("chances", "Softmax", [last], (h, 1, n, length), head.activation, self._chances, axis=3)
        self._made("y", "MatMul", ["chances", values], (h, 1, n, d), head.activation, self._out, kind="app_read")
        if head.native_out:
            for side, quant, shape in (("k", key, (h, 1, d, n)), ("v", _VALUE, (h, 1, n, d))):
                self._made(
                    f"{side}_out",
                    "Concat",
                    [f"{side}_new"],
                    shape,
                    "ufixed8",
                    quant,
                    kind="app_read",
                    native=True,
                    axis=0,
                )
        return graph

    def _new(self, side: str, shape: tuple[int, ...], quant: ScaleOffset) -> None:
        """New tokens: 8 bits from the client, or made of 16 bits, whose upper half they are."""
        if self._head.new == "client":
            self._given(f"{side}_new", shape, "ufixed8", quant)
            return
        self._given(f"{side}_wide", shape, "ufixed16", ScaleOffset(quant.scale / 256, quant.offset * 256))
        self._made(f"{side}_new", "Convert", [f"{side}_wide"], shape, "ufixed8", quant)

    def _masking(self, shape: tuple[int, ...]) -> str:
        """Scores of places that may not take part are lowered."""
        kind = self._head.activation
        if self._head.mask == "add":
            self._given("attention_mask", (1, 1, *shape[2:]), kind, self._mask)
            self._made("masked", "ElementWiseAdd", ["scores", "attention_mask"], shape, kind, self._masked)
            return "masked"
        if self._head.mask == "select":
            self._given("attention_mask", (1, 1, *shape[2:]), "ufixed8", ScaleOffset(1.0, 0))
            most = 65535 if kind == "ufixed16" else 255
            below = ScaleOffset(20.0 / most, -most)
            self._graph.add_tensor(
                "b", (1,), kind, quant=below, data=np.zeros(1, np.uint16 if most > 255 else np.uint8)
            )
            one = (*shape[:3], 1)
            self._made(
                "least", "ReduceMin", ["scores"], one, kind, self._scores, axes=np.array([3]), keep_dims=True
            )
            self._made("floor", "ElementWiseAdd", ["least", "b"], one, kind, self._masked)
            inputs = ["attention_mask", "scores", "floor"]
            self._made("masked", "ElementWiseSelect", inputs, shape, kind, self._masked)
            return "masked"
        return "scores"

    def _joined(self, side: str, shape: tuple[int, ...], quant: ScaleOffset, axis: int) -> str:
        head, name = self._head, f"{side}_all"
        new, past = f"{side[0]}_new", f"past_{side}_0_in"
        if head.join == "concat":
            longer = [size + (head.tokens if place == axis else 0) for place, size in enumerate(shape)]
            cut = [[0, size, 1] for size in shape]
            self._made(f"{name}_long", "Concat", [past, new], longer, "ufixed8", quant, axis=axis)
            self._made(name, "StridedSlice", [f"{name}_long"], shape, "ufixed8", quant, ranges=np.array(cut))
            return name
        kind = "app_read" if head.whole_out else "native"
        inputs = [past, self._index(side), new]
        self._made(name, "ScatterElements", inputs, shape, "ufixed8", quant, kind=kind, axis=axis)
        return name

    def _index(self, side: str) -> str:
        head = self._head
        shape = (head.heads, 1, head.head_dim, head.tokens)
        if side == "value" and head.value_index == "transpose":
            turned = (*shape[:2], shape[3], shape[2])
            self._made(
                "value_index", "Transpose", ["key_index"], turned, head.index_type, perm=np.array([0, 1, 3, 2])
            )
            return "value_index"
        if head.index == "input":
            self._given("cache_index", shape, "int32")
            self._graph.add_tensor("zero", shape, "int32", data=np.zeros(shape, np.int32))
            self._made("key_index", "ElementWiseAdd", ["cache_index", "zero"], shape, "int32")
            return "key_index"
        if head.index in ("tile", "multiply", "multiply_add"):
            return self._other_index(shape)
        steps = np.arange(head.tokens, dtype=np.uint32 if head.index_type == "uint32" else np.int32)
        if side == "key":
            self._given("cache_index", (1,), head.index_type)
            iota = np.broadcast_to(steps, shape)
        else:
            shape = (*shape[:2], shape[3], shape[2])
            iota = np.broadcast_to(steps[:, None], shape)
        name = f"{side}_index"
        self._graph.add_tensor(f"{side}_iota", shape, head.index_type, data=np.ascontiguousarray(iota))
        inputs = ["cache_index", f"{side}_iota"]
        self._made(
            name, "ElementWiseAdd", inputs[:: -1 if head.index == "const_first" else 1], shape, head.index_type
        )
        return name

    def _other_index(self, shape: tuple[int, ...]) -> str:
        """Places of the keys, made in ways of which an HTP takes only ``multiply``."""
        head, kind = self._head, self._head.index_type
        self._given("cache_index", (1,), kind)
        self._made("start", "Reshape", ["cache_index"], (1, 1, 1, 1), kind)
        if head.index == "tile":
            self._made("key_index", "Tile", ["start"], shape, kind, multiples=np.array(shape, np.uint32))
            return "key_index"
        whole = np.uint32 if kind == "uint32" else np.int32
        self._graph.add_tensor("ones", shape, kind, data=np.ones(shape, whole))
        name = "key_index" if head.index == "multiply" else "starts"
        self._made(name, "ElementWiseMultiply", ["start", "ones"], shape, kind)
        if head.index == "multiply_add":
            iota = np.ascontiguousarray(np.broadcast_to(np.arange(head.tokens, dtype=whole), shape))
            self._graph.add_tensor("iota", shape, kind, data=iota)
            self._made("key_index", "ElementWiseAdd", ["starts", "iota"], shape, kind)
        return "key_index"

    def _given(
        self, name: str, shape: Any, dtype: str, quant: ScaleOffset | None = None, *, native: bool = False
    ) -> None:
        self._graph.add_tensor(name, shape, dtype, quant=quant, kind="app_write", data_format=8 if native else 0)

    def _made(
        self,
        name: str,
        op: str,
        inputs: list[str],
        shape: Any,
        dtype: str,
        quant: ScaleOffset | None = None,
        *,
        kind: str = "native",
        native: bool = False,
        **params: Any,
    ) -> None:
        self._graph.add_tensor(name, shape, dtype, quant=quant, kind=kind, data_format=8 if native else 0)
        self._graph.add_node(op, inputs=inputs, outputs=[name], params=params)
