"""How ``openhtp bench llm`` shows what it measured."""

from __future__ import annotations

from openhtp.bench.language import LanguageResult
from openhtp.cli._text_table import TextTable, figures


def language_sheet(result: LanguageResult) -> TextTable:
    """All figures, each beside what it is compared with and what is aimed at."""
    table = figures("a Llama of 4 layers, w8a16, context 1024 (measured, wall clock)")
    table.add("tokens/s, native KV cache", f"{result.tokens_per_s:,.0f}")
    table.add("  plain ONNX Runtime loop, the same graph as QDQ", f"{result.plain_tokens_per_s:,.0f}")
    table.add("  ratio, median of the rounds (goal: 0.7x or more)", f"{result.times_plain:.2f}x")
    table.add("  that loop with the engine's integer products", f"{result.alike_tokens_per_s:,.0f}")
    table.add("  ratio: what the way to the device costs", f"{result.times_alike:.2f}x")
    table.add("one token, native and flat cache", f"{result.pass_native_ms:.2f} ms, {result.pass_flat_ms:.2f} ms")
    table.add("  ratio, median of the rounds (goal: at most 1.3x)", f"{result.native_to_flat:.2f}x")
    times = ", ".join(f"{us:.0f} us (context {context})" for context, us in result.update_us.items())
    table.add("update of the cache for one token", times)
    table.add("  ratio (goal: at most 1.3x)", f"{result.update_ratio:.2f}x")
    table.add("binary with three AR graphs, of one (at most 1.15x)", f"{result.binary_ratio:.2f}x")
    if result.weights is not None:
        one, three = (number / 1e6 for number in (result.weights.one_bytes, result.weights.three_bytes))
        table.add(
            f"device process: {result.weights.weights / 1e6:.0f} million weights, one and three graphs",
            f"{one:.0f} MB, {three:.0f} MB",
        )
        table.add("  ratio (goal: at most 1.1x)", f"{result.weights.ratio:.2f}x")
    table.add("prefill pass of 128 tokens, best", f"{result.prefill_ms:.1f} ms in {result.prefill_steps} steps")
    wait = f"{result.urgent_wait_ms_p50:.2f} ms, {result.urgent_wait_ms_p99:.2f} ms"
    table.add("submit to start of an urgent graph in it, p50 and p99", wait)
    table.add("  p99, of the pass (goal: at most 10%)", f"{result.urgent_share_p99:.1%}")
    table.add("  p99 of all passes, disturbed or not", f"{result.urgent_share_p99_all:.1%}")
    left_out = result.urgent_samples_all - result.urgent_samples
    table.add("  left out: the machine was taken away", f"{left_out} of {result.urgent_samples_all}")
    held = f"{result.loop_held_ms_p99:.2f} ms, {result.loop_held_ms_max:.2f} ms"
    table.add("event loop held, p99 and longest (goal: 5 ms)", held)
    table.add("  longest by CPU time of its thread, all passes", f"{result.loop_held_cpu_ms_max:.2f} ms")
    return table
