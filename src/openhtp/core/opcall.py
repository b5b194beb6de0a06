"""One use of an operation (which op, on which tensors, with which parameters), and which ops cost alike.

A kind is a row of ``cost/parameters.toml``; ops of one kind share its rates. An op's own file says its kind
(``OpDef.kind``). Some kinds depend on more than the op: the compiler tells those apart when it makes kernels
(``compiler/passes/assign_kinds.py``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from openhtp.core.tensor import TensorSpec


@dataclass(frozen=True, slots=True)
class OpCall:
    """A node as data. ``inputs`` may hold None where an optional input is left out.

    ``origin`` names the node of the model that it was made from, where that has another name. ``stays_float`` is
    on where a quantizer leaves that node in floats.
    """

    op: str
    name: str
    inputs: tuple[TensorSpec | None, ...]
    outputs: tuple[TensorSpec, ...]
    params: Mapping[str, Any] = field(default_factory=dict)
    package: str = "qti.aisw"
    origin: str = ""
    stays_float: bool = False


MATRIX_KINDS = ("conv", "dilated", "stem", "group", "conv3d", "fully_connected", "matmul")
"""Done by the HMX. A stem is a convolution of an image, which has too few channels to fill the unit."""

VECTOR_KINDS = (
    "add",
    "subtract",
    "multiply",
    "divide",
    "affine",
    "clamp",
    "prelu",
    "unary",
    "silu",
    "softmax",
    "norm",
    "batchnorm",
    "pool",
    "reduce",
    "resize",
    "depthwise",
    "move",
    "concat",
    "gather",
    "transpose",
    "permute",
    "reshape",
    "image_norm",
    "image_layout",
)
"""Done by the HVX. ``affine`` has a constant operand; the last two are what happens to an image on its way in."""

HELPER_KINDS = ("convert", "stem_pack")
"""Work of the HVX for the HMX: results back to their stored type, and pixels into the depth of a stem."""

MOVES_NOTHING = "reshape"
"""The kind of ops that only give data another shape: no unit is busy with them, and they write nothing."""
