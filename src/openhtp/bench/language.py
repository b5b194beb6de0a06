"""Language models here: beside a plain ONNX Runtime loop, native beside flat, and urgent graphs during prefill.

The model is as large as that of ``examples/llm/austen``, with random weights, which take as long to compute with.
"""

from __future__ import annotations

import asyncio
import itertools
import math
import statistics
import time
from collections.abc import Iterator
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

import openhtp as htp
from openhtp import llm
from openhtp.bench.loading import kernel_says, warm
from openhtp.bench.quiet import BenchProgress, Measurement, QuietGate, QuietResult, median, p99
from openhtp.bench.subjects import trivial_graph
from openhtp.compiler.driver import program_for
from openhtp.core.quant import ScaleOffset
from openhtp.engine.lowering import lower_program
from openhtp.engine.onnx_graph import model_bytes
from openhtp.engine.onnxruntime import onnxruntime as ort
from openhtp.llm.cache import KvCache, PartCache, part_shapes
from openhtp.llm.positions import stored_turns
from openhtp.program.binary import read_binary

Array = npt.NDArray[Any]

_CONTEXT = 1024
_PROMPT = 64
_TOKENS = 64
# Tokens that are written one by one where the update of the cache is measured, and contexts that are compared.
_UPDATES = 400
_CONTEXTS = (512, 8192)
_WARM_UP = 8
# A pass that takes this much longer than the best one was disturbed by something else on the machine.
_DISTURBED = 1.25


class _PrefillWait(NamedTuple):
    """One urgent execution: how long until it started, the loop's longest rest, and the prefill pass itself."""

    wait_ms: float
    held_ms: float
    held_cpu_ms: float
    prefill_ms: float


class LanguageResult(QuietResult, kw_only=True):
    """Everything ``openhtp bench llm`` measured. Times are of the wall clock, ratios medians of the rounds.

    An urgent graph comes into a prefill pass. A pass that then took notably longer than it should, pauses not
    counted, was disturbed by others on the machine; it only counts in the figures called ``all``. How long the
    loop was held is also given in CPU time of its thread, to which others do not add.
    """

    tokens_per_s: float = 0.0
    plain_tokens_per_s: float = 0.0
    times_plain: float = 0.0
    alike_tokens_per_s: float = 0.0
    times_alike: float = 0.0
    pass_native_ms: float = 0.0
    pass_flat_ms: float = 0.0
    native_to_flat: float = 0.0
    update_us: dict[int, float] = msgspec.field(default_factory=dict)
    update_ratio: float = 0.0
    binary_ratio: float = 0.0
    weights: WeightMemory | None = None
    prefill_ms: float = 0.0
    prefill_steps: int = 0
    urgent_wait_ms_p50: float = 0.0
    urgent_wait_ms_p99: float = 0.0
    urgent_share_p99: float = 0.0
    urgent_share_p99_all: float = 0.0
    loop_held_ms_p99: float = 0.0
    loop_held_ms_max: float = 0.0
    loop_held_cpu_ms_max: float = 0.0
    urgent_samples: int = 0
    urgent_samples_all: int = 0


def small_llama() -> llm.Llama:
    """Random weights in the sizes of the example's Llama."""
    return llm.Llama(layers=4, hidden=256, heads=4, kv_heads=2, head_dim=64, vocab=1024, ffn=768, context=_CONTEXT)


def run(*, rounds: int = 9, samples: int = 200, memory: bool = True) -> Iterator[BenchProgress | LanguageResult]:
    """Measure in turns; yields progress, and the result last."""
    result, quiet = LanguageResult(update_us={}), QuietGate()
    total = 2 + 2 * rounds + samples
    yield BenchProgress("exporting", 0, total)
    model = small_llama()
    text = [int(token) for token in np.random.default_rng(0).integers(0, model.config.vocab, 256)]
    bundles = {native: llm.export(model, native_kv=native, calibration=text) for native in (True, False)}
    alone = llm.export(model, ar=(1,), calibration=text)
    result.binary_ratio = len(bundles[True].binaries[0]) / len(alone.binaries[0])
    with htp.Backend() as backend:
        device = backend.create_device(soc="SM8650")
        chats = {native: llm.Generator(bundle, device, priority="low") for native, bundle in bundles.items()}
        loops = PlainLoop(bundles[False]), PlainLoop(bundles[False], takes_apart=True)
        yield from _rates(result, quiet, chats, loops, text[:_PROMPT], rounds, total)
        yield BenchProgress("update of the cache", 1 + 2 * rounds, total)
        _updates(result, model.config)
        urgent = trivial_graph(device.create_context())
        urgent.set_config(priority="high")
        yield from _waits(result, chats[True], urgent, text, samples, 2 + 2 * rounds, total)
    if memory:
        for step in measure_weight_memory():
            if isinstance(step, BenchProgress):
                yield step
            else:
                result.weights = step
    quiet.tell(result)
    yield result


def _rates(
    result: LanguageResult,
    quiet: QuietGate,
    chats: dict[bool, llm.Generator],
    loops: tuple[PlainLoop, PlainLoop],
    prompt: list[int],
    rounds: int,
    total: int,
) -> Iterator[BenchProgress]:
    """Greedy decoding: ours, the plain loops', and ours with a flat cache, in turns."""
    ways = {
        "ours": lambda: _decode_ms(chats[True], prompt),
        "plain": lambda: loops[0].decode_ms(prompt, _TOKENS),
        "alike": lambda: loops[1].decode_ms(prompt, _TOKENS),
        "flat": lambda: _decode_ms(chats[False], prompt),
    }
    samples_of: dict[str, list[Measurement[float]]] = {way: [] for way in ways}
    for number in range(2 * rounds):
        yield BenchProgress("tokens per second", 1 + number, total)
        if number >= rounds:  # each of them has been warm for a while
            for way, measure in ways.items():
                samples_of[way].append(quiet.measure(measure))
        else:
            list(ways.values())[number % len(ways)]()
    times = {way: median(samples) for way, samples in samples_of.items()}

    def to_ours(way: str) -> float:
        pairs = zip(samples_of[way], samples_of["ours"], strict=True)
        return statistics.median(other.value / ours.value for other, ours in pairs)

    result.tokens_per_s, result.plain_tokens_per_s = 1e3 / times["ours"], 1e3 / times["plain"]
    result.alike_tokens_per_s = 1e3 / times["alike"]
    result.times_plain, result.times_alike = to_ours("plain"), to_ours("alike")
    result.pass_native_ms, result.pass_flat_ms = times["ours"], times["flat"]
    result.native_to_flat = 1 / to_ours("flat")


def _decode_ms(chat: llm.Generator, prompt: list[int]) -> float:
    """One token, as the client sees it: with everything between two tokens."""
    chat.reset()
    chat.complete(prompt, max_new=_TOKENS)
    return 1e3 / chat.stats.tokens_per_s


def _updates(result: LanguageResult, config: llm.LlamaConfig) -> None:
    """Writing one token's keys and values into native caches of different length, in turns."""
    caches = {}
    for context in _CONTEXTS:
        shapes = part_shapes(config, config.layers, context)
        part = PartCache(0, *(np.zeros(shape, np.uint8) for shape in shapes))
        caches[context] = KvCache(config, [part], context, native=True)
    keys, values = (np.full(shape, 7, np.uint8) for shape in part_shapes(config, config.layers, 1))
    times_ns: dict[int, list[int]] = {context: [] for context in _CONTEXTS}
    for number in range(_UPDATES):
        for context, cache in caches.items():
            began = time.perf_counter_ns()
            cache.write(0, number % min(_CONTEXTS), keys, values, 1)
            times_ns[context].append(time.perf_counter_ns() - began)
    result.update_us = {context: statistics.median(times) / 1e3 for context, times in times_ns.items()}
    result.update_ratio = result.update_us[_CONTEXTS[1]] / result.update_us[_CONTEXTS[0]]


def _waits(
    result: LanguageResult,
    chat: llm.Generator,
    urgent: htp.Graph,
    text: list[int],
    samples: int,
    done: int,
    total: int,
) -> Iterator[BenchProgress]:
    """An urgent graph is queued at any time of a prefill pass: how long until it starts, and how the loop does."""
    feeds = {"x": np.zeros(urgent.tensors["x"].shape, np.float32)}
    prompt, dice = text[:128], np.random.default_rng(1)
    alone = [asyncio.run(_prefill(chat, prompt)) for _ in range(_WARM_UP + 24)][_WARM_UP:]
    result.prefill_ms = min(alone)
    result.prefill_steps = chat.graph_steps(128)
    every: list[_PrefillWait] = []
    for number in range(samples):
        yield BenchProgress("urgent graph during prefill", done + number, total)
        after = result.prefill_ms * float(dice.uniform(0.05, 0.85)) / 1e3
        every.append(asyncio.run(_urgent(chat, prompt, urgent, feeds, after)))
    undisturbed = [wait for wait in every if wait.prefill_ms <= result.prefill_ms * _DISTURBED] or every
    result.urgent_samples, result.urgent_samples_all = len(undisturbed), len(every)
    result.urgent_wait_ms_p50 = statistics.median(wait.wait_ms for wait in undisturbed)
    result.urgent_wait_ms_p99 = p99([wait.wait_ms for wait in undisturbed])
    result.urgent_share_p99 = result.urgent_wait_ms_p99 / result.prefill_ms
    result.urgent_share_p99_all = p99([wait.wait_ms for wait in every]) / result.prefill_ms
    result.loop_held_ms_p99 = p99([wait.held_ms for wait in undisturbed])
    result.loop_held_ms_max = max(wait.held_ms for wait in undisturbed)
    result.loop_held_cpu_ms_max = max(wait.held_cpu_ms for wait in every)


async def _prefill(chat: llm.Generator, prompt: list[int]) -> float:
    chat.reset()
    began = time.perf_counter()
    async for _ in chat.generate(prompt, max_new=1):
        pass
    return (time.perf_counter() - began) * 1e3


async def _urgent(
    chat: llm.Generator, prompt: list[int], urgent: htp.Graph, feeds: dict[str, Array], after: float
) -> _PrefillWait:
    """Queue the urgent graph a while after the prompt, and watch the event loop all the while."""
    chat.reset()
    over, longest, computed = asyncio.Event(), 0.0, 0.0

    async def beat() -> None:
        nonlocal longest, computed
        while not over.is_set():
            began, cpu = time.perf_counter(), time.thread_time()
            await asyncio.sleep(0)
            longest = max(longest, time.perf_counter() - began)
            computed = max(computed, time.thread_time() - cpu)
            await asyncio.sleep(0.0002)

    beating = asyncio.create_task(beat())
    text = asyncio.create_task(_prefill(chat, prompt))
    await asyncio.sleep(after)
    submitted_ns = time.monotonic_ns()  # the device's records are of the same clock
    execution = urgent.execute_async(feeds)
    await execution
    took = await text
    over.set()
    await beating
    record = execution.record
    assert record is not None
    paused = (record.finished_ns - record.started_ns) / 1e6
    return _PrefillWait((record.started_ns - submitted_ns) / 1e6, longest * 1e3, computed * 1e3, took - paused)


# What a user would write with ONNX Runtime alone: the same graph for one token, and a KV cache in numpy.
#
# The graph is in quantize-dequantize pairs, as quantizers write it. To see what the way to the device costs, it
# can also be as our engine computes it.


class PlainLoop:
    """One session with one thread, its own cache, and greedy decoding."""

    def __init__(self, bundle: llm.Bundle, soc: str = "SM8650", *, takes_apart: bool = False) -> None:
        """``bundle`` is in one part, with a flat cache; ``takes_apart`` as for ``lower_program``."""
        program = program_for(read_binary(bundle.binaries[0]).program(bundle.graph_name(1, 1)), soc)
        lowered = lower_program(program, takes_apart=takes_apart)
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        if lowered.external:
            values = [ort.OrtValue.ortvalue_from_numpy(array) for array in lowered.external.values()]
            options.add_external_initializers(list(lowered.external), values)
        self._session = ort.InferenceSession(
            model_bytes(lowered.model), options, providers=["CPUExecutionProvider"]
        )
        self._config = bundle.config
        self._outputs = list(lowered.outputs.values())
        self._names = list(lowered.outputs)
        self._feeds: dict[str, Array] = {}
        self._arrays: dict[str, Array] = {}
        for spec in program.inputs:
            self._arrays[spec.name] = array = np.zeros(spec.shape, spec.dtype.numpy)
            if spec.name in lowered.inputs:
                self._feeds[lowered.inputs[spec.name]] = array
        turns = next(spec.quant for spec in program.inputs if spec.name == "position_ids_cos")
        assert isinstance(turns, ScaleOffset)
        self._turns = turns
        # Of the last call: the token that follows the prompt, and those after it.
        self.written: list[int] = []

    def decode_ms(self, prompt: list[int], tokens: int) -> float:
        """Time of one token, after the prompt was read token by token."""
        for name, array in self._arrays.items():
            array[...] = 128 if name.startswith("past") else 0
        for position, known in enumerate(prompt):
            self.written = [self._step(known, position)]
        began = time.perf_counter()
        for position in range(len(prompt), len(prompt) + tokens):
            self.written.append(self._step(self.written[-1], position))
        return (time.perf_counter() - began) * 1e3 / tokens

    def _step(self, token: int, position: int) -> int:
        """One token: the cache is used as it lies, the new token right behind the others."""
        arrays = self._arrays
        arrays["input_ids"][0, 0] = token
        arrays["cache_index"][0] = position
        arrays["attention_mask"][..., position] = np.iinfo(arrays["attention_mask"].dtype).max
        cos, sin = arrays["position_ids_cos"], arrays["position_ids_sin"]
        cos[0, 0], sin[0, 0] = stored_turns(self._config.angles(position, 1), self._turns, cos.dtype)
        outputs = dict(zip(self._names, self._session.run(self._outputs, self._feeds), strict=True))
        for layer in range(self._config.layers):
            arrays[f"past_key_{layer}_in"][..., position] = outputs[f"past_key_{layer}_out"][..., 0]
            arrays[f"past_value_{layer}_in"][..., position, :] = outputs[f"past_value_{layer}_out"][..., 0, :]
        return int(np.argmax(outputs["logits"][0, 0]))


# Memory of a model's weights in a device process: of one AR graph, and of three that share them.
#
# Measured: two models of equal nodes and different width are loaded, each into a fresh device. The difference in
# growth is the memory of the additional weights, as the runtime keeps the same for each node.


_NARROW, _WIDE = 256, 2048
_ONE, _THREE = (1,), (128, 32, 1)


class WeightMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes that ``weights`` more weights take in the device's process, by how many graphs share them."""

    weights: int
    one_bytes: int
    three_bytes: int

    @property
    def ratio(self) -> float:
        """Three graphs, of one."""
        return self.three_bytes / self.one_bytes if self.one_bytes > 0 else math.nan


def measure_weight_memory(width: int = _WIDE) -> Iterator[BenchProgress | WeightMemory]:
    """Load four bundles; yields progress, and the result last."""
    grown = []
    for number, (ar, hidden) in enumerate(itertools.product((_ONE, _THREE), (_NARROW, width))):
        yield BenchProgress("memory of weights", number, 4)
        grown.append(_bytes_grown(hidden, ar))
    more = _weights(width) - _weights(_NARROW)
    yield WeightMemory(weights=more, one_bytes=grown[1] - grown[0], three_bytes=grown[3] - grown[2])


def _memory_model(hidden: int) -> llm.Llama:
    return llm.Llama(
        layers=2, hidden=hidden, heads=8, kv_heads=2, head_dim=64, vocab=512, ffn=3 * hidden, context=256
    )


def _weights(hidden: int) -> int:
    return sum(math.prod(shape) for shape in llm.Llama.shapes(_memory_model(hidden).config).values())


def _bytes_grown(hidden: int, ar: tuple[int, ...]) -> int:
    """By how many bytes a fresh device grows that loads a model of this width."""
    text = [int(token) for token in np.random.default_rng(0).integers(0, 512, 64)]
    bundle = llm.export(_memory_model(hidden), ar=ar, calibration=text, rounding="nearest")
    with htp.Backend() as backend:
        device = backend.create_device(soc="SM8650", threads=1)
        warm(device)
        before = kernel_says(device, "smaps_rollup", "Pss")
        # Not run yet: what lies between ops is no weight.
        with llm.Generator(bundle, device):
            return kernel_says(device, "smaps_rollup", "Pss") - before
