"""Warnings, once each, about results that differ from the chip's, or from those that encodings ask for."""

from __future__ import annotations

import logging

from openhtp.compiler.chip_rules import float_nodes, short_products
from openhtp.compiler.clamp_folding import lossy_folds
from openhtp.core.precision import FloatPrecision
from openhtp.core.telling import warn_once
from openhtp.hw.soc import SocSpec
from openhtp.program.qnn_program import QnnProgram

log = logging.getLogger(__name__)

# The architectures whose float results differ, say the documents: SM8550's and SM8650's.
_GENERATIONS = (73, 75)
# Chips of those on which this process has prepared float graphs, by architecture.
_float_chips: dict[int, str] = {}


def tell_of_results(program: QnnProgram, soc: SocSpec) -> None:
    """Warn about results that differ from the chip's, or that an option of the graph would save."""
    if any(float_nodes(program)):
        if program.options.precision is FloatPrecision.FLOAT32:
            _tell_of_full_precision(program)
        else:
            _tell_of_generations(soc)
    _tell_of_folds(program)
    _tell_of_short_products(program)


def _tell_of_full_precision(program: QnnProgram) -> None:
    warn_once(
        log,
        ("float32",),
        f"graph {program.name!r} computes floats in 32 bits, which no HTP does: results on a chip have half"
        " precision. It is what precision float32 asks for, and the C library where no chip is named",
    )


def _tell_of_generations(soc: SocSpec) -> None:
    """Warn a program that runs floats on chips of both generations: their results do not differ here."""
    if soc.arch in _GENERATIONS:
        _float_chips.setdefault(soc.arch, soc.name)
    if len(_float_chips) == len(_GENERATIONS):
        warn_once(
            log,
            ("float generations",),
            f"float graphs have the same results here on {' and '.join(_float_chips.values())}, as on the vendor's"
            " x86 library; those of the chips differ slightly, as some of their sums are associated differently."
            " How is not documented",
        )


def _tell_of_folds(program: QnnProgram) -> None:
    for convolution, clamp in lossy_folds(program):
        warn_once(
            log,
            ("lossy fold", program.name),
            f"graph {program.name!r}: {clamp.op} {clamp.name!r} is folded into {convolution.op}"
            f" {convolution.name!r}, whose encoding is lost, and the ends of the encoding after it are its only"
            " bounds; results differ from what the two encodings ask for. To keep them, set"
            " fold_relu_activation_into_conv_off, which costs time",
        )
        return


def _tell_of_short_products(program: QnnProgram) -> None:
    for node in short_products(program):
        warn_once(
            log,
            ("short depth", program.name),
            f"graph {program.name!r}: {node.op} {node.name!r} has few channels and weights that are not symmetric:"
            " its results are exact here, and less accurate on the HMX of a chip, in a way that is not documented."
            " Set short_depth_conv_on_hmx_off, or quantize the weights symmetrically",
        )
        return
