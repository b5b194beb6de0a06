"""Quantization for the HTP, by onnxruntime's own quantizer with its QNN pre-processing and settings.

Nothing is rewritten here: this module feeds that quantizer, keeps it quiet, and leaves no file behind.
"""

from __future__ import annotations

import difflib
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy.typing as npt
from onnxruntime.quantization import CalibrationDataReader, CalibrationMethod, QuantType, quantize
from onnxruntime.quantization.execution_providers.qnn import get_qnn_qdq_config, qnn_preprocess_model

from openhtp.core.errors import BadModel, InvalidArgument
from openhtp.frontend.masks import with_finite_masks
from openhtp.frontend.onnx_reader import parse_model
from openhtp.frontend.probing import with_lifted_constants, with_opset

Feeds = Mapping[str, npt.NDArray[Any]]

_TYPES = {
    "u8": QuantType.QUInt8,
    "s8": QuantType.QInt8,
    "u16": QuantType.QUInt16,
    "s16": QuantType.QInt16,
    "s4": QuantType.QInt4,
}
ACTIVATIONS = ("u8", "u16", "s8", "s16")
WEIGHTS = ("u8", "s8", "s16", "s4")
_METHODS = {
    "minmax": CalibrationMethod.MinMax,
    "entropy": CalibrationMethod.Entropy,
    "percentile": CalibrationMethod.Percentile,
}
METHODS = tuple(_METHODS)
# The first opset in which DequantizeLinear has an axis.
_PER_CHANNEL_OPSET = 13


class _Reader(CalibrationDataReader):  # type: ignore[misc]
    """Hands out the calibration samples one by one, and says how far it is."""

    def __init__(self, samples: Sequence[Feeds], progress: Callable[[int], None] | None) -> None:
        self._samples = samples
        self._progress = progress
        self._next = 0

    def get_next(self) -> dict[str, Any] | None:
        if self._progress is not None:
            self._progress(self._next)
        if self._next >= len(self._samples):
            return None
        self._next += 1
        return dict(self._samples[self._next - 1])

    def rewind(self) -> None:
        self._next = 0

    def __len__(self) -> int:
        return len(self._samples)


@dataclass(frozen=True, slots=True)
class Quantized:
    """The float model as the quantizer saw it (some operators merged), and the QDQ model made from it.

    ``masks`` counts the constants that hid positions from attention by a number too low to be quantized.
    """

    prepared: bytes
    model: bytes
    masks: int = 0


def quantize_model(
    model: bytes | Path,
    samples: Sequence[Feeds],
    *,
    activation: str = "u8",
    weight: str = "u8",
    per_channel: bool = False,
    method: str = "minmax",
    layers: Mapping[str, str] | None = None,
    progress: Callable[[int], None] | None = None,
) -> Quantized:
    """The QDQ form of a float model, with ranges measured on ``samples``.

    ``layers`` gives nodes, by name, another type of activations than the rest; what lies between two types is
    converted. ``progress(n)`` is called when sample ``n`` is about to run. Raises InvalidArgument for a bad choice
    and BadModel when the quantizer cannot take the model.
    """
    for what, given, known in (
        ("activation", activation, ACTIVATIONS),
        ("weight", weight, WEIGHTS),
        ("method", method, METHODS),
        *((f"activation of layer {name!r}", given, ACTIVATIONS) for name, given in (layers or {}).items()),
    ):
        if given not in known:
            raise InvalidArgument(f"{what} {given!r} is unknown; expected one of {', '.join(known)}")
    if not samples:
        raise InvalidArgument("no calibration samples were given; expected at least one")
    with tempfile.TemporaryDirectory(prefix="openhtp-quantize-") as folder, _quiet():
        source, masks = model if isinstance(model, Path) else Path(folder, "model.onnx"), 0
        if isinstance(model, bytes):
            lifted, masks = with_finite_masks(with_lifted_constants(model))
            source.write_bytes(with_opset(lifted, _PER_CHANNEL_OPSET) if per_channel else lifted)
        try:
            settings = _Settings(activation, weight, per_channel, method, layers or {})
            made = _quantize(source, Path(folder), samples, settings, progress)
            return replace(made, masks=masks)
        except (RuntimeError, ValueError, TypeError, KeyError) as error:
            raise BadModel(f"onnxruntime's quantizer refuses the model: {error}") from error


@dataclass(frozen=True, slots=True)
class _Settings:
    activation: str
    weight: str
    per_channel: bool
    method: str
    layers: Mapping[str, str]


def _quantize(
    source: Path,
    folder: Path,
    samples: Sequence[Feeds],
    settings: _Settings,
    progress: Callable[[int], None] | None,
) -> Quantized:
    prepared = folder / "prepared.onnx"
    if not qnn_preprocess_model(str(source), str(prepared)):
        prepared = source
    config = get_qnn_qdq_config(
        str(prepared),
        _Reader(samples, progress),
        calibrate_method=_METHODS[settings.method],
        activation_type=_TYPES[settings.activation],
        weight_type=_TYPES[settings.weight],
        per_channel=settings.per_channel,
        init_overrides=_overrides(prepared, settings),
    )
    result = folder / "quantized.onnx"
    quantize(str(prepared), str(result), config)
    return Quantized(prepared.read_bytes(), result.read_bytes())


def _overrides(prepared: Path, settings: _Settings) -> dict[str, list[dict[str, Any]]] | None:
    """The results of layers that are to have a type of their own, as the quantizer wants them named."""
    differing = {name: given for name, given in settings.layers.items() if given != settings.activation}
    if not differing:
        return None
    outputs = {node.name: node.output[0] for node in parse_model(prepared.read_bytes()).graph.node}
    for name in differing:
        if name not in outputs:
            near = difflib.get_close_matches(name, outputs, n=3, cutoff=0.3) or list(outputs)[:3]
            raise InvalidArgument(f"the model has no node {name!r}; nearest known: {', '.join(near)}")
    return {outputs[name]: [{"quant_type": _TYPES[given]}] for name, given in differing.items()}


@contextmanager
def _quiet() -> Iterator[None]:
    """The quantizer logs its advice through the root logger, and numpy warns about its divisions.

    Only errors are of interest here.
    """
    root = logging.getLogger()
    before = root.level
    root.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        root.setLevel(before)
