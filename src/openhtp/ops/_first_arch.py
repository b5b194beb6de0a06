"""On which architectures an op can be done with its types: not all have every kind of product."""

from __future__ import annotations

from openhtp.ops._node import Node
from openhtp.ops._opdef import OpDef

LOWEST = 68
# Of 16-bit activations with 16-bit weights; found by asking the vendor's validator about chips of each kind.
WIDE_PRODUCTS = 73


def first_arch(opdef: OpDef, node: Node) -> int:
    """The first architecture that can do this op on these types."""
    factors = [spec.dtype for spec in node.inputs[:2] if spec is not None]
    is_wide = len(factors) == 2 and all(dtype.is_fixed_point and dtype.bits == 16 for dtype in factors)
    return WIDE_PRODUCTS if is_wide and opdef.work(node).macs else LOWEST
