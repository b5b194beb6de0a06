"""Attention heads with flat and with native caches: modelled times differ by what native ones save."""

from __future__ import annotations

import pytest
from tests.engine.native_head import NativeHead

import openhtp as htp
from openhtp.compiler.driver import portable_program, program_for
from openhtp.cost import Estimate, estimate, schedule_of, sizes_of
from openhtp.estimation import compiled
from openhtp.program.htp_program import HtpProgram


def program_of(context: htp.Context, head: NativeHead, name: str) -> HtpProgram:
    graph = head.build(context, name)
    assert graph.draft is not None
    return program_for(portable_program(graph.draft.finish()), "SM8650")


def times(context: htp.Context, tokens: int, length: int) -> tuple[Estimate, Estimate]:
    """Flat and native."""
    heads = (
        NativeHead(tokens=tokens, context=length, head_dim=128, native=(native, native))
        for native in (False, True)
    )
    flat, native = (estimate(program_of(context, head, f"{tokens} {length} {head.native[0]}")) for head in heads)
    return flat, native


@pytest.mark.parametrize("tokens", [1, 128], ids=["a token", "a prompt"])
def test_native_is_faster_the_more_the_longer_the_context_is(context: htp.Context, tokens: int) -> None:
    gains, savings = [], []
    for length in (256, 1024, 4096):
        flat, native = times(context, tokens, length)
        computing = [each.total_us - each.launch_us for each in (flat, native)]
        gains.append(computing[0] / computing[1])
        savings.append(flat.energy_pj - native.energy_pj)
        assert native.energy_pj < 0.99 * flat.energy_pj
    assert 1.05 < gains[0] < gains[1] < gains[2] < 2.5
    assert 0 < 2 * savings[0] < savings[1] < savings[2] / 2


def test_cycles_of_profiles_differ_too(context: htp.Context) -> None:
    cycles = [
        schedule_of(program_of(context, NativeHead(context=2048, native=(native, native)), f"{native}")).cycles
        for native in (False, True)
    ]
    assert cycles[0] > 1.1 * cycles[1]


def test_what_is_put_into_tiles(context: htp.Context) -> None:
    scattered = program_of(context, NativeHead(context=512, native=(False, False)), "scattered")
    joined = program_of(context, NativeHead(context=512, native=(False, False), join="concat"), "joined")
    native = program_of(context, NativeHead(context=512), "native")
    for program, elements in ((scattered, 2 * 64 * 512), (joined, 2 * 64 * 512), (native, 0)):
        assert sum(kernel.retiled for kernel in sizes_of(program)) == elements


def test_attention_without_a_cache_is_priced_as_ever() -> None:
    program = program_for(compiled("zoo:transformer_blocks"), "SM8650")
    assert any(kernel.kind == "matmul" for kernel in sizes_of(program))
    assert not any(kernel.retiled for kernel in sizes_of(program))
