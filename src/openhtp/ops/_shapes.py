"""Shape arithmetic that several ops share. Each function raises with what was given and what was expected."""

from __future__ import annotations

from typing import Any, NoReturn

from openhtp.core import status as st
from openhtp.core.errors import InvalidArgument
from openhtp.ops._node import Node, Shape, Shapes


def refuse(node: Node, problem: str) -> NoReturn:
    """Raise: the node is not valid."""
    raise InvalidArgument(f"{node.op} {node.name!r}: {problem}", st.QNN_OP_PACKAGE_ERROR_VALIDATION_FAILURE)


def same_as_input(node: Node) -> Shapes:
    """One output, shaped like input 0."""
    return (node.shape(0),)


def expect_rank(node: Node, index: int, *ranks: int) -> Shape:
    """Shape of an input that must have one of these ranks."""
    shape = node.shape(index)
    if len(shape) not in ranks:
        wanted = " or ".join(str(rank) for rank in ranks)
        refuse(node, f"input {index} has shape {list(shape)}; expected rank {wanted}")
    return shape


def broadcast(node: Node, *shapes: Shape) -> Shape:
    """Result shape of elementwise work on these shapes, aligned at the last axis."""
    rank = max(len(shape) for shape in shapes)
    result: list[int] = []
    for axis in range(-rank, 0):
        sizes = {shape[axis] for shape in shapes if len(shape) >= -axis} - {1}
        if len(sizes) > 1:
            listed = " and ".join(str(list(shape)) for shape in shapes)
            refuse(node, f"shapes {listed} do not broadcast: sizes {sorted(sizes)} meet on axis {axis}")
        result.append(sizes.pop() if sizes else 1)
    return tuple(result)


def broadcast_inputs(node: Node) -> Shapes:
    """One output, the broadcast of all inputs."""
    return (broadcast(node, *(spec.shape for spec in node.inputs if spec is not None)),)


def axis_in_range(node: Node, axis: int, rank: int, what: str = "axis") -> int:
    """The axis, checked against the rank; negative axes count from the end."""
    if not -rank <= axis < rank:
        refuse(node, f"{what} is {axis}; expected {-rank}..{rank - 1} for rank {rank}")
    return axis % rank


def axes_in_range(node: Node, axes: tuple[int, ...], rank: int) -> tuple[int, ...]:
    """Distinct axes, checked and sorted."""
    checked = sorted(axis_in_range(node, axis, rank, "axes") for axis in axes)
    if len(set(checked)) != len(checked):
        refuse(node, f"axes {list(axes)} name one axis twice")
    return tuple(checked)


def last_axis(node: Node) -> int:
    """Default of an ``axis`` parameter."""
    return node.input(0).rank - 1


def window_size(
    node: Node, size: int, kernel: int, stride: int, pad: tuple[int, int], dilation: int = 1, *, ceil: bool = False
) -> int:
    """Output size of a sliding window along one axis."""
    if stride < 1 or dilation < 1 or kernel < 1:
        refuse(node, f"kernel {kernel}, stride {stride} and dilation {dilation} must all be at least 1")
    span = size + sum(pad) - (dilation * (kernel - 1) + 1)
    if span < 0:
        refuse(node, f"kernel {kernel} with dilation {dilation} is larger than the padded input {size + sum(pad)}")
    return (span + stride - 1 if ceil else span) // stride + 1


def expect_shape(node: Node, index: int, wanted: tuple[Any, ...], meaning: str) -> None:
    """Check an optional or mandatory input's shape against the wanted one."""
    if node.has(index) and node.shape(index) != tuple(wanted):
        refuse(node, f"input {index} has shape {list(node.shape(index))}; expected {list(wanted)} ({meaning})")
