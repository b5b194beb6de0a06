"""How ``openhtp bench llm`` shows what it measured."""

from __future__ import annotations

from openhtp.bench.language import LanguageResult
from openhtp.cli._sheet import Sheet, figures


def language_sheet(result: LanguageResult) -> Sheet:
    """All figures, each beside what it is compared with."""
    table = figures("a Llama of 4 layers, w8a16, context 1024 (measured, wall clock)")
    table.add("tokens/s, native KV cache", f"{result.tokens_per_s:,.0f}")
    table.add("  plain ONNX Runtime loop, same graph for one token", f"{result.plain_tokens_per_s:,.0f}")
    table.add("  ratio, median of the rounds", f"{result.times_plain:.2f}x")
    table.add("one token, native and flat cache", f"{result.pass_native_ms:.2f} ms, {result.pass_flat_ms:.2f} ms")
    table.add("  ratio, median of the rounds", f"{result.native_to_flat:.2f}x")
    times = ", ".join(f"{us:.0f} us (context {context})" for context, us in result.update_us.items())
    table.add("update of the cache for one token", times)
    table.add("  ratio", f"{result.update_ratio:.2f}x")
    table.add("binary with three AR graphs, of one", f"{result.binary_ratio:.2f}x")
    table.add("prefill pass of 128 tokens, best", f"{result.prefill_ms:.1f} ms in {result.prefill_steps} steps")
    wait = f"{result.urgent_wait_ms_p50:.2f} ms, {result.urgent_wait_ms_p99:.2f} ms"
    table.add("submit to start of an urgent graph in it, p50 and p99", wait)
    table.add("  p99, of the pass", f"{result.urgent_share_p99:.1%}")
    table.add("  p99 of all passes, disturbed or not", f"{result.urgent_share_p99_all:.1%}")
    left_out = result.urgent_samples_all - result.urgent_samples
    table.add("  left out: the machine was taken away", f"{left_out} of {result.urgent_samples_all}")
    held = f"{result.loop_held_ms_p99:.2f} ms, {result.loop_held_ms_max:.2f} ms"
    table.add("event loop held, p99 and longest", held)
    table.add("  longest by CPU time of its thread, all passes", f"{result.loop_held_cpu_ms_max:.2f} ms")
    return table
