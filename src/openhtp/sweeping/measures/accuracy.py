"""A network quantized, run on the emulated HTP and compared with the float one; and its modelled time."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

from openhtp import zoo
from openhtp.compiler.driver import program_for
from openhtp.core.errors import InvalidArgument, QnnError
from openhtp.cost import NumberFormat, Setting, price_many, sizes_of
from openhtp.estimation import ZOO, compiled, zoo_model
from openhtp.frontend.calibration import read_samples
from openhtp.frontend.probing import with_fixed_inputs
from openhtp.frontend.quantize import quantize_model
from openhtp.hw.catalog import find_soc
from openhtp.session.accuracy import OutputReport, compare_outputs
from openhtp.sweeping.measures import Measure, Measured, values_of
from openhtp.sweeping.measures.estimate import DIMS, dims_of, numbers_of
from openhtp.sweeping.study import Objective, Scalar, Study, StudyFiles, Values

LAYERS = "layers."
_TYPES = {NumberFormat.W8A8: ("u8", "u8"), NumberFormat.W8A16: ("u16", "u8")}
_HIGHEST_DB = 200.0
"""Stands for an exact result: JSON has no infinity."""
_SAMPLES = 4


def _files(study: Study) -> list[str]:
    files = [str(name) for name in values_of(study, "model") if not str(name).startswith(ZOO)]
    for name in map(str, values_of(study, "calibration")):
        folder = Path(study.folder, name)
        files += [
            str(Path(name, path.name)) for path in sorted(folder.iterdir()) if path.suffix in (".npz", ".npy")
        ]
    return files


class Accuracies:
    """Quantizes and compares points; float models are kept."""

    def __init__(self, study: Study, files: StudyFiles) -> None:
        self._files = files
        self._models: dict[tuple[Scalar, ...], bytes] = {}
        self._shaping = [axis.name for axis in study.axes if axis.name.startswith(DIMS)]

    def run(self, points: Sequence[Values]) -> list[Measured]:
        """One point after the other."""
        return [self._measured(values) for values in points]

    def _measured(self, values: Values) -> Measured:
        try:
            return self._compared(values)
        except (QnnError, OSError) as error:
            return error

    def _compared(self, values: Values) -> Measured:
        model = self._model(values)
        samples = self._samples(values, model)
        activation, weight = _types(values)
        quantized = quantize_model(
            model,
            samples,
            activation=activation,
            weight=weight,
            per_channel=bool(values.get("per_channel")),
            method=str(values.get("method") or "minmax"),
            layers={
                name.removeprefix(LAYERS): str(v) for name, v in values.items() if name.startswith(LAYERS) and v
            },
        )
        soc = find_soc(str(values.get("soc") or "SM8650"))
        reports = compare_outputs(model, quantized.model, samples, soc=soc.name)
        kernels = sizes_of(program_for(compiled(quantized.model), soc))
        priced = numbers_of(price_many(kernels, [Setting(soc=soc)])[0])
        return priced if isinstance(priced, Exception) else {**_worst(reports), **priced}

    def _model(self, values: Values) -> bytes:
        key = (values["model"], *(values[name] for name in self._shaping))
        if key not in self._models:
            name = str(values["model"])
            source = zoo_model(name) if name.startswith(ZOO) else self._files.path(name)
            self._models[key] = with_fixed_inputs(source, dims_of(values))
        return self._models[key]

    def _samples(self, values: Values, model: bytes) -> Sequence[zoo.feeds.Feeds]:
        folder = values.get("calibration")
        if folder is not None:
            return read_samples(self._files.path(str(folder)), model)
        return zoo.random_feeds(model, int(values.get("samples") or _SAMPLES), seed=int(values.get("seed") or 0))


def _types(values: Values) -> tuple[str, str]:
    """Types of activations and weights, by a precision or by themselves."""
    activation, weight = "u8", "u8"
    if values.get("precision") is not None:
        precision = NumberFormat.parse(str(values["precision"]))
        if precision not in _TYPES:
            raise InvalidArgument(f"precision {precision.value!r} is not quantized; expected w8a8 or w8a16")
        activation, weight = _TYPES[precision]
    return str(values.get("activation") or activation), str(values.get("weight") or weight)


def _worst(reports: Sequence[OutputReport]) -> dict[str, Scalar]:
    """The worst output on the HTP."""
    sqnr = min(report.htp.sqnr_db for report in reports)
    return {
        "sqnr_db": round(max(-_HIGHEST_DB, min(sqnr, _HIGHEST_DB)), 6) if not math.isnan(sqnr) else -_HIGHEST_DB,
        "cosine": round(min(report.htp.cosine for report in reports), 9),
        "max_error": float(f"{max(report.htp.max_error for report in reports):.9g}"),
    }


_OPTIONS = ("activation", "weight", "per_channel", "method", "calibration", "samples", "seed")
MEASURE = Measure(
    axes=("model", "soc", "precision", *_OPTIONS),
    families=(DIMS, LAYERS),
    needs=("model",),
    numbers=("sqnr_db", "cosine", "max_error", "latency_us", "low_us", "high_us", "energy_class", "extrapolated"),
    objectives=(Objective("sqnr_db", largest=True), Objective("latency_us")),
    files=_files,
    make=Accuracies,
)
