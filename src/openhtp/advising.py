"""What to change in a network so that it runs faster on a chip: known recommendations, each with its gain.

>>> from openhtp.advising import advise
>>> [finding.rule for finding in advise("zoo:tiny_mlp", soc="SM8650")]
['precision']

Every gain is modelled: the network is priced again as it would be after the change.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from openhtp.compiler.driver import program_for
from openhtp.compiler.sizes import KernelSize, sizes_of
from openhtp.compiler.sub_to_conv import sub_to_conv
from openhtp.core.precision import NumberFormat
from openhtp.core.quant import AxisScaleOffset, ScaleOffset
from openhtp.cost.model import estimate_kernels
from openhtp.estimation import compiled
from openhtp.frontend.fixing import Dims, Freeze
from openhtp.frontend.onnx_reader import ModelSource
from openhtp.hw.catalog import find_soc
from openhtp.hw.soc import SocSpec
from openhtp.ir.graph import Graph
from openhtp.ops import op_of
from openhtp.program.htp_program import HtpProgram
from openhtp.program.qnn_program import QnnProgram

__all__ = ["Finding", "advise", "sub_to_conv"]

LEAST_GAIN = 0.005
"""Of the network's time: less is not worth a change."""
_WASTE = 1.2
_CONVOLUTIONS = ("conv", "stem", "group", "dilated", "depthwise", "conv3d")


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One recommendation. ``gain_us`` is modelled; 0 where the change is for accuracy alone."""

    rule: str
    nodes: tuple[str, ...]
    what: str
    change: str
    gain_us: float


_Change = Callable[[KernelSize, KernelSize | None], KernelSize | None]
"""From a kernel and the one whose result it reads to the kernel as it could be; None where it is good as it is."""


@dataclass(frozen=True, slots=True)
class _Rule:
    """Finds kernels that could be better."""

    name: str
    better: _Change
    what: str
    change: str


def advise(
    model: ModelSource | Graph | QnnProgram,
    soc: str | int | SocSpec,
    *,
    precision: NumberFormat | str | None = None,
    dims: Dims | None = None,
    freeze: Freeze | None = None,
) -> list[Finding]:
    """Changes that would make a model faster, the greatest gain first; arguments as for ``openhtp.estimate``."""
    asked = None if precision is None else NumberFormat.parse(precision)
    chip = soc if isinstance(soc, SocSpec) else find_soc(soc)
    portable = compiled(model, dims, freeze)
    program = program_for(portable, chip)
    kernels = sizes_of(program)
    now = estimate_kernels(kernels, chip, asked)
    findings = [
        *_by_rules(kernels, chip, asked, now.total_us),
        *_narrower(kernels, chip, asked, now.total_us),
        *_spills(kernels, chip, asked, now.total_us),
        *_subtractions(portable, chip, asked, now.total_us),
    ]
    worthwhile = [finding for finding in findings if finding.gain_us >= LEAST_GAIN * now.total_us]
    worthwhile.sort(key=lambda finding: -finding.gain_us)
    return [*worthwhile, *_asymmetric(program)]


def _by_rules(
    kernels: Sequence[KernelSize], chip: SocSpec, asked: NumberFormat | None, total_us: float
) -> Iterator[Finding]:
    for rule in _RULES:
        changed = list(kernels)
        touched = []
        for index, kernel in enumerate(kernels):
            maker = kernels[kernel.reads[0]] if kernel.reads else None
            better = rule.better(kernel, maker)
            if better is not None:
                changed[index] = better
                touched.append(kernel)
        if touched:
            gain = total_us - estimate_kernels(changed, chip, asked).total_us
            nodes = tuple(dict.fromkeys(name for kernel in touched for name in kernel.nodes[:1]))
            yield Finding(rule=rule.name, nodes=nodes, what=rule.what, change=rule.change, gain_us=gain)


def _gone(kernel: KernelSize) -> KernelSize:
    """As if it ran as a part of the kernel before it."""
    return dataclasses.replace(kernel, kind="reshape", read=0, written=0, weights=0)


def _becomes(kind: str, *kinds: str) -> _Change:
    """Kernels of some kinds as if they were of another."""
    return lambda kernel, maker: dataclasses.replace(kernel, kind=kind) if kernel.kind in kinds else None


def _goes(*kinds: str) -> _Change:
    """Kernels of some kinds as if they ran as parts of those before them."""
    return lambda kernel, maker: _gone(kernel) if kernel.kind in kinds else None


def _padded(kernel: KernelSize, maker: KernelSize | None) -> KernelSize | None:
    if kernel.kind not in ("conv", "dilated", "conv3d") or kernel.channel_padding < _WASTE:
        return None
    return dataclasses.replace(kernel, channel_padding=1.0)


def _activation(kernel: KernelSize, maker: KernelSize | None) -> KernelSize | None:
    after = maker is not None and maker.kind in _CONVOLUTIONS
    return _gone(kernel) if kernel.kind in ("unary", "silu") and after else None


def _prelu(kernel: KernelSize, maker: KernelSize | None) -> KernelSize | None:
    if kernel.sloped:
        return dataclasses.replace(kernel, sloped=0)
    return _gone(kernel) if kernel.kind == "prelu" and maker is not None else None


_RULES = (
    _Rule(
        "div",
        _becomes("multiply", "divide"),
        "divisions of two tensors, which the HVX computes step by step",
        "multiply by the reciprocal",
    ),
    _Rule(
        "prelu",
        _prelu,
        "PReLU, whose slopes the HVX has to multiply with the results of a convolution",
        "use ReLU, which is folded into the convolution",
    ),
    _Rule(
        "channels",
        _padded,
        "channels that leave blocks of 32 partly empty, which are computed all the same",
        "make input and output channels multiples of 32",
    ),
    _Rule(
        "activation",
        _activation,
        "activations that cannot be folded into the convolution before them",
        "use ReLU or ReLU6, which can",
    ),
    _Rule(
        "layout",
        _goes("transpose", "permute"),
        "transposes, which only move data",
        "keep one layout from end to end, channels last",
    ),
    _Rule(
        "input",
        _goes("image_norm"),
        "the normalisation of an input image, channel by channel",
        "fold mean and scale into the first convolution, or give normalised images",
    ),
    _Rule(
        "batchnorm",
        _goes("batchnorm"),
        "BatchNorm that stands alone",
        "put the convolution right before it, so that it is folded into the weights",
    ),
    _Rule(
        "matmul",
        _becomes("conv", "fully_connected"),
        "products with constant matrices",
        "write them as 1x1 convolutions, which the HMX computes faster",
    ),
)


def _narrower(
    kernels: Sequence[KernelSize], chip: SocSpec, asked: NumberFormat | None, total_us: float
) -> Iterator[Finding]:
    """What the network would gain in 8 bits and, where it is float, in 16."""
    used = {asked} if asked is not None else {kernel.precision for kernel in kernels if kernel.precision}
    for wide, word in ((NumberFormat.FLOAT, "half precision"), (NumberFormat.W8A16, "16-bit activations")):
        if wide in used:
            plain = [dataclasses.replace(kernel, precision=None) for kernel in kernels]
            gain = total_us - estimate_kernels(plain, chip, NumberFormat.W8A8).total_us
            yield Finding(
                rule="precision",
                nodes=(),
                what=f"{word} where 8 bits may do",
                change="quantize activations to 8 bits and check the accuracy; go back to 16 where it needs them",
                gain_us=gain,
            )
            return


def _spills(
    kernels: Sequence[KernelSize], chip: SocSpec, asked: NumberFormat | None, total_us: float
) -> Iterator[Finding]:
    """What the network would gain if VTCM had room for everything, and the kernels that spill."""
    now = estimate_kernels(kernels, chip, asked)
    roomy = dataclasses.replace(chip, vtcm_mb=chip.vtcm_mb * 16)
    if estimate_kernels(kernels, roomy, asked).ddr_written_bytes < now.ddr_written_bytes:
        # The rates are those of the same chip, whatever it is called.
        gain = total_us - estimate_kernels(kernels, roomy, asked).total_us
        large = sorted(kernels, key=lambda kernel: -(kernel.read + kernel.written))[:3]
        yield Finding(
            rule="vtcm",
            nodes=tuple(kernel.nodes[0] for kernel in large if kernel.nodes),
            what=f"tensors that do not fit into {chip.vtcm_mb} MB of VTCM and go to DDR and back",
            change="lower the resolution or the channels there, or use fewer bits",
            gain_us=gain,
        )


def _subtractions(
    program: QnnProgram, chip: SocSpec, asked: NumberFormat | None, total_us: float
) -> Iterator[Finding]:
    """Differences of two tensors, priced as the network that ``sub_to_conv`` really makes of it."""
    written = sub_to_conv(program)
    if written is program:
        return
    before = {node.name: node.op for node in program.nodes}
    after = estimate_kernels(sizes_of(program_for(written, chip)), chip, asked)
    yield Finding(
        rule="sub",
        nodes=tuple(node.name for node in written.nodes if before.get(node.name, node.op) != node.op),
        what="subtractions of two tensors, which the HVX computes slowly",
        change="merge both branches, and let a 1x1 convolution with weights of 1 and -1 subtract"
        " (openhtp.advising.sub_to_conv does it)",
        gain_us=total_us - after.total_us,
    )


def _asymmetric(program: HtpProgram) -> Iterator[Finding]:
    """Weights that are not symmetric: less accurate, and short convolutions may not use the HMX for them."""
    asymmetric = []
    for node in program.nodes:
        if op_of(node).weights is None or len(node.inputs) < 2 or node.inputs[1] is None:
            continue
        spec = program.tensors[node.inputs[1]]
        if spec.dtype.is_fixed_point and not _symmetric(spec.quant, spec.dtype.bits, signed=spec.dtype.signed):
            asymmetric.append(node.name)
    if asymmetric:
        yield Finding(
            rule="weights",
            nodes=tuple(asymmetric),
            what="weights with an asymmetric encoding",
            change="quantize weights symmetrically (offset 0), activations asymmetrically",
            gain_us=0.0,
        )


def _symmetric(quant: object, bits: int, *, signed: bool) -> bool:
    middle = 0 if signed else -(1 << (bits - 1))
    if isinstance(quant, ScaleOffset):
        return quant.offset == middle
    if isinstance(quant, AxisScaleOffset):
        return all(offset == middle for offset in quant.offsets)
    return True
