"""Rules of one chip for portable programs, checked before anything is made of a program."""

from __future__ import annotations

from collections.abc import Iterator

from openhtp.core import status as st
from openhtp.core.errors import UnsupportedFeature, UnsupportedOp, error_context
from openhtp.core.precision import FloatPrecision, NumberFormat, precision_of
from openhtp.core.quant import HIGHEST_WEIGHT_16, ScaleOffset
from openhtp.hw.soc import SocSpec
from openhtp.ir.graph import QnnNode
from openhtp.ops import Node, op_of
from openhtp.ops._resolve import first_arch, is_wide_product
from openhtp.program.qnn_program import QnnProgram

# The offset of an unsigned 16-bit encoding with as many codes below 0 as above.
_MIDDLE_16 = -0x8000


def verify_chip(program: QnnProgram, soc: SocSpec) -> None:
    """Raise UnsupportedFeature or UnsupportedOp for the first node that the chip cannot compute."""
    if not soc.fp16 and program.options.precision is FloatPrecision.FLOAT16:
        for node in float_nodes(program):
            with error_context(node=node.name):
                raise UnsupportedFeature(
                    f"{soc.name} has no half precision, and this graph computes in floats; quantize it (openhtp"
                    " quantize), or choose a chip that has it",
                    st.QNN_GRAPH_ERROR_UNSUPPORTED_FEATURE,
                )
    for node in program.nodes:
        resolved = program.resolved(node)
        if is_wide_product(op_of(node), resolved):
            with error_context(node=node.name):
                _check_wide_product(program, resolved, soc)


def float_nodes(program: QnnProgram) -> Iterator[QnnNode]:
    """Nodes whose math is in floats. Nodes that only convert between floats and fixed point do not count."""
    for node in program.nodes:
        tensors = (*node.inputs, *node.outputs)
        specs = tuple(program.tensors[name] for name in tensors if name and name not in program.statics)
        if precision_of(specs) is NumberFormat.FLOAT:
            yield node


# The documents call convolutions of so many channels short.
SHORT_DEPTH = 4
_MIDDLE_8 = -128


def short_products(program: QnnProgram) -> Iterator[QnnNode]:
    """Convolutions of few channels whose weights are not symmetric, and which run on the HMX."""
    if program.options.short_depth_conv_on_hmx_off:
        return
    for node in program.nodes:
        weights = None if node.op != "Conv2d" or node.inputs[1] is None else program.tensors[node.inputs[1]]
        if weights is None or weights.shape[-2] > SHORT_DEPTH or not weights.dtype.is_fixed_point:
            continue
        middle = 0 if weights.dtype.signed else _MIDDLE_8
        if isinstance(weights.quant, ScaleOffset) and weights.quant.offset != middle:
            yield node


def _check_wide_product(program: QnnProgram, node: Node, soc: SocSpec) -> None:
    """Refuse products of 16-bit activations and weights on older chips, or with weights that are not symmetric."""
    first = first_arch(op_of(node), node)
    if soc.arch < first:
        raise UnsupportedOp(
            f"{node.op} of 16-bit activations with 16-bit weights needs v{first} or later; {soc.name} is"
            f" {soc.arch_name}"
        )
    weights = node.inputs[1]
    assert weights is not None
    quant = weights.quant
    middle = 0 if weights.dtype.signed else _MIDDLE_16
    offsets = (quant.offset,) if isinstance(quant, ScaleOffset) else getattr(quant, "offsets", ())
    wrong = [offset for offset in offsets if offset != middle]
    if wrong:
        raise UnsupportedOp(
            f"16-bit weights {weights.name!r} have offset {wrong[0]}; expected symmetric ones, with offset"
            f" {middle}"
        )
    data = program.statics.get(weights.name)
    if data is not None and weights.dtype.signed and int(data.max(initial=0)) > HIGHEST_WEIGHT_16:
        raise UnsupportedOp(
            f"16-bit weights {weights.name!r} have {int(data.max())} among them; expected -0x8000 to 0x7F7F, as"
            " the hardware has no higher codes: quantize them to that range"
        )
