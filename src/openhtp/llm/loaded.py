"""A bundle on a device: contexts, graphs and memory of its parts, and how one pass goes through them."""

from __future__ import annotations

import contextlib
import functools
import math
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from openhtp.core.enumerations import Priority
from openhtp.core.errors import OutOfMemory, QnnError, UnsupportedFeature
from openhtp.core.hmx_layout import tokens_from_native
from openhtp.core.quant import ScaleOffset
from openhtp.core.threads import beside
from openhtp.core.units import bytes_in_words
from openhtp.llm.bundle import Bundle
from openhtp.llm.cache import KvCache, PartCache, part_shapes
from openhtp.llm.graphs import hidden_name
from openhtp.llm.positions import stored_turns
from openhtp.llm.quantizing import KV_ZERO, PRECISIONS
from openhtp.program.sections import section_for
from openhtp.runtime.calls.execution import Execution
from openhtp.runtime.objects.context import Context
from openhtp.runtime.objects.device import Device
from openhtp.runtime.objects.graph import Graph
from openhtp.runtime.objects.mem import Mem

Array = npt.NDArray[Any]

_TURNS = ("position_ids_cos", "position_ids_sin")
# Stands for the adapter of a graph while it is exchanged, or if that failed: no adapter has this name.
_UNKNOWN = "?"
# Each array of a buffer begins at a multiple of this.
_ALIGNED = 64


class LoadedBundle:
    """The contexts of all parts. Several sequences may share them; each sequence has memory of its own."""

    def __init__(
        self, bundle: Bundle, device: Device, *, priority: Priority | str | int, queue_depth: int
    ) -> None:
        if bundle.about.native_out and device.backend.library is not None:
            raise UnsupportedFeature(
                "the bundle gives new keys and values in native layout, and the vendor's library gives rows"
                " whatever is asked for; export it without native_out"
            )
        if bundle.about.concat_kv:
            raise UnsupportedFeature(
                "the bundle has Concat caches (concat_kv), which this generator does not keep; run it with"
                " `openhtp genie chat`, or export it without concat_kv"
            )
        if bundle.about.embedding is not None:
            raise UnsupportedFeature(
                "the bundle takes embedded tokens (embedding_input), which this generator does not look up; run it"
                " with `openhtp genie chat`, or export it without embedding_input"
            )
        self.bundle = bundle
        self.device = device
        self.contexts: list[Context] = []
        # The adapter of each graph; graphs that are missing here have none, as they came.
        self._held: dict[str, str | None] = {}
        self._base: dict[str, bytes] = {}
        self._applying = threading.Lock()
        try:
            for binary in bundle.binaries:
                context = device.create_context_from_binary(binary, priority=priority, queue_depth=queue_depth)
                self.contexts.append(context)
        except BaseException:
            self.free()
            raise

    def graph(self, ar: int, part: int, context: int) -> Graph:
        """The graph of one part (from 0) for passes of ``ar`` tokens."""
        return self.contexts[part].graph(self.bundle.graph_name(ar, part + 1, context))

    def holds(self, graph: Graph, adapter: str | None) -> bool:
        """Whether a graph has this adapter."""
        return self._held.get(graph.name) == adapter

    def apply(self, part: int, graph: Graph, adapter: str | None) -> None:
        """Apply an adapter to a graph of one part; executions that were queued before keep the old one."""
        context, name = self.contexts[part], graph.name
        with self._applying:
            if name not in self._base:
                self._base[name] = context.get_binary_section(name)
            section = self._base[name] if adapter is None else self.bundle.adapters[adapter][part]
            self._held[name] = _UNKNOWN
            context.apply_binary_section(name, section_for(section, name))
            self._held[name] = adapter

    def free(self) -> None:
        """Free the contexts that are still there."""
        for context in self.contexts:
            with contextlib.suppress(QnnError):
                context.free()
        self.contexts = []


@dataclass(frozen=True, slots=True, eq=False)
class _LoadedPart:
    """One part's graph and its memory; new keys and values of all its layers lie together."""

    graph: Graph
    inputs: dict[str, Array]
    outputs: dict[str, Array]
    new_keys: Array
    new_values: Array
    native_out: bool
    turns: ScaleOffset


class Sequencer:
    """Memory of one sequence, and passes on it."""

    def __init__(
        self, loaded: LoadedBundle, cache: KvCache | None, context: int, adapter: str | None = None
    ) -> None:
        """``cache`` is the cache of an earlier sequencer, whose tokens are kept."""
        self._loaded = loaded
        self._bundle = loaded.bundle
        self._config = loaded.bundle.config
        self._memories: list[Mem] = []
        self._stages: dict[int, list[_LoadedPart]] = {}
        self._under_way: list[Execution] = []
        self._past: dict[str, Array] = {}
        self._turned: tuple[Array, Array] = (np.zeros(0), np.zeros(0))
        self.kv_update_ns = 0
        self.adapter = adapter
        try:
            parts = [self._part_cache(number, context) for number in range(self._bundle.parts)]
        except OutOfMemory as error:
            self.free()
            sizes = self._config
            raise OutOfMemory(
                f"the KV cache needs {bytes_in_words(sizes.kv_bytes(context))} ({sizes.layers} layers x 2 x"
                f" {sizes.kv_heads} heads x {sizes.head_dim} x {context} tokens), beside the weights:"
                f" {error.message}",
                error.status,
            ) from error
        if cache is None:
            cache = KvCache(self._config, parts, context, native=self._bundle.about.native_kv)
        else:
            cache.move(parts, context)
        self.cache = cache

    async def run(self, ar: int, tokens: Sequence[int]) -> Array:
        """One pass: stored logits [tokens, vocab]. The new tokens are written into the cache, but not counted yet.

        While a part runs, the keys and values of the one before are written.
        """
        if self._under_way:
            await self._settle()
        stages = self._stages.get(ar)
        if stages is None:
            stages = self._stages[ar] = self._make_stages(ar)
        self._fill(stages, ar, tokens)
        begin, count = self.cache.valid, len(tokens)
        for number, stage in enumerate(stages):
            # Another sequence may change the adapter while this one waits, so it is checked again.
            while not self._loaded.holds(stage.graph, self.adapter):
                apply = functools.partial(self._loaded.apply, number, stage.graph, self.adapter)
                await beside(apply, name="openhtp-adapter")
            execution = stage.graph.execute_async(stage.inputs, stage.outputs)
            self._under_way.append(execution)
            if number:
                self._write(number - 1, stages[number - 1], begin, count)
            await execution
            self._under_way.remove(execution)
            if number + 1 < len(stages):
                name = hidden_name(number + 1)
                stages[number + 1].inputs[name][...] = stage.outputs[name]
        self._write(len(stages) - 1, stages[-1], begin, count)
        logits: Array = stages[-1].outputs["logits"][0, :count]
        return logits

    async def _settle(self) -> None:
        """Wait for the executions of an interrupted pass, because their memory is about to be used again."""
        while self._under_way:
            execution = self._under_way[-1]
            execution.cancel()
            with contextlib.suppress(QnnError):
                await execution
            self._under_way.remove(execution)

    def _write(self, part: int, stage: _LoadedPart, begin: int, count: int) -> None:
        started = time.perf_counter_ns()
        keys, values = stage.new_keys, stage.new_values
        if stage.native_out:
            keys, values = tokens_from_native("key", keys), tokens_from_native("value", values)
        self.cache.write(part, begin, keys, values, count)
        self.kv_update_ns += time.perf_counter_ns() - started

    def free(self) -> None:
        """Give the memory back."""
        for mem in self._memories:
            with contextlib.suppress(QnnError):
                mem.deregister()
        self._memories = []

    @functools.cached_property
    def logits_encoding(self) -> ScaleOffset:
        """How stored logits are read."""
        graph = self._loaded.graph(self._bundle.ar[-1], self._bundle.parts - 1, self.cache.context)
        quant = graph.tensors["logits"].quant
        assert isinstance(quant, ScaleOffset)
        return quant

    # Inputs

    def _fill(self, stages: Sequence[_LoadedPart], ar: int, tokens: Sequence[int]) -> None:
        """Fill in tokens, positions, mask and place of a pass; the rest is padding."""
        cache, count = self.cache, len(tokens)
        first = stages[0].inputs
        first["input_ids"][0, :count] = tokens
        first["input_ids"][0, count:] = 0
        for name, values in zip(_TURNS, self._turns(stages[0], cache.position + ar), strict=True):
            first[name][0, 0] = values[cache.position : cache.position + ar]
        first["cache_index"][0] = cache.index
        self._fill_mask(first["attention_mask"][0, 0], ar)
        for stage in stages[1:]:
            for name in (*_TURNS, "cache_index", "attention_mask"):
                stage.inputs[name][...] = first[name]

    def _turns(self, stage: _LoadedPart, count: int) -> tuple[Array, Array]:
        """Stored cosines and sines of at least the first ``count`` positions; more are kept for later."""
        if len(self._turned[0]) < count:
            kind = stage.inputs[_TURNS[0]].dtype
            more = max(count, 2 * len(self._turned[0]), self.cache.context)
            self._turned = stored_turns(self._config.angles(0, more, self._bundle.context), stage.turns, kind)
        return self._turned

    def _fill_mask(self, mask: Array, ar: int) -> None:
        attend, ignore = self._marks
        start, valid = self.cache.index, self.cache.valid
        mask[:, :valid] = attend
        mask[:, valid:] = ignore
        if ar == 1:
            mask[0, start] = attend
        else:
            mask[:, start : start + ar] = np.where(np.tri(ar, dtype=bool), attend, ignore)

    @functools.cached_property
    def _marks(self) -> tuple[int, int]:
        """How a mask says that a place takes part, and that it does not."""
        pattern = self._bundle.about.masked_softmax
        if pattern:
            return (0, 1) if pattern == "A" else (1, 0)
        return (1 << PRECISIONS[self._bundle.about.precision].activation.bits) - 1, 0

    # Memory

    def _register(self, context: Context, nbytes: int) -> Mem:
        mem = context.register_memory(nbytes)
        self._memories.append(mem)
        return mem

    def _part_cache(self, part: int, context: int) -> PartCache:
        begin, end = self._bundle.about.parts[part]
        shapes = part_shapes(self._config, end - begin, context)
        empty = 0 if self._bundle.about.native_kv else KV_ZERO
        keys, values = self._in_layers(self._loaded.contexts[part], "in", begin, shapes, self._past)
        keys[...] = empty
        values[...] = empty
        return PartCache(begin, keys, values)

    def _in_layers(
        self,
        context: Context,
        end: str,
        first: int,
        shapes: tuple[tuple[int, ...], tuple[int, ...]],
        arrays: dict[str, Array],
    ) -> tuple[Array, Array]:
        """Memory for the keys and values of some layers: each kind in one piece, and an array for each layer."""
        half = math.prod(shapes[0])
        mem = self._register(context, 2 * half)
        for number, (side, shape) in enumerate(zip(("key", "value"), shapes, strict=True)):
            step = half // shape[0]
            for layer in range(shape[0]):
                name = f"past_{side}_{first + layer}_{end}"
                offset = number * half + layer * step
                arrays[name] = mem.array(name, offset=offset, shape=shape[1:], dtype=np.uint8)
        whole = mem.bytes
        return whole[:half].reshape(shapes[0]), whole[half:].reshape(shapes[1])

    def _make_stages(self, ar: int) -> list[_LoadedPart]:
        stages: list[_LoadedPart] = []
        for part, context in enumerate(self._loaded.contexts):
            graph = self._loaded.graph(ar, part, self.cache.context)
            begin, end = self._bundle.about.parts[part]
            new: dict[str, Array] = {}
            shapes = part_shapes(self._config, end - begin, ar)
            new_keys, new_values = self._in_layers(context, "out", begin, shapes, new)
            placed = self._past | new
            others = [t for t in (*graph.inputs, *graph.outputs) if t.name not in placed]
            mem = self._register(context, sum(tensor.nbytes + _ALIGNED for tensor in others))
            placed |= {tensor.name: mem.array(tensor) for tensor in others}
            inputs = {tensor.name: placed[tensor.name] for tensor in graph.inputs}
            outputs = {tensor.name: placed[tensor.name] for tensor in graph.outputs}
            tiled = any(tensor.data_format for tensor in graph.outputs)
            turns = graph.tensors[_TURNS[0]].quant
            assert isinstance(turns, ScaleOffset)
            stages.append(_LoadedPart(graph, inputs, outputs, new_keys, new_values, tiled, turns))
        return stages
