"""Native KV caches on the vendor's library: flat and native agree, and what it takes or refuses is as we say."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.engine.native_head import NativeHead

import openhtp as htp
from openhtp import llm
from openhtp.core.errors import QnnError
from openhtp.core.hmx_layout import round_up

pytestmark = pytest.mark.vendor

AUSTEN = Path(__file__).parents[2] / "examples" / "llm" / "austen"
SOCS = ("SM8650", "SM8750")


@pytest.fixture(scope="module", params=SOCS)
def device(request: pytest.FixtureRequest) -> Iterator[htp.Device]:
    with htp.Backend(library="vendor") as backend:
        yield backend.create_device(soc=request.param)


def outputs(device: htp.Device, head: NativeHead, places: Sequence[int]) -> list[np.ndarray]:
    native = None if any(head.native) else False
    with device.create_context() as context:
        graph = head.build(context)
        graph.finalize()
        return [np.array(graph.execute(head.feeds(place, native=native))["y"]) for place in places]


def _flat(head: NativeHead) -> NativeHead:
    return dataclasses.replace(head, native=(False, False), native_out=False)


SMALL = [(tokens, 64, context) for tokens in (1, 4, 8, 16, 20, 32, 64, 128) for context in (256, 512)]
LARGE = [
    *((tokens, 128, 1024) for tokens in (1, 20, 32, 128, 256)),
    *((tokens, 192, 768) for tokens in (1, 32, 64)),
    *((tokens, 256, 512) for tokens in (1, 4, 128)),
    (1, 128, 2048),
    (32, 128, 4096),
]
COMBINATIONS = [
    NativeHead(tokens=tokens, head_dim=head_dim, context=context, activation=activation)
    for (tokens, head_dim, context), activation in itertools.product(SMALL + LARGE, ("ufixed16", "ufixed8"))
]


def named(head: NativeHead) -> str:
    return f"{head.tokens}-{head.head_dim}-{head.context}-{head.activation}"


@pytest.mark.parametrize("head", COMBINATIONS, ids=named)
def test_native_equals_flat(device: htp.Device, head: NativeHead) -> None:
    last = head.context - round_up(head.tokens)
    places = sorted({0, min(33, last), min(96, last), last})
    native, other = outputs(device, head, places), outputs(device, _flat(head), places)
    for place, one, two in zip(places, native, other, strict=True):
        assert np.count_nonzero(one != two) == 0, place
        assert len(np.unique(one)) > 8


@pytest.mark.parametrize(
    "change",
    [
        {"index": "multiply"},
        {"index": "multiply", "index_type": "uint32"},
        {"mask": "select"},
        {"mask": "none"},
        {"new": "client"},
        {"tokens": 32, "native_out": True},
    ],
    ids=str,
)
def test_structures_that_the_library_takes_we_take(device: htp.Device, change: dict[str, Any]) -> None:
    head = NativeHead(**change)
    with htp.Backend() as ours:
        for each in (device, ours.create_device(soc=device.soc, transport="inprocess")):
            native, other = outputs(each, head, (0, 64)), outputs(each, _flat(head), (0, 64))
            assert all(np.array_equal(one, two) for one, two in zip(native, other, strict=True))


REFUSED: list[dict[str, Any]] = [
    *({"index": index} for index in ("const_first", "input", "tile", "multiply_add")),
    {"heads": 2},
    {"zero_point": 120},
    *({"context": context} for context in (64, 128, 320, 384, 640)),
]


@pytest.mark.parametrize("change", REFUSED, ids=str)
def test_what_the_library_refuses_we_refuse(device: htp.Device, change: dict[str, Any]) -> None:
    with htp.Backend() as ours:
        for each in (device, ours.create_device(soc=device.soc, transport="inprocess")):
            with each.create_context() as context, pytest.raises(QnnError):
                NativeHead(**change).build(context).finalize()


@pytest.mark.parametrize(
    ("change", "index"),
    [
        ({"value_index": "own"}, 64),
        ({"native": (True, False)}, 64),
        ({"native": (False, True)}, 64),
        ({"tokens": 512, "context": 1024}, 0),
        ({"new": "client", "head_dim": 128}, 0),
    ],
    ids=str,
)
def test_what_the_library_computes_wrong_in_silence_we_refuse(
    device: htp.Device, change: dict[str, Any], index: int
) -> None:
    head = NativeHead(**change)
    (native,), (other,) = outputs(device, head, (index,)), outputs(device, _flat(head), (index,))
    assert not np.array_equal(native, other)
    with htp.Backend() as ours:
        own = ours.create_device(soc=device.soc, transport="inprocess")
        with own.create_context() as context, pytest.raises(QnnError):
            head.build(context).finalize()


def test_tokens_behind_the_last_index_are_lost_in_silence(device: htp.Device) -> None:
    head = NativeHead()
    feeds, others = head.feeds(481), head.feeds(481)
    others["v_wide"] ^= np.uint16(0x4000)
    with device.create_context() as context:
        graph = head.build(context)
        graph.finalize()
        assert np.array_equal(graph.execute(feeds)["y"], graph.execute(others)["y"])


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
    (theirs,) = outputs(device, head, (64,))
    with htp.Backend() as backend:
        (ours,) = outputs(backend.create_device(soc=device.soc), head, (64,))
    assert np.abs(ours.astype(np.int64) - theirs).max() <= 64  # of 65536 steps: their softmax has a table


@pytest.mark.parametrize("native", [True, False])
def test_the_same_bundle_writes_the_same_text(device: htp.Device, native: bool) -> None:
    bundle = llm.export(llm.load(AUSTEN), ar=(32, 1), native_kv=native, context=256)
    prompt = [int(token) for token in np.load(AUSTEN / "reference.npz")["ids"]]
    with htp.Backend() as backend:
        ours = llm.Generator(bundle, backend.create_device(soc=device.soc)).complete(prompt, max_new=12)
    with llm.Generator(bundle, device) as theirs:
        assert theirs.complete(prompt, max_new=12) == ours


@pytest.mark.parametrize(
    ("soc", "activation", "taken"),
    [
        ("SM8550", "ufixed16", True),
        ("SM8550", "ufixed8", True),
        ("SM8450", "ufixed16", True),
        ("SM8450", "ufixed8", False),
        ("SM8350", "ufixed16", False),
    ],
)
def test_chips_take_what_ours_take(soc: str, activation: str, taken: bool) -> None:
    head = NativeHead(tokens=32, activation=activation)
    for library in ("vendor", None):
        with htp.Backend(library=library) as backend:
            chip = backend.create_device(soc=soc)
            if taken:
                assert np.array_equal(outputs(chip, head, (64,))[0], outputs(chip, _flat(head), (64,))[0])
                continue
            with chip.create_context() as context, pytest.raises(QnnError):
                head.build(context).finalize()
