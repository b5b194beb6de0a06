"""How far a quantized model is from the float one: on ONNX Runtime's CPU, and on the emulated HTP."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from openhtp.config import Source
from openhtp.core.errors import BadModel
from openhtp.engine.onnxruntime import onnxruntime
from openhtp.frontend.branches import settled
from openhtp.frontend.probing import ValueProbe, find_probes, with_outputs
from openhtp.session.inference import InferenceSession
from openhtp.session.range_check import float_values

Array = npt.NDArray[Any]
# Closer results count as exact: neither a half nor a 16-bit number holds more digits.
_EXACT_DB = 90.0
Feeds = Mapping[str, Array]


@dataclass(frozen=True, slots=True)
class Closeness:
    """Signal to noise in decibels, cosine of the angle, largest absolute error."""

    sqnr_db: float
    cosine: float
    max_error: float


@dataclass(frozen=True, slots=True)
class OutputReport:
    """One output: the quantized model on the CPU and on the HTP, each against the float model."""

    name: str
    cpu: Closeness
    htp: Closeness


@dataclass(frozen=True, slots=True)
class NodeReport:
    """One node: how close its output is, and how much was lost in it (decibels below its worst input)."""

    node: str
    op_type: str
    tensor: str
    cpu: Closeness
    htp: Closeness
    lost_db: float


def closeness(exact: Array, other: Array) -> Closeness:
    """Compare two arrays; identical ones have infinite SQNR.

    Infinities and NaNs at the same places are equal; one that only one of the arrays has is infinitely far away.
    """
    a, b = exact.astype(np.float64).reshape(-1), other.astype(np.float64).reshape(-1)
    usable = np.isfinite(a) & np.isfinite(b)
    if not np.array_equal(a[~usable], b[~usable], equal_nan=True):
        return Closeness(-math.inf, 0.0, math.inf)
    a, b = a[usable], b[usable]
    # Squares of scaled numbers neither overflow nor all become 0.
    scale = float(max(np.abs(a).max(initial=0.0), np.abs(b).max(initial=0.0))) or 1.0
    a, b = a / scale, b / scale
    signal, noise, other_signal = float(a @ a), float((a - b) @ (a - b)), float(b @ b)
    sqnr = math.inf if noise == 0 else -math.inf if signal == 0 else 10 * (math.log10(signal) - math.log10(noise))
    norms = math.sqrt(signal) * math.sqrt(other_signal)
    cosine = float(a @ b) / norms if norms else float(signal == other_signal)
    return Closeness(sqnr, cosine, scale * float(np.abs(a - b).max(initial=0.0)))


def compare_outputs(
    float_model: bytes,
    quantized: bytes,
    samples: Sequence[Feeds],
    *,
    soc: str | None = None,
    backend_config: Source | None = None,
    progress: Callable[[int], None] | None = None,
) -> list[OutputReport]:
    """Run the samples on all three and report per output, over all samples together."""
    exact, cpu = _run_cpu(settled(float_model, samples), samples), _run_cpu(quantized, samples)
    htp = _run_htp(quantized, samples, soc, backend_config, progress)
    return [
        OutputReport(name, closeness(exact[name], cpu[name]), closeness(exact[name], htp[name])) for name in exact
    ]


def trace_nodes(
    prepared: bytes,
    quantized: bytes,
    samples: Sequence[Feeds],
    *,
    soc: str | None = None,
    backend_config: Source | None = None,
    in_parts: bool = False,
) -> list[NodeReport]:
    """Compare the output of every node, in running order. ``prepared`` is the float model that was quantized.

    A float model that is given twice is compared with itself in half precision. ``in_parts`` leaves nodes to the
    CPU that the HTP does not take, or no longer takes once values inside of a pattern are looked at.
    """
    floats_only = set(float_values(prepared))
    probes = [probe for probe in find_probes(prepared, quantized) if probe.float_name in floats_only]
    if not probes:
        raise BadModel("the quantized model has no values in common with the float model")
    floats = with_outputs(prepared, [probe.float_name for probe in probes])
    fixed = with_outputs(quantized, [probe.quantized_name for probe in probes])
    exact = _run_cpu(floats, samples)
    cpu = _run_cpu(fixed, samples)
    htp = _run_htp(fixed, samples, soc, backend_config, in_parts=in_parts)
    reports: dict[str, NodeReport] = {}
    for probe in probes:
        wanted = exact[probe.float_name]
        on_htp = closeness(wanted, htp[probe.quantized_name])
        reports[probe.float_name] = NodeReport(
            probe.node,
            probe.op_type,
            probe.float_name,
            closeness(wanted, cpu[probe.quantized_name]),
            on_htp,
            _lost(probe, on_htp, reports),
        )
    return list(reports.values())


def first_diverging(reports: Sequence[NodeReport], threshold_db: float) -> NodeReport | None:
    """The first node in running order whose output on the HTP is below the threshold."""
    return next((report for report in reports if report.htp.sqnr_db < threshold_db), None)


def _lost(probe: ValueProbe, on_htp: Closeness, before: Mapping[str, NodeReport]) -> float:
    known = [min(before[name].htp.sqnr_db, _EXACT_DB) for name in probe.inputs if name in before]
    # Two infinities cancel: what was lost before this node is not lost again.
    return max(0.0, min(known) - on_htp.sqnr_db) if known and min(known) > -math.inf else 0.0


def _run_cpu(model: bytes, samples: Sequence[Feeds]) -> dict[str, Array]:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    except Exception as error:
        raise BadModel(f"onnxruntime cannot load the model: {error}") from error
    names = [output.name for output in session.get_outputs()]
    runs = [session.run(names, dict(feeds)) for feeds in samples]
    return {name: np.stack([run[index] for run in runs]) for index, name in enumerate(names)}


def _run_htp(
    model: bytes,
    samples: Sequence[Feeds],
    soc: str | None,
    backend_config: Source | None,
    progress: Callable[[int], None] | None = None,
    *,
    in_parts: bool = False,
) -> dict[str, Array]:
    options = onnxruntime.SessionOptions()
    if not in_parts:
        options.add_session_config_entry("session.disable_cpu_ep_fallback", "1")
    fp16 = [("QNNExecutionProvider", {"enable_htp_fp16_precision": "1"})]
    with InferenceSession(
        model, options, fp16, soc=soc, transport="inprocess", backend_config=backend_config
    ) as session:
        names = [output.name for output in session.get_outputs()]
        runs = []
        for index, feeds in enumerate(samples):
            if progress is not None:
                progress(index)
            runs.append(session.run(names, feeds))
    return {name: np.stack([run[index] for run in runs]) for index, name in enumerate(names)}
