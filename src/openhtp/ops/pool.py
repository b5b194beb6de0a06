"""Average and maximum over sliding windows of channel-last images and volumes."""

from __future__ import annotations

import numpy as np

from openhtp.core.dtype import DType
from openhtp.ops._node import Arrays, Emitter, Layout, Node, Results, Shapes
from openhtp.ops._opdef import Constraint, OpDef, Param, Sample, Work, rows
from openhtp.ops._shapes import expect_rank, window_size
from openhtp.ops._tiles import TileAxis
from openhtp.ops._windows import PAD, STRIDE, AxisWindow, batch_and_rows, onnx_pads, patches, read_windows

_COMMON = (
    Param("filter_size", rank=1, mandatory=True),
    STRIDE,
    PAD,
    Param("rounding_mode", default=0, choices={"FLOOR": 0, "CEIL": 1}),
)


def _dimensions(node: Node) -> int:
    return int(node.op[-2])


def _windows(node: Node) -> tuple[AxisWindow, ...]:
    return read_windows(node, node.ints("filter_size"), _dimensions(node))


def _infer(node: Node) -> Shapes:
    shape = expect_rank(node, 0, _dimensions(node) + 2)
    ceil = bool(node.params["rounding_mode"])
    sizes = [
        window_size(node, size, w.kernel, w.stride, (w.before, w.after), ceil=ceil)
        for size, w in zip(shape[1:-1], _windows(node), strict=True)
    ]
    return ((shape[0], *sizes, shape[-1]),)


def _average_reference(node: Node, arrays: Arrays) -> Results:
    windows, sizes = _windows(node), _infer(node)[0][1:-1]
    kernel_axes = tuple(range(1 + len(windows), 1 + 2 * len(windows)))
    x = arrays[0]
    counted = np.ones_like(x)
    if node.params["count_pad_for_edges"]:
        pads = [(0, 0), *((w.before, w.after) for w in windows), (0, 0)]
        x, counted = np.pad(x, pads), np.pad(counted, pads, constant_values=1.0)
        windows = tuple(AxisWindow(w.kernel, w.stride, 0, 0) for w in windows)
    total = patches(x, windows, sizes, 0.0).sum(axis=kernel_axes)
    return (total / patches(counted, windows, sizes, 0.0).sum(axis=kernel_axes),)


def _maximum_reference(node: Node, arrays: Arrays) -> Results:
    windows, sizes = _windows(node), _infer(node)[0][1:-1]
    kernel_axes = tuple(range(1 + len(windows), 1 + 2 * len(windows)))
    return (patches(arrays[0], windows, sizes, -np.inf).max(axis=kernel_axes),)


def _overhang(node: Node, windows: tuple[AxisWindow, ...]) -> tuple[AxisWindow, ...]:
    """Windows whose pad after reaches as far as the last window does when sizes are rounded up."""
    return tuple(
        AxisWindow(
            w.kernel, w.stride, w.before, max(w.after, (size - 1) * w.stride + w.kernel - length - w.before)
        )
        for w, size, length in zip(windows, node.outputs[0].shape[1:-1], node.shape()[1:-1], strict=True)
    )


def _lower_average(node: Node, e: Emitter) -> None:
    windows = _windows(node)
    kernel = [w.kernel for w in windows]
    if not e.dynamic and kernel == list(node.shape()[1:-1]) and not any(onnx_pads(windows)):
        return e.put(0, e.node("GlobalAveragePool", [e.value(0)]))
    x, reaching, counted = e.value(0), _overhang(node, windows), node.params["count_pad_for_edges"]
    if counted and reaching != windows:
        # The overhang of a rounded-up last window is never counted, but the node's own padding is: pad first.
        pads = [0, 0, *(w.before for w in windows), 0, 0, *(w.after for w in windows)]
        x = e.node("Pad", [x, e.ints(pads)])
        reaching = tuple(
            AxisWindow(r.kernel, r.stride, 0, r.after - w.after) for r, w in zip(reaching, windows, strict=True)
        )
        counted = False
    return e.put(
        0,
        e.node(
            "AveragePool",
            [x],
            kernel_shape=kernel,
            strides=[w.stride for w in windows],
            pads=onnx_pads(reaching),
            count_include_pad=int(counted),
        ),
    )


def _lower_maximum(node: Node, e: Emitter) -> None:
    windows = _overhang(node, _windows(node))
    out = e.node(
        "MaxPool",
        [e.value(0)],
        kernel_shape=[w.kernel for w in windows],
        strides=[w.stride for w in windows],
        pads=onnx_pads(windows),
    )
    e.put(0, out)


def _work(node: Node) -> Work:
    elements = node.outputs[0].elements * int(np.prod([w.kernel for w in _windows(node)]))
    return Work.on(node, vector_ops=elements)


def _tiles(node: Node) -> tuple[TileAxis, ...]:
    last, windows = node.input().rank - 1, _windows(node)
    batch, *rows = batch_and_rows(node, windows)
    # An axis whose last window hangs over the padding stays whole: that window cannot be computed by itself.
    inside = [
        row for row, w, reaching in zip(rows, windows, _overhang(node, windows), strict=True) if w == reaching
    ]
    return batch, *inside, TileAxis(axis=last, inputs=(last,))


_PADS_BELOW_KERNEL = Constraint(
    "padding on each side is smaller than the window",
    lambda node: all(max(w.before, w.after) < w.kernel for w in _windows(node)),
)


def _pool(average: bool, dimensions: int) -> OpDef:
    ones = [1] * dimensions
    shape = (1, 9, 8, 5) if dimensions == 2 else (1, 5, 6, 7, 3)
    pads = [[1, 1], [0, 1], [1, 0]][:dimensions]
    return OpDef(
        name=f"Pool{'Avg' if average else 'Max'}{dimensions}d",
        summary=f"{'mean' if average else 'largest value'} of each window of in[0]",
        types=rows("T > T : f16 f32 u16 u8 s8") if average else rows("T > T : f16 f32 u16 s16 u8 s8"),
        infer=_infer,
        reference=_average_reference if average else _maximum_reference,
        lower=_lower_average if average else _lower_maximum,
        work=_work,
        kind="pool",
        params=(*_COMMON, Param("count_pad_for_edges", DType.BOOL_8, default=False)) if average else _COMMON,
        constraints=(_PADS_BELOW_KERNEL,),
        layout=Layout.CHANNEL_FIRST,
        values_kept=not average,
        takes_activation=True,
        tile=_tiles,
        samples=(
            Sample((shape,), {"filter_size": [3] * dimensions, "stride": [2] * dimensions, "pad_amount": pads}),
            Sample(
                (shape,),
                {"filter_size": [2] * dimensions, "stride": [2] * dimensions, "pad_amount": [[0, 0]] * dimensions}
                | {"rounding_mode": 1},
            ),
            Sample(
                (shape,), {"filter_size": list(shape[1:-1]), "stride": ones, "pad_amount": [[0, 0]] * dimensions}
            ),
            *(
                (
                    Sample(
                        (shape,),
                        {"filter_size": [3] * dimensions, "stride": [2] * dimensions, "pad_amount": pads}
                        | {"rounding_mode": 1, "count_pad_for_edges": True},
                    ),
                )
                if average
                else ()
            ),
        ),
    )


OPS = (_pool(True, 2), _pool(False, 2), _pool(True, 3), _pool(False, 3))
