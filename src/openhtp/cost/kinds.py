"""Which ops cost alike. A kind is a row of ``parameters.toml``; ops of one kind share its rates.

Which kind an op is of stands in its own file (``OpDef.kind``). Some kinds depend on more than the op:
``kernels.py`` tells those apart.
"""

from __future__ import annotations

from openhtp.ops import find_op

MATRIX_KINDS = ("conv", "dilated", "stem", "group", "fully_connected", "matmul")
"""Done by the HMX. A stem is a convolution of an image, which has too few channels to fill the unit."""

VECTOR_KINDS = (
    "add",
    "multiply",
    "affine",
    "clamp",
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
    "reshape",
    "image_norm",
    "image_layout",
)
"""Done by the HVX. ``affine`` has a constant operand; the last two are what happens to an image on its way in."""

HELPER_KINDS = ("convert", "stem_pack")
"""What the HVX does for the HMX: results back to their stored type, and pixels into the depth of a stem."""


def kind_of_op(op: str) -> str | None:
    """The kind of an op by its name alone; None if no published network told what it costs."""
    return find_op(op).kind
