from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from openhtp.compiler.driver import compile_graph
from openhtp.core.dtype import DType
from openhtp.core.errors import InvalidArgument, UnsupportedFeature
from openhtp.core.opcall import MATRIX_KINDS, VECTOR_KINDS, OpCall
from openhtp.core.quant import ScaleOffset
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.cost import Bound, KernelSize, NumberFormat, estimate, sizes_of
from openhtp.cost.model import estimate_kernels
from openhtp.cost.rates import find_rates, fitted_parameters, prices
from openhtp.cost.running import Tuning
from openhtp.frontend.onnx_import import load
from openhtp.hw.catalog import catalog, find_soc
from openhtp.hw.clocks import Clocks
from openhtp.ir.builder import GraphBuilder
from openhtp.ops import find_op, op_names
from openhtp.zoo import mobilenet_v2, quantized, small_cnn, transformer_blocks

SM8650 = find_soc("SM8650")
PRECISIONS = st.sampled_from(list(NumberFormat))


def kernel(kind, **sizes):
    return KernelSize(name="k", op=kind, kind=kind, **sizes)


def time(kernels, soc=SM8650, precision=NumberFormat.W8A8):
    return estimate_kernels(kernels, soc, precision).total_us


@pytest.fixture(scope="module")
def mobilenet():
    return compile_graph(load(mobilenet_v2()), SM8650)


def test_ops_and_launch_add_up_to_the_total(mobilenet):
    for precision in NumberFormat:
        estimated = estimate(mobilenet, precision)
        assert math.isclose(estimated.launch_us + sum(op.us for op in estimated.ops), estimated.total_us)
        assert math.isclose(sum(estimated.bounds().values()), estimated.total_us - estimated.launch_us)
        assert all(op.us >= 0 for op in estimated.ops)
        assert estimated.low_us < estimated.total_us < estimated.high_us
        assert estimated.macs == sum(node.work.macs for node in mobilenet.nodes)


def test_steps_are_those_of_the_program(mobilenet):
    transformer = compile_graph(load(quantized(transformer_blocks(), samples=2)), SM8650)
    for program in (mobilenet, transformer):
        assert estimate(program).steps == len(program.steps) <= len(program.kernels)


def test_published_time_of_mobilenet_is_near(mobilenet):
    """The zoo's network has no normalisation of colours in it, so it must be quicker than the published one."""
    assert 120 < estimate(mobilenet, NumberFormat.W8A8).total_us < 313
    assert 180 < estimate(mobilenet, NumberFormat.FLOAT).total_us < 598


@given(PRECISIONS, st.integers(1, 2**30), st.integers(1, 2**30), st.sampled_from(VECTOR_KINDS))
def test_more_elements_never_take_less(precision, few, more, kind):
    few, more = sorted((few, more))
    small, large = (time([kernel(kind, read=n, written=n)], precision=precision) for n in (few, more))
    assert small <= large


@given(PRECISIONS, st.integers(1, 2**36), st.integers(1, 2**36), st.sampled_from(MATRIX_KINDS))
def test_more_products_never_take_less(precision, few, more, kind):
    few, more = sorted((few, more))
    small, large = (time([kernel(kind, macs=n)], precision=precision) for n in (few, more))
    assert small <= large
    assert small < large or large < small * (1 + 1e-6) or few == more


def tensor(name, shape, kind=TensorKind.NATIVE, dtype=DType.FLOAT_32, quant=None):
    return TensorSpec(name, shape, dtype, quant, kind)


def program_of(tensors, calls):
    builder = GraphBuilder("g")
    for spec in tensors:
        static = spec.kind is TensorKind.STATIC
        builder.add_tensor(spec, np.zeros(spec.shape, np.float32) if static else None)
    for call in calls:
        builder.add_node(call)
    return compile_graph(builder.finish(), SM8650)


def conv_program(size, channels, filters, kernel_size=3):
    out = size - kernel_size + 1
    x = tensor("x", (1, size, size, channels), TensorKind.APP_WRITE)
    w = tensor("w", (kernel_size, kernel_size, channels, filters), TensorKind.STATIC)
    y = tensor("y", (1, out, out, filters), TensorKind.APP_READ)
    params = {"stride": [1, 1], "pad_amount": [[0, 0], [0, 0]]}
    return program_of([x, w, y], [OpCall("Conv2d", "c", (x, w), (y,), params)])


@given(PRECISIONS, st.integers(3, 60), st.integers(5, 70), st.integers(1, 70), st.integers(0, 9))
def test_larger_convolutions_do_not_take_less(precision, size, channels, filters, grow):
    """But for one more tile, which lets the units overlap a little better."""
    base = estimate(conv_program(size, channels, filters), precision).total_us
    for other in ((size + grow, channels, filters), (size, channels, filters + grow)):
        assert base <= estimate(conv_program(*other), precision).total_us * 1.05


@pytest.mark.parametrize("precision", list(NumberFormat))
@pytest.mark.parametrize(("slow", "fast"), [("SM8450", "SM8550"), ("SM8550", "SM8650"), ("SM8650", "SM8750")])
def test_a_newer_phone_is_faster_at_everything(slow, fast, precision):
    parameters = fitted_parameters()
    old, new = (prices(find_rates(find_soc(soc), parameters).rates, precision, parameters) for soc in (slow, fast))
    # What starts kernels is no vector unit, and as fast on all of them.
    assert new.pop("launch") == old.pop("launch")
    assert all(new[name] < old[name] for name in old)


def test_starting_kernels_takes_no_vector_unit():
    """On every chip and with every number of vector threads it takes as long; only the clock makes it shorter."""
    many, few = ([kernel("conv", macs=1)] * count for count in (50, 10))
    each = 40 * fitted_parameters().op_us["float"]
    parts = {"SM8450": Tuning(), "SM8750": Tuning(), "SM8650": Tuning(hvx_threads=1)}
    for soc, tuning in parts.items():
        took = [estimate_kernels(some, find_soc(soc), tuning=tuning).total_us for some in (many, few)]
        assert took[0] - took[1] == pytest.approx(each, rel=0.01)
    slow = Clocks(core=0.5)
    took = [estimate_kernels(some, find_soc("SM8650"), clocks=slow).total_us for some in (many, few)]
    assert took[0] - took[1] == pytest.approx(2 * each, rel=0.01)


def test_weights_come_at_a_price_of_their_own():
    parameters = fitted_parameters()
    price = prices(find_rates(find_soc("SM8650"), parameters).rates, NumberFormat.W8A8, parameters)
    assert price["weights"] == pytest.approx(price["edge_dma"] * parameters.streamed)
    assert parameters.streamed < 1


def test_groups_of_a_convolution_have_a_cost_of_their_own():
    few, many = (kernel("group", macs=10**6, matrices=count) for count in (2, 50))
    each = fitted_parameters().group_us / fitted_parameters().socs["SM8650"].vector_speed
    assert time([many]) - time([few]) == pytest.approx(48 * each)
    assert time([kernel("conv", macs=10**6, matrices=50)]) == time([kernel("conv", macs=10**6)])


def test_half_precision_costs_old_vector_units_more():
    softmax = [kernel("softmax", read=10**7, written=10**7)]
    ratio = {}
    for soc in ("SM8450", "SM8550"):
        half, whole = (time(softmax, find_soc(soc), word) for word in (NumberFormat.FLOAT, NumberFormat.W8A8))
        ratio[soc] = half / whole
    assert ratio["SM8450"] > 1.1 * ratio["SM8550"]


def test_a_gather_takes_as_long_as_what_it_picks():
    one, other = (kernel("gather", read=read, written=1000) for read in (1000, 10**7))
    assert time([one]) == time([other])


def product_program(image):
    """A matrix on the rows of a picture that was flattened, or of a matrix as it came."""
    rows = math.prod(image[:-1])
    x, flat = tensor("x", image, TensorKind.APP_WRITE), tensor("flat", (rows, image[-1]))
    w, y = tensor("w", (64, image[-1]), TensorKind.STATIC), tensor("y", (rows, 64), TensorKind.APP_READ)
    calls = [OpCall("Reshape", "r", (x,), (flat,)), OpCall("FullyConnected", "f", (flat, w), (y,))]
    return program_of([x, flat, w, y], calls)


def test_a_product_of_pixels_is_a_convolution():
    pixels, rows = (sizes_of(product_program(image))[-1] for image in ((1, 8, 8, 32), (1, 1, 64, 32)))
    assert (pixels.op, pixels.kind, rows.kind) == ("FullyConnected", "conv", "fully_connected")
    assert (pixels.macs, pixels.row_padding) == (rows.macs, rows.row_padding)


def test_what_bounds_a_kernel():
    large = kernel("conv", macs=10**10, read=10**5, written=10**5)
    table = kernel("fully_connected", macs=4 * 10**6, weights=4 * 10**6, read=2000, written=2000)
    vector = kernel("softmax", read=10**6, written=10**6)
    tiny = kernel("add", read=8, written=8)
    for one, bound in ((large, Bound.HMX), (table, Bound.MEMORY), (vector, Bound.HVX), (tiny, Bound.OVERHEAD)):
        assert estimate_kernels([one], SM8650, NumberFormat.W8A8).ops[0].bound is bound


def test_tensors_that_do_not_fit_into_vtcm_cost_more():
    chain = [kernel("add", written=3 << 20, strips=99)]
    # All read the first one again, so that it has to stay.
    chain += [kernel("add", read=6 << 20, written=3 << 20, reads=(0, place), strips=99) for place in range(9)]
    small = replace(SM8650, vtcm_mb=2)
    assert time(chain, small) > 1.1 * time(chain)
    assert time([kernel("add", read=1 << 10, written=1 << 10)], small) == time(
        [kernel("add", read=1 << 10, written=1 << 10)]
    )


def test_weights_hide_behind_work_and_work_behind_weights():
    work = kernel("conv", macs=10**10)
    weights = kernel("fully_connected", weights=10**7)
    launch = fitted_parameters().socs["SM8650"].launch_us
    both, one, other = (time(k) - launch for k in ([work, weights], [work], [weights]))
    assert max(one, other) < both < 0.9 * (one + other)


def test_socs_without_published_times_are_marked():
    own = estimate_kernels([kernel("conv", macs=10**9)], find_soc("SM8550"), NumberFormat.W8A8)
    twin = estimate_kernels([kernel("conv", macs=10**9)], find_soc("QCS8550"), NumberFormat.W8A8)
    other = estimate_kernels([kernel("conv", macs=10**9)], find_soc("SM8845"), NumberFormat.W8A8)
    assert not own.extrapolated
    assert not twin.extrapolated
    assert twin.total_us == own.total_us
    assert other.taken_from == "SM8850"
    assert "extrapolated from SM8850" in other.notes[0]
    assert other.high_us / other.low_us > own.high_us / own.low_us


@pytest.mark.parametrize("name", catalog())
def test_every_soc_can_be_estimated(name):
    soc = find_soc(name)
    estimated = estimate_kernels([kernel("conv", macs=10**9)], soc, NumberFormat.W8A16)
    assert 0 < estimated.total_us < 20_000
    if not soc.fp16:
        with pytest.raises(UnsupportedFeature, match="no half precision"):
            estimate_kernels([kernel("conv", macs=10**9)], soc, NumberFormat.FLOAT)
    else:
        estimate_kernels([kernel("conv", macs=10**9)], soc, NumberFormat.FLOAT)


def test_a_quantized_model_is_what_it_is():
    program = compile_graph(load(quantized(small_cnn(), samples=2)), SM8650)
    estimated = estimate(program)
    assert estimated.precision in ("w8a8", "w8a16")
    with pytest.raises(InvalidArgument, match="quantized already"):
        estimate(program, NumberFormat.W8A8 if estimated.precision == "w8a16" else NumberFormat.W8A16)


@pytest.mark.parametrize(("activation", "precision"), [("u8", NumberFormat.W8A8), ("u16", NumberFormat.W8A16)])
def test_a_float_model_is_estimated_as_what_it_will_be_quantized_to(activation, precision):
    """Only the conversions at the edges come on top."""
    model = small_cnn()
    before = estimate(compile_graph(load(model), SM8650), precision).total_us
    after = estimate(compile_graph(load(quantized(model, activation, samples=2)), SM8650)).total_us
    assert before <= after < 1.1 * before


def test_nodes_that_run_as_one_piece():
    x = tensor("x", (1, 8, 8, 32), TensorKind.APP_WRITE)
    s, m = tensor("s", x.shape), tensor("m", x.shape)
    t = tensor("t", (1, 32, 8, 8))
    r = tensor("r", (1, 32, 64), TensorKind.APP_READ)
    calls = [
        OpCall("Sigmoid", "sigmoid", (x,), (s,)),
        OpCall("ElementWiseMultiply", "product", (x, s), (m,)),
        OpCall("Transpose", "turn", (m,), (t,), {"perm": [0, 3, 1, 2]}),
        OpCall("Reshape", "flatten", (t,), (r,)),
    ]
    found = sizes_of(program_of([x, s, m, t, r], calls))
    assert [(one.kind, one.nodes) for one in found] == [
        ("silu", ("sigmoid", "product")),
        ("transpose", ("turn", "flatten")),
    ]


def test_precision_follows_the_types_of_tensors():
    wide = (DType.UFIXED_POINT_16, ScaleOffset(1 / 32768, -32768))
    x = tensor("x", (1, 8, 8, 32), TensorKind.APP_WRITE, *wide)
    y = tensor("y", (1, 8, 8, 32), TensorKind.APP_READ, *wide)
    program = program_of([x, y], [OpCall("Tanh", "tanh", (x,), (y,))])
    assert sizes_of(program)[0].precision is NumberFormat.W8A16


def test_ops_of_no_published_network_are_told():
    estimated = estimate_kernels([replace(kernel("unary", written=9), op="Odd", calibrated=False)], SM8650)
    assert "no published network has Odd" in estimated.notes[0]


def test_every_kind_of_op_has_a_price():
    assert find_op("Relu").kind == "clamp"
    assert {find_op(name).kind for name in op_names()} - {None} <= {*MATRIX_KINDS, *VECTOR_KINDS}
    assert set(fitted_parameters().vector) >= set(VECTOR_KINDS)


def test_large_averages_cost_most_in_8_bits():
    """The published 8-bit networks with such averages are slower than the same networks in floats."""
    pool = kernel("pool", written=4096, taps=25, scalar_ops=4096 * 289)
    assert time([pool]) > 5 * time([pool], precision=NumberFormat.FLOAT)


def test_an_estimate_says_which_part_of_it_is_a_guess(mobilenet):
    assert estimate(mobilenet).unseen_share == 0.0
    strange = estimate_kernels(
        [kernel("conv", macs=10**8), kernel("unary", written=10**6, calibrated=False)], SM8650
    )
    assert 0.0 < strange.unseen_share < 1.0
    assert f"{strange.unseen_share:.0%} of the time" in strange.notes[0]
