"""Convolutions in strips: the same numbers to the bit, in pieces between which a program can yield."""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from openhtp.compiler.driver import compile_graph
from openhtp.core.dtype import DType
from openhtp.core.opcall import OpCall
from openhtp.core.quant import ScaleOffset
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.engine import seal, segments
from openhtp.engine.cutting import prepare
from openhtp.engine.lowering import lower_program
from openhtp.engine.onnx_graph import parse_model
from openhtp.engine.ort import OrtEngine, OrtProgram
from openhtp.engine.prepared import Constant, Manifest, WindowWords
from openhtp.engine.workshop import Workshop
from openhtp.hw.catalog import find_soc
from openhtp.ir.builder import GraphBuilder
from openhtp.program.container import make_section
from openhtp.program.htp_program import HtpProgram
from openhtp.program.packed import PackedGraph
from openhtp.runtime.objects.modelled import step_nodes

replace = msgspec.structs.replace
QUANT = ScaleOffset(0.05, -120)


def network(
    rows: int = 48,
    *,
    kernel: int = 3,
    stride: int = 1,
    pads: tuple[int, int] = (1, 1),
    dilation: int = 1,
    op: str = "Conv2d",
    before: bool = False,
    batch: int = 1,
) -> HtpProgram:
    """A convolution of an image, perhaps of something computed, and a clamp of its result."""
    rng = np.random.default_rng(rows + kernel)
    builder = GraphBuilder("g")

    def add(name: str, shape: tuple[int, ...], kind: TensorKind) -> TensorSpec:
        spec = TensorSpec(name, shape, DType.UFIXED_POINT_8, QUANT, kind)
        builder.add_tensor(spec, None)
        return spec

    channels = 8
    wide = 320
    x = add("x", (batch, rows, wide, channels), TensorKind.APP_WRITE)
    if before:
        made = add("made", x.shape, TensorKind.NATIVE)
        builder.add_node(OpCall("ElementWiseAdd", "double", (x, x), (made,)))
        x = made
    depthwise = op.startswith("DepthWise")
    weights = TensorSpec(
        "w",
        (kernel, kernel, 1 if depthwise else channels, channels),
        DType.SFIXED_POINT_8,
        ScaleOffset(0.01, 0),
        TensorKind.STATIC,
    )
    builder.add_tensor(weights, rng.integers(-100, 100, weights.shape).astype(np.int8))
    reach = dilation * (kernel - 1) + 1
    high, across = ((size + sum(pads) - reach) // stride + 1 for size in (rows, wide))
    params: dict[str, Any] = {"stride": [stride] * 2, "pad_amount": [list(pads)] * 2, "dilation": [dilation] * 2}
    y = add("conv", (batch, high, across, channels), TensorKind.NATIVE)
    builder.add_node(OpCall(op, "conv", (x, weights), (y,), params))
    out = add("out", y.shape, TensorKind.APP_READ)
    builder.add_node(OpCall("ElementWiseAdd", "end", (y, y), (out,)))
    return compile_graph(builder.finish(), "SM8650")


def computed(loaded: OrtProgram, program: HtpProgram) -> np.ndarray:
    (given,), (made,) = program.inputs, program.outputs
    x = np.random.default_rng(1).integers(0, 256, given.shape).astype(np.uint8)
    y = np.zeros(made.shape, np.uint8)
    run = loaded.bind({given.name: x, made.name: y})
    for step in range(loaded.steps):
        run.step(step)
    return y


@pytest.fixture
def in_pieces(monkeypatch: pytest.MonkeyPatch) -> Callable[[HtpProgram, int], segments.Cuts]:
    """Have the convolution cut into so many strips, whatever it takes."""

    def cut(program: HtpProgram, pieces: int) -> segments.Cuts:
        _cut_conv(monkeypatch, program, pieces)
        return segments.cuts_of(program)

    return cut


def _cut_conv(patch: pytest.MonkeyPatch, program: HtpProgram, pieces: int) -> None:
    seconds = segments.step_seconds(program)
    conv = next(place for place, step in enumerate(program.steps) if program.kernels_of(step)[-1].name == "conv")
    longest = seconds[conv] / pieces / segments._STRIP_SHARE
    patch.setattr(
        segments, "step_seconds", lambda program: [longest / 9 if i != conv else t for i, t in enumerate(seconds)]
    )
    patch.setattr(segments, "longest_seconds", lambda seconds: longest * (1 + 1e-9))


def test_tiles_of_the_compiler_are_where_a_step_may_be_left() -> None:
    step = next(step for step in network(112, stride=2).steps if step.rows)
    # 56 rows of the result in 7 strips of 8; 64 KiB of what it touches make a tile.
    assert step.rows == (16, 32, 48)
    assert all(not step.rows for step in network(8).steps)


@pytest.mark.parametrize("before", [False, True])
def test_strips_are_steps_of_their_own_with_the_same_result(
    in_pieces: Callable[[HtpProgram, int], segments.Cuts], *, before: bool
) -> None:
    program = network(before=before)
    whole = OrtEngine(yield_points=False).load(program)
    expected = computed(whole, program)
    assert expected.std() > 1
    cuts = in_pieces(program, 3)
    loaded = OrtEngine().load(program)
    assert loaded.steps == cuts.segments == 4 + before
    np.testing.assert_array_equal(computed(loaded, program), expected)
    named = step_nodes(program, loaded.steps)
    assert [names for names, _ in named].count(("conv",)) == 3


@pytest.mark.parametrize(("kernel", "strips", "sessions"), [(3, 4, 3), (1, 4, 1)])
def test_strips_with_the_same_padding_have_one_session(
    in_pieces: Callable[[HtpProgram, int], segments.Cuts], kernel: int, strips: int, sessions: int
) -> None:
    pads = (kernel // 2, kernel // 2)
    program = network(96, kernel=kernel, pads=pads)
    expected = computed(OrtEngine(yield_points=False).load(program), program)
    in_pieces(program, strips)
    loaded = OrtEngine().load(program)
    assert loaded.steps == strips + 1
    assert len({id(stage.session) for stage in loaded._stages.stages[:-1]}) == sessions
    np.testing.assert_array_equal(computed(loaded, program), expected)


@settings(max_examples=25, deadline=None)
@given(
    st.integers(20, 70),
    st.sampled_from([1, 3, 5]),
    st.integers(1, 3),
    st.tuples(st.integers(0, 2), st.integers(0, 2)),
    st.integers(1, 2),
    st.sampled_from(["Conv2d", "DepthWiseConv2d"]),
    st.integers(2, 6),
)
def test_any_window_gives_the_same_in_strips(
    rows: int, kernel: int, stride: int, pads: tuple[int, int], dilation: int, op: str, pieces: int
) -> None:
    reach = dilation * (kernel - 1) + 1
    pads = (min(pads[0], reach - 1), min(pads[1], reach - 1))
    program = network(rows, kernel=kernel, stride=stride, pads=pads, dilation=dilation, op=op)
    expected = computed(OrtEngine(yield_points=False).load(program), program)
    with pytest.MonkeyPatch.context() as patch:
        _cut_conv(patch, program, pieces)
        loaded = OrtEngine().load(program)
    np.testing.assert_array_equal(computed(loaded, program), expected)


def test_several_images_are_computed_whole(in_pieces: Callable[[HtpProgram, int], segments.Cuts]) -> None:
    program = network(batch=2)
    assert not in_pieces(program, 3).ends
    OrtEngine().load(program)


@pytest.fixture
def stored(in_pieces: Callable[[HtpProgram, int], segments.Cuts]) -> tuple[HtpProgram, PackedGraph]:
    program = network(before=True)
    in_pieces(program, 3)
    packed = OrtEngine().pack(program)
    assert packed is not None
    return program, packed


def loaded_from(packed: PackedGraph) -> OrtProgram | None:
    with Workshop() as workshop:
        return OrtEngine().load_packed(packed, packed.info(), find_soc("SM8650"), workshop)


def test_strips_are_stored_and_loaded(stored: tuple[HtpProgram, PackedGraph]) -> None:
    program, packed = stored
    loaded = loaded_from(packed)
    assert loaded is not None
    assert loaded.steps == 5
    np.testing.assert_array_equal(computed(loaded, program), computed(OrtEngine().load(program), program))


Windows = list[WindowWords]
WRONG: dict[str, tuple[Callable[[Windows], Windows], str]] = {
    "none": (lambda given: [], "comes from nowhere"),
    "beyond": (lambda given: [replace(each, begin=each.begin + 1) for each in given], "not within a value"),
    "of nothing": (lambda given: [replace(each, of="other") for each in given], "not within a value"),
    "huge": (lambda given: [replace(each, shape=[1 << 39]) for each in given], "not within a value"),
    "a gap": (
        lambda given: [replace(each, begin=0) if "conv" in each.of or each.begin else each for each in given],
        "made twice, or with a gap",
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_windows_that_do_not_fit_are_refused(
    stored: tuple[HtpProgram, PackedGraph], caplog: pytest.LogCaptureFixture, name: str
) -> None:
    _, packed = stored
    change, why = WRONG[name]
    key = seal.read_key()
    assert packed.prepared is not None
    assert key is not None
    manifest = msgspec.msgpack.decode(packed.prepared.read(), type=Manifest)
    words = msgspec.msgpack.encode(replace(manifest, windows=change(manifest.windows)))
    changed = dataclasses.replace(packed, prepared=make_section(words), seal=seal.sealed(key, words))
    with caplog.at_level(logging.INFO):
        assert loaded_from(changed) is None
    assert why in caplog.text


WRONG_PARTS: dict[str, tuple[Callable[[Constant], Constant], str]] = {
    "no rows": (lambda one: replace(one, row_bytes=0), "is no part of its data"),
    "rows that do not fit": (lambda one: replace(one, row_bytes=7), "is no part of its data"),
    "beyond the row": (lambda one: replace(one, begin=one.row_bytes), "is no part of its data"),
    "too wide": (lambda one: replace(one, shape=[one.shape[0], 10_000]), "is no part of its data"),
}


@pytest.mark.parametrize("name", WRONG_PARTS)
def test_columns_that_do_not_fit_are_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, name: str
) -> None:
    program = LONG["product without a bias"]()
    monkeypatch.setattr("openhtp.engine.ort._is_slow_to_prepare", lambda program: True)
    _cut_conv(monkeypatch, program, 3)
    packed = OrtEngine().pack(program)
    change, why = WRONG_PARTS[name]

    def changed(one: Constant) -> Constant:
        return one if one.row_bytes is None else change(one)

    forged = resealed(packed, lambda manifest: replace(manifest, constants=list(map(changed, manifest.constants))))
    with caplog.at_level(logging.INFO):
        assert loaded_from(forged) is None
    assert why in caplog.text


def test_values_that_a_session_does_not_have_are_refused(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    program = sequence(reverse=False)
    monkeypatch.setattr("openhtp.engine.ort._is_slow_to_prepare", lambda program: True)
    _cut_conv(monkeypatch, program, 3)
    packed = OrtEngine().pack(program)

    def all_alike(manifest: Manifest) -> Manifest:
        parts = [replace(part, called=dict.fromkeys(part.called, "same")) for part in manifest.parts]
        return replace(manifest, parts=parts)

    with caplog.at_level(logging.INFO):
        assert loaded_from(resealed(packed, all_alike)) is None
    assert "other values than it says" in caplog.text


def resealed(packed: PackedGraph, change: Callable[[Manifest], Manifest]) -> PackedGraph:
    """The graph with another manifest, which bears the seal of this user's engine."""
    key = seal.read_key()
    assert packed.prepared is not None
    assert key is not None
    words = msgspec.msgpack.encode(change(msgspec.msgpack.decode(packed.prepared.read(), type=Manifest)))
    return dataclasses.replace(packed, prepared=make_section(words), seal=seal.sealed(key, words))


# Float convolutions, by channels.


def float_network(*, channels: int, filters: int, kernel: int = 3, activation: bool = False) -> HtpProgram:
    """A convolution of an image, perhaps with a Relu, and a sum of its result with itself."""
    rng = np.random.default_rng(channels + filters)
    builder = GraphBuilder("g")

    def add(name: str, shape: tuple[int, ...], kind: TensorKind) -> TensorSpec:
        spec = TensorSpec(name, shape, DType.FLOAT_32, None, kind)
        builder.add_tensor(spec, rng.normal(size=shape).astype(np.float32) if kind is TensorKind.STATIC else None)
        return spec

    x = add("x", (1, 24, 40, channels), TensorKind.APP_WRITE)
    weights = add("w", (kernel, kernel, channels, filters), TensorKind.STATIC)
    bias = add("b", (filters,), TensorKind.STATIC)
    y = add("conv", (1, 24, 40, filters), TensorKind.NATIVE)
    pads = [[kernel // 2] * 2] * 2
    builder.add_node(OpCall("Conv2d", "conv", (x, weights, bias), (y,), {"stride": [1, 1], "pad_amount": pads}))
    if activation:
        bounded = add("bounded", y.shape, TensorKind.NATIVE)
        builder.add_node(OpCall("Relu", "bounded", (y,), (bounded,)))
        y = bounded
    out = add("out", y.shape, TensorKind.APP_READ)
    builder.add_node(OpCall("ElementWiseAdd", "end", (y, y), (out,)))
    return compile_graph(builder.finish(), "SM8650")


def computed_floats(loaded: OrtProgram, program: HtpProgram) -> np.ndarray:
    (source,), (result,) = program.inputs, program.outputs
    x = np.random.default_rng(1).normal(size=source.shape).astype(np.float32)
    y = np.zeros(result.shape, np.float32)
    run = loaded.bind({source.name: x, result.name: y})
    for step in range(loaded.steps):
        run.step(step)
    return y


@pytest.mark.usefixtures("image_order")
@pytest.mark.parametrize("activation", [False, True])
@pytest.mark.parametrize(
    ("channels", "filters", "kernel"),
    [(3, 64, 3), (64, 96, 3), (64, 64, 1), (20, 72, 3), (7, 50, 5)],
)
def test_float_convolutions_are_cut_by_channels_with_the_same_result(
    monkeypatch: pytest.MonkeyPatch, channels: int, filters: int, kernel: int, *, activation: bool
) -> None:
    program = float_network(channels=channels, filters=filters, kernel=kernel, activation=activation)
    expected = computed_floats(OrtEngine(yield_points=False).load(program), program)
    assert expected.std() > 1
    at_most_a_third(monkeypatch, program)
    cuts = segments.cuts_of(program)
    (ends,) = cuts.ends.values()
    assert ends == tuple(even_blocks(filters))
    loaded = OrtEngine().load(program)
    assert loaded.steps == cuts.segments
    np.testing.assert_array_equal(computed_floats(loaded, program), expected)


def at_most_a_third(patch: pytest.MonkeyPatch, program: HtpProgram) -> None:
    """Let no segment take longer than a third of the longest step."""
    longest = max(segments.step_seconds(program)) / 3
    patch.setattr(segments, "longest_seconds", lambda seconds: longest * (1 + 1e-9))


def even_blocks(filters: int) -> list[int]:
    """Ends of three parts, in blocks of 16 filters; of fewer if these would have less than two blocks each."""
    blocks = -(-filters // 16)
    parts = min(3, blocks // 2)
    return [16 * round(blocks * part / parts) for part in range(1, parts)]


def test_no_part_of_a_short_float_convolution_has_less_than_two_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """One block by itself takes about as long as two together: in a short program that is not worth it."""
    for filters in (24, 32, 48):
        program = float_network(channels=64, filters=filters)
        at_most_a_third(monkeypatch, program)
        assert not segments.cuts_of(program).ends, filters


def test_a_float_convolution_that_keeps_others_waiting_is_cut_into_single_blocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    program = float_network(channels=64, filters=32)
    steps = segments.step_seconds(program)
    # As in a long program: such a convolution takes far longer than segments of usual length.
    scale = 100 * segments._SEGMENT_SECONDS / max(steps)
    monkeypatch.setattr(segments, "step_seconds", lambda program: [scale * seconds for seconds in steps])
    for share, ends in ((1.4, []), (1.6, [(16,)])):
        longest = 100 * segments._SEGMENT_SECONDS / share
        monkeypatch.setattr(segments, "longest_seconds", lambda seconds, longest=longest: longest)
        assert list(segments.cuts_of(program).ends.values()) == ends, share


def test_kernels_make_forms_of_small_constants(in_pieces: Callable[[HtpProgram, int], segments.Cuts]) -> None:
    """Those inside a part's model, too: the runtime would otherwise put them in order again in each run."""
    program = network()
    in_pieces(program, 3)
    prepared = prepare(program, lower_program(program), 1)
    assert prepared is not None
    for part in prepared.parts:
        assert not part.constants, "all are small"
        assert not part.unpacked


def test_constants_are_named_once_in_a_part(in_pieces: Callable[[HtpProgram, int], segments.Cuts]) -> None:
    """Input and result of this convolution have one scale; named twice, it would count as an input."""
    program = network()
    in_pieces(program, 3)
    prepared = prepare(program, lower_program(program), 1)
    assert prepared is not None
    for part in prepared.parts:
        names = [tensor.name for tensor in parse_model(part.model).graph.initializer]
        assert len(names) == len(set(names))


def test_parts_by_channels_are_stored_and_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    program = float_network(channels=64, filters=64)
    at_most_a_third(monkeypatch, program)
    # Whatever its size, it is worth storing.
    monkeypatch.setattr("openhtp.engine.ort._is_slow_to_prepare", lambda program: True)
    packed = OrtEngine().pack(program)
    loaded = loaded_from(packed)
    assert loaded is not None
    assert loaded.steps == segments.cuts_of(program).segments > 2
    expected = computed_floats(OrtEngine(yield_points=False).load(program), program)
    np.testing.assert_array_equal(computed_floats(loaded, program), expected)


# Products by columns, sequences by steps, transposed convolutions by channels.


def _program(op: str, shapes: dict[str, tuple[int, ...]], params: dict[str, Any], *, bits: int = 0) -> HtpProgram:
    """One op on x, the constants that are named, and a sum of its result with itself."""
    rng = np.random.default_rng(5)
    builder = GraphBuilder("g")
    quant = ScaleOffset(0.05, -120) if bits else None
    dtype = DType.UFIXED_POINT_8 if bits else DType.FLOAT_32

    def add(name: str, shape: tuple[int, ...], kind: TensorKind) -> TensorSpec:
        data = None
        if kind is TensorKind.STATIC:
            real = (0.2 * rng.normal(size=shape)).astype(np.float32)
            data = (127 + 40 * real).astype(np.uint8) if bits else real
        weight = ScaleOffset(0.01, -127) if bits and kind is TensorKind.STATIC else quant
        spec = TensorSpec(name, shape, dtype, weight, kind)
        builder.add_tensor(spec, data)
        return spec

    x = add("x", shapes["x"], TensorKind.APP_WRITE)
    constants = [add(name, shapes[name], TensorKind.STATIC) for name in shapes if name not in ("x", "y")]
    y = add("conv", shapes["y"], TensorKind.NATIVE)
    builder.add_node(OpCall(op, "conv", (x, *constants), (y,), params))
    out = add("out", y.shape, TensorKind.APP_READ)
    builder.add_node(OpCall("ElementWiseAdd", "end", (y, y), (out,)))
    return compile_graph(builder.finish(), "SM8650")


def sequence(*, reverse: bool, steps: int = 11, last_states: bool = False) -> HtpProgram:
    """An LSTM and a sum of its results with themselves; perhaps its last states are read, too."""
    rng = np.random.default_rng(7)
    builder = GraphBuilder("g")
    units, features = 24, 40

    def add(name: str, shape: tuple[int, ...], kind: TensorKind) -> TensorSpec:
        spec = TensorSpec(name, shape, DType.FLOAT_32, None, kind)
        data = (0.3 * rng.normal(size=shape)).astype(np.float32) if kind is TensorKind.STATIC else None
        builder.add_tensor(spec, data)
        return spec

    inputs: list[TensorSpec | None] = [None] * 22
    inputs[0] = add("x", (steps, 2, features), TensorKind.APP_WRITE)
    for number in (1, 2, 3, 16):
        inputs[number] = add(f"w{number}", (units, features), TensorKind.STATIC)
    for number in (4, 5, 6, 17):
        inputs[number] = add(f"r{number}", (units, units), TensorKind.STATIC)
    for number in (7, 8, 9, 21):
        inputs[number] = add(f"b{number}", (units,), TensorKind.STATIC)
    kind = TensorKind.APP_READ if last_states else TensorKind.NATIVE
    states = [add(name, (2, units), kind) for name in ("cell", "hidden")]
    y = add("sequence", (steps, 2, units), TensorKind.NATIVE)
    builder.add_node(
        OpCall("Lstm", "conv", tuple(inputs), (y, *states), {"direction": 1 if reverse else 0, "time_major": True})
    )
    out = add("out", y.shape, TensorKind.APP_READ)
    builder.add_node(OpCall("ElementWiseAdd", "end", (y, y), (out,)))
    return compile_graph(builder.finish(), "SM8650")


PRODUCT = {"x": (6, 40), "w": (200, 40), "b": (200,), "y": (6, 200)}
LONG: dict[str, Callable[[], HtpProgram]] = {
    "product": lambda: _program("FullyConnected", PRODUCT, {}),
    "product of 8 bits": lambda: _program("FullyConnected", PRODUCT, {}, bits=8),
    "product without a bias": lambda: _program("MatMul", {"x": (1, 6, 40), "w": (40, 200), "y": (1, 6, 200)}, {}),
    "sequence": lambda: sequence(reverse=False),
    "sequence backwards": lambda: sequence(reverse=True),
    "sequence and its last states": lambda: sequence(reverse=False, last_states=True),
    "transposed": lambda: _program(
        "TransposeConv2d",
        {"x": (1, 12, 20, 24), "w": (2, 2, 24, 72), "b": (72,), "y": (1, 24, 40, 72)},
        {"stride": [2, 2], "pad_amount": [[0, 0], [0, 0]]},
    ),
    "transposed of 8 bits": lambda: _program(
        "TransposeConv2d",
        {"x": (1, 12, 20, 24), "w": (3, 3, 24, 72), "y": (1, 24, 40, 72)},
        {"stride": [2, 2], "pad_amount": [[1, 0], [1, 0]]},
        bits=8,
    ),
}


def all_computed(loaded: OrtProgram, program: HtpProgram) -> list[np.ndarray]:
    rng = np.random.default_rng(1)
    (source,) = program.inputs
    x = rng.normal(size=source.shape) if source.dtype.is_float else rng.integers(0, 256, source.shape)
    arrays = {spec.name: np.zeros(spec.shape, spec.dtype.numpy) for spec in program.outputs}
    run = loaded.bind({source.name: x.astype(source.dtype.numpy), **arrays})
    for step in range(loaded.steps):
        run.step(step)
    return list(arrays.values())


@pytest.mark.parametrize("what", LONG)
def test_long_ops_are_computed_in_pieces_with_the_same_result_and_stored_so(
    monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    program = LONG[what]()
    expected = all_computed(OrtEngine(yield_points=False).load(program), program)
    assert all(result.std() > 0 for result in expected)
    monkeypatch.setattr("openhtp.engine.ort._is_slow_to_prepare", lambda program: True)
    uncut = OrtEngine().pack(program)
    _cut_conv(monkeypatch, program, 3)
    cuts = segments.cuts_of(program)
    assert [len(ends) for ends in cuts.ends.values()] == [2]
    loaded = OrtEngine().load(program)
    assert loaded.steps == cuts.segments
    packed = OrtEngine().pack(program)
    again = loaded_from(packed)
    assert again is not None
    assert again.steps == loaded.steps
    for one in (loaded, again):
        for result, wanted in zip(all_computed(one, program), expected, strict=True):
            np.testing.assert_array_equal(result, wanted)
    assert stored_bytes(packed) == stored_bytes(uncut)
    named = step_nodes(program, loaded.steps)
    assert [names for names, _ in named].count(("conv",)) >= 3


def stored_bytes(packed: PackedGraph) -> int:
    return sum(blob.end - blob.begin for blob in packed.blobs)


def test_the_parts_of_a_sequence_have_one_session(monkeypatch: pytest.MonkeyPatch) -> None:
    """So its weights are in memory once."""
    program = sequence(reverse=True)
    _cut_conv(monkeypatch, program, 3)
    monkeypatch.setattr("openhtp.engine.ort._is_slow_to_prepare", lambda program: True)
    for loaded in (OrtEngine().load(program), loaded_from(OrtEngine().pack(program))):
        assert loaded is not None
        sessions = [id(stage.session) for stage in loaded._stages.stages if stage.called]
        assert (len(sessions), len(set(sessions))) == (3, 1)
