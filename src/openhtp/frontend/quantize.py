"""Quantization for the HTP, by onnxruntime's own quantizer with its QNN pre-processing and settings.

Nothing is rewritten here: this module feeds that quantizer, keeps it quiet, and leaves no file behind.
"""

from __future__ import annotations

import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy.typing as npt

from openhtp.core.checks import items_of, shown
from openhtp.core.errors import BadModel, InvalidArgument
from openhtp.engine.onnxruntime import part
from openhtp.frontend.masks import with_finite_masks
from openhtp.frontend.probing import with_lifted_constants, with_opset

Feeds = Mapping[str, npt.NDArray[Any]]

_ort = part("quantization")
_qnn = part("quantization.execution_providers.qnn")

_TYPES = {
    "u8": _ort.QuantType.QUInt8,
    "s8": _ort.QuantType.QInt8,
    "u16": _ort.QuantType.QUInt16,
    "s16": _ort.QuantType.QInt16,
    "s4": _ort.QuantType.QInt4,
}
ACTIVATIONS = ("u8", "u16", "s8", "s16")
WEIGHTS = ("u8", "s8", "s16", "s4")
_METHODS = {
    "minmax": _ort.CalibrationMethod.MinMax,
    "entropy": _ort.CalibrationMethod.Entropy,
    "percentile": _ort.CalibrationMethod.Percentile,
}
METHODS = tuple(_METHODS)
# The first opset in which DequantizeLinear has an axis.
_PER_CHANNEL_OPSET = 13


class _Reader(_ort.CalibrationDataReader):  # type: ignore[misc, name-defined]
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
    progress: Callable[[int], None] | None = None,
) -> Quantized:
    """The QDQ form of a float model, with ranges measured on ``samples``.

    ``progress(n)`` is called when sample ``n`` is about to run. Raises InvalidArgument for a bad choice and
    BadModel when the quantizer cannot take the model.
    """
    for what, given, known in (
        ("activation", activation, ACTIVATIONS),
        ("weight", weight, WEIGHTS),
        ("method", method, METHODS),
    ):
        if not isinstance(given, str) or given not in known:
            raise InvalidArgument(f"{what} {shown(given)} is unknown; expected one of {', '.join(known)}")
    samples = items_of(samples) or []
    if not samples or not all(isinstance(feeds, Mapping) for feeds in samples):
        raise InvalidArgument("no calibration samples were given; expected a list of mappings from input to array")
    with tempfile.TemporaryDirectory(prefix="openhtp-quantize-") as folder, _quiet():
        source, masks = model if isinstance(model, Path) else Path(folder, "model.onnx"), 0
        if isinstance(model, bytes):
            lifted, masks = with_finite_masks(with_lifted_constants(model))
            source.write_bytes(with_opset(lifted, _PER_CHANNEL_OPSET) if per_channel else lifted)
        try:
            made = _quantize(source, Path(folder), samples, activation, weight, per_channel, method, progress)
            return replace(made, masks=masks)
        except (RuntimeError, ValueError, TypeError, KeyError) as error:
            raise BadModel(f"onnxruntime's quantizer refuses the model: {error}") from error


def _quantize(
    source: Path,
    folder: Path,
    samples: Sequence[Feeds],
    activation: str,
    weight: str,
    per_channel: bool,
    method: str,
    progress: Callable[[int], None] | None,
) -> Quantized:
    prepared = folder / "prepared.onnx"
    if not _qnn.qnn_preprocess_model(str(source), str(prepared)):
        prepared = source
    config = _qnn.get_qnn_qdq_config(
        str(prepared),
        _Reader(samples, progress),
        calibrate_method=_METHODS[method],
        activation_type=_TYPES[activation],
        weight_type=_TYPES[weight],
        per_channel=per_channel,
    )
    result = folder / "quantized.onnx"
    _ort.quantize(str(prepared), str(result), config)
    return Quantized(prepared.read_bytes(), result.read_bytes())


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
