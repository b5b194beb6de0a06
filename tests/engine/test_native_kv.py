"""Native KV caches on the emulator: what flat ones compute, what is read where, and every refusal in words."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from tests.core.layout_offsets import offset_of
from tests.engine.native_head import NativeHead

import openhtp as htp
from openhtp.core import hmx_layout as hmx
from openhtp.core.errors import QnnError
from openhtp.engine import native_kv
from openhtp.engine.native_kv import Mirror


@pytest.fixture(scope="module")
def device() -> Iterator[htp.Device]:
    with htp.Backend() as backend:
        yield backend.create_device(soc="SM8650")


def finalized(device: htp.Device, head: NativeHead, **options: Any) -> htp.Graph:
    graph = head.build(device.create_context(), **options)
    graph.finalize()
    return graph


def flat(head: NativeHead) -> NativeHead:
    return NativeHead(**{**_fields(head), "native": (False, False), "native_out": False})


def _fields(head: NativeHead) -> dict[str, Any]:
    return {name: getattr(head, name) for name in NativeHead.__dataclass_fields__}


@pytest.mark.parametrize("activation", ["ufixed16", "ufixed8"])
@pytest.mark.parametrize(("tokens", "head_dim", "context"), [(1, 64, 256), (20, 128, 512), (128, 192, 768)])
def test_native_computes_what_flat_does(
    device: htp.Device, activation: str, tokens: int, head_dim: int, context: int
) -> None:
    head = NativeHead(tokens=tokens, head_dim=head_dim, context=context, activation=activation)
    native, other = finalized(device, head), finalized(device, flat(head))
    for index in (0, 33, context - hmx.round_up(tokens)):
        y = native.execute(head.feeds(index))["y"]
        assert np.array_equal(y, other.execute(head.feeds(index, native=False))["y"]), index
        assert len(np.unique(y)) > 8  # not all the same by saturating


@pytest.mark.parametrize(
    "change",
    [{"index": "multiply"}, {"index": "multiply", "index_type": "uint32"}, {"mask": "select"}, {"new": "client"}],
    ids=str,
)
def test_structures_that_are_taken(device: htp.Device, change: dict[str, Any]) -> None:
    head = NativeHead(**change)
    native, other = finalized(device, head), finalized(device, flat(head))
    for index in (0, 33, 480):
        y = native.execute(head.feeds(index))["y"]
        assert np.array_equal(y, other.execute(head.feeds(index, native=False))["y"]), index


def test_one_wrong_byte_changes_the_result(device: htp.Device) -> None:
    head = NativeHead()
    graph = finalized(device, head)
    feeds = head.feeds(64)
    before = graph.execute(feeds)["y"].copy()
    cache, seen = feeds["past_value_0_in"].reshape(-1), 0
    for token in range(64):  # those with a share of the attention that shows
        at = offset_of("value", token, 3, context=512, head_dim=64)
        cache[at] ^= 0x7F
        changed = graph.execute(feeds)["y"] != before
        assert not np.delete(changed.reshape(-1), 3).any()
        seen += bool(changed.any())
        cache[at] ^= 0x7F
    assert seen > 4
    assert np.array_equal(graph.execute(feeds)["y"], before)


def test_what_lies_behind_the_new_tokens_reads_as_zero(device: htp.Device) -> None:
    head = NativeHead(mask="none")
    graph = finalized(device, head)
    feeds = head.feeds(64)
    before = graph.execute(feeds)["y"].copy()
    for side in ("key", "value"):
        cache = feeds[f"past_{side}_0_in"]
        hmx.write_tokens(side, cache, 200, np.full((1, 1, 32, 64), 7, np.uint8))
    assert np.array_equal(graph.execute(feeds)["y"], before)


def test_the_index_is_rounded_up_and_told_once(device: htp.Device) -> None:
    head = NativeHead()
    feeds, rounded = head.feeds(33), head.feeds(33)
    rounded["cache_index"][0] = 64
    graph = finalized(device, head)
    assert np.array_equal(graph.execute(feeds)["y"], graph.execute(rounded)["y"])
    strict = finalized(device, head, strict_kv=True)
    strict.execute(rounded)
    with pytest.raises(QnnError, match=r"cache_index 33 is no multiple of 32 and is rounded up to 64.*strict_kv"):
        strict.execute(feeds)


def test_masks_that_let_too_much_take_part_are_told_once(caplog: pytest.LogCaptureFixture) -> None:
    head = NativeHead()
    with htp.Backend() as backend:
        own = backend.create_device(soc="SM8650", transport="inprocess")
        for place, words in (
            (50, "lets place 50 take part, between the cache"),
            (70, "lets place 70 take part, behind"),
        ):
            graph = finalized(own, head)
            feeds = head.feeds(33)
            caplog.clear()
            graph.execute(feeds)
            assert "cache_index 33 is no multiple of 32 and is rounded up to 64" in caplog.text
            assert "take part," not in caplog.text
            feeds["attention_mask"][..., place] = 65535
            graph.execute(feeds)
            graph.execute(feeds)
            assert caplog.text.count(words) == 1
            assert caplog.text.count("is rounded up to 64") == 1


@pytest.mark.parametrize(("tokens", "index", "last"), [(1, 481, 480), (64, 480, 448), (1, -1, 480)])
def test_an_index_without_room_is_refused(device: htp.Device, tokens: int, index: int, last: int) -> None:
    head = NativeHead(tokens=tokens)
    graph = finalized(device, head)
    feeds = head.feeds(0)
    feeds["cache_index"][0] = index
    words = rf"cache_index {index} with AR-{tokens} .*the last possible is {last} .*Rewind, evict or grow"
    with pytest.raises(QnnError, match=words) as refused:
        graph.execute(feeds)
    assert refused.value.name == "QNN_GRAPH_ERROR_INVALID_TENSOR"
    feeds["cache_index"][0] = 0
    graph.execute(feeds)


def test_native_outputs_have_their_tiles(device: htp.Device) -> None:
    head = NativeHead(tokens=32, native_out=True)
    feeds = head.feeds(0)
    outputs = finalized(device, head).execute(feeds)
    assert np.array_equal(hmx.tokens_from_native("key", outputs["k_out"]), feeds["k_wide"] // 256)
    assert np.array_equal(hmx.tokens_from_native("value", outputs["v_out"]), feeds["v_wide"] // 256)
    assert not np.array_equal(outputs["k_out"], feeds["k_wide"] // 256)


UNSUPPORTED, INVALID = "QNN_GRAPH_ERROR_UNSUPPORTED_FEATURE", "QNN_GRAPH_ERROR_INVALID_TENSOR"


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        ({"zero_point": 120}, INVALID, r"'past_key_0_in' has -120\. Requantize KV symmetrically"),
        ({"context": 1920}, INVALID, r"context 1920 is no multiple of 256 \(next: 2048\)"),
        ({"head_dim": 96}, INVALID, "head_dim 96 is no multiple of 64: use flat KV"),
        ({"tokens": 512, "context": 1024}, UNSUPPORTED, "AR-512 is more than the 256 tokens"),
        ({"native": (True, False)}, INVALID, "'past_value_0_in' is flat, 1 others are native"),
        ({"native": (False, True)}, INVALID, "'past_key_0_in' is flat, 1 others are native"),
        (
            {"join": "concat"},
            UNSUPPORTED,
            r"'past_key_0_in' is joined by Concat .*expected new tokens joined",
        ),
        ({"heads": 2}, UNSUPPORTED, r"takes \[2, 1, 64, 512\] of 'past_key_0_in' on axis 3; expected one head"),
        ({"index": "const_first"}, UNSUPPORTED, "is not cache_index plus iota"),
        ({"index": "input"}, UNSUPPORTED, "is not cache_index plus iota"),
        ({"value_index": "own"}, UNSUPPORTED, "not the transposed index of the keys"),
        ({"native_out": True}, INVALID, "AR-1 must give its new KV flat"),
        (
            {"new": "client", "head_dim": 128},
            UNSUPPORTED,
            r"new values of 'past_value_0_in' come from the client .*'v_new'.* head_dim 128; .*such as Convert",
        ),
        ({"index": "tile"}, UNSUPPORTED, "is not cache_index plus iota"),
        ({"index": "multiply_add"}, UNSUPPORTED, "is not cache_index plus iota"),
        ({"index": "multiply", "tokens": 4}, UNSUPPORTED, "is not cache_index plus iota"),
        ({"whole_out": True}, UNSUPPORTED, "output 'key_all' is the whole cache"),
    ],
)
def test_refusals_at_finalize(device: htp.Device, change: dict[str, Any], status: str, words: str) -> None:
    graph = NativeHead(**change).build(device.create_context())
    with pytest.raises(QnnError, match=words) as refused:
        graph.finalize()
    assert refused.value.name == status
    assert not graph.is_finalized


@pytest.mark.parametrize(
    ("soc", "change", "words"),
    [
        ("SM8350", {}, "needs v69 or later; SM8350 is v68"),
        ("SM8450", {"activation": "ufixed8"}, "with 8-bit activations .* needs v73 or later"),
    ],
)
def test_refusals_of_chips(soc: str, change: dict[str, Any], words: str) -> None:
    with htp.Backend() as backend:
        device = backend.create_device(soc=soc, transport="inprocess")
        with pytest.raises(QnnError, match=words):
            finalized(device, NativeHead(**change))


@pytest.mark.parametrize(("vtcm_mb", "fits"), [(2, False), (4, True)])
def test_c16_a_long_context_needs_more_of_the_vtcm_that_the_graph_has(
    device: htp.Device, vtcm_mb: int, fits: bool
) -> None:
    head = NativeHead(context=16384)
    if fits:
        finalized(device, head, vtcm_mb=vtcm_mb)
    else:
        with pytest.raises(QnnError, match="context of 16384 does not fit 2 MB of VTCM"):
            finalized(device, head, vtcm_mb=vtcm_mb)
        finalized(device, NativeHead(context=16384 - 256), vtcm_mb=vtcm_mb)


def test_the_format_is_for_caches_only(device: htp.Device) -> None:
    graph = device.create_context().create_graph("g")
    quant = htp.ScaleOffset(0.1, -128)
    graph.add_tensor(
        "x", (1, 1, 64, 256), "ufixed8", quant=quant, kind="app_write", data_format="hmx_weight_layout"
    )
    graph.add_tensor("y", (1, 1, 64, 256), "ufixed8", quant=quant, kind="app_read")
    graph.add_node("Relu", inputs=["x"], outputs=["y"])
    with pytest.raises(QnnError, match=r"is read by Relu .* it is for KV caches only"):
        graph.finalize()


def test_a_binary_keeps_format_and_semantics(device: htp.Device) -> None:
    head = NativeHead(tokens=32, native_out=True)
    context = device.create_context()
    graph = head.build(context)
    graph.finalize()
    feeds = head.feeds(96)
    expected = graph.execute(feeds)
    again = device.create_context_from_binary(context.get_binary()).graph("head")
    assert again.tensors["past_key_0_in"].data_format.name == "HMX_WEIGHT_LAYOUT"
    outputs = again.execute(feeds)
    assert all(np.array_equal(outputs[name], expected[name]) for name in expected)


@pytest.mark.parametrize("head_dim", [64, 128])
@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("side", ["key", "value"])
def test_a_mirror_follows_every_change(
    side: str, compiled: bool, head_dim: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not compiled:
        monkeypatch.setattr(native_kv, "sessions_side", lambda: None)
    elif native_kv.sessions_side() is None:
        pytest.skip("the C side was not compiled")
    rng = np.random.default_rng(1)
    shape = (2, 1, head_dim, 768) if side == "key" else (2, 1, 768, head_dim)
    native = np.zeros(shape, np.uint8)
    mirror = Mirror(hmx.side_of(side), native)
    for _ in range(60):
        begin, count = int(rng.integers(0, 760)), int(rng.integers(1, 8))
        hmx.write_tokens(side, native, begin, rng.integers(0, 256, (2, 1, count, head_dim)).astype(np.uint8))
        upto = int(rng.integers(0, 25)) * 32
        mirror.follow(native, upto)
        expected = hmx.tokens_from_native(side, native)
        if side == "key":
            expected[..., upto:] = 128
        else:
            expected[..., upto:, :] = 128
        assert np.array_equal(mirror.flat, expected)


def test_a_mirror_in_use_is_left_alone() -> None:
    class Holder:
        """Stands for a run."""

    mirror = Mirror(hmx.Side.KEY, np.zeros((1, 1, 64, 256), np.uint8))
    one, other = Holder(), Holder()
    assert mirror.take(one)
    assert mirror.take(one)
    assert not mirror.take(other)
    del one
    assert mirror.take(other)


def test_caches_of_layers_that_lie_together_are_followed_at_once() -> None:
    memory = np.arange(4 * 2 * 64 * 256, dtype=np.uint32).astype(np.uint8).reshape(4, 2, 1, 64, 256)
    apart = np.ones((2, 1, 64, 256), np.uint8)
    inputs = {"b": memory[1], "a": memory[0], "d": memory[3], "e": apart}
    found = {tuple(names): whole for names, whole in native_kv._joined(inputs)}
    assert set(found) == {("a", "b"), ("d",), ("e",)}
    assert np.array_equal(found["a", "b"], memory[:2].reshape(4, 1, 64, 256))
    assert found["a", "b"].ctypes.data == memory.ctypes.data
