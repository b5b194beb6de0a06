"""Modelled time of a network on a SoC: compiled once per network, priced in batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from openhtp.core.errors import InvalidArgument, QnnError
from openhtp.cost import Kernel, Precision, Priced, Setting, kernels_of, price_many
from openhtp.estimation import ZOO, compiled
from openhtp.hw.catalog import find_soc
from openhtp.hw.soc import SocSpec
from openhtp.sweep.files import Files
from openhtp.sweep.measures._kind import Measure, Measured, values_of
from openhtp.sweep.study import Objective, Scalar, Study, Values

DIMS = "dims."
_OPTIONS = ("vtcm_mb", "hvx_threads")


def _files(study: Study) -> list[str]:
    return [str(name) for name in values_of(study, "model") if not str(name).startswith(ZOO)]


def place_of(model: str, files: Files) -> str:
    """What ``openhtp.estimate`` takes for it."""
    return model if model.startswith(ZOO) else str(files.path(model))


def dims_of(values: Values) -> dict[str, int]:
    """Sizes of open dimensions that a point gives."""
    return {name.removeprefix(DIMS): int(size) for name, size in values.items() if name.startswith(DIMS) and size}


class Estimates:
    """Prices points; networks that were compiled are kept."""

    def __init__(self, study: Study, files: Files) -> None:
        self._files = files
        self._socs: dict[str, SocSpec] = {}
        self._kernels: dict[tuple[Scalar, ...], Sequence[Kernel] | QnnError | OSError] = {}
        # Dimensions are the only axes beside the model that change what is compiled.
        self._shaping = [axis.name for axis in study.axes if axis.name.startswith(DIMS)]

    def run(self, points: Sequence[Values]) -> list[Measured]:
        """Price points, all of one network together."""
        found: list[Measured | None] = [None] * len(points)
        groups: dict[tuple[Scalar, ...], list[int]] = {}
        for number, values in enumerate(points):
            groups.setdefault((values["model"], *(values[name] for name in self._shaping)), []).append(number)
        for key, numbers in groups.items():
            kernels = self._compiled(key, points[numbers[0]])
            settings: dict[int, Setting] = {}
            for number in numbers:
                try:
                    settings[number] = self._setting(points[number])
                except QnnError as error:
                    found[number] = error
            if isinstance(kernels, Exception):
                found = [kernels if number in settings else each for number, each in enumerate(found)]
                continue
            for number, priced in zip(settings, price_many(kernels, list(settings.values())), strict=True):
                found[number] = numbers_of(priced)
        return [each for each in found if each is not None]

    def _compiled(self, key: tuple[Scalar, ...], values: Values) -> Sequence[Kernel] | QnnError | OSError:
        if key not in self._kernels:
            try:
                program = compiled(place_of(str(values["model"]), self._files), dims_of(values) or None)
                self._kernels[key] = kernels_of(program)
            except (QnnError, OSError) as error:
                self._kernels[key] = error
        return self._kernels[key]

    def _setting(self, values: Values) -> Setting:
        options: dict[str, Any] = {}
        for name in _OPTIONS:
            value = values.get(name)
            if value is not None and (isinstance(value, (str, bool)) or value != int(value)):
                raise InvalidArgument(f"{name} is {value!r}; expected a whole number")
            options[name] = None if value is None else int(value)
        bandwidth = values.get("ddr_gbs")
        if isinstance(bandwidth, (str, bool)):
            raise InvalidArgument(f"ddr_gbs is {bandwidth!r}; expected a number")
        precision = values.get("precision")
        chip = str(values["soc"])
        if chip not in self._socs:
            self._socs[chip] = find_soc(chip)
        return Setting(
            soc=self._socs[chip],
            precision=None if precision is None else Precision.parse(str(precision)),
            ddr_gbs=bandwidth,
            **options,
        )


def numbers_of(priced: Priced | QnnError) -> Measured:
    """What a study gets of a price."""
    if isinstance(priced, QnnError):
        return priced
    return {
        "latency_us": round(priced.total_us, 6),
        "low_us": round(priced.low_us, 6),
        "high_us": round(priced.high_us, 6),
        "energy_class": priced.energy_class,
        "extrapolated": priced.extrapolated,
    }


MEASURE = Measure(
    axes=("model", "soc", "precision", *_OPTIONS, "ddr_gbs"),
    families=(DIMS,),
    needs=("model", "soc"),
    numbers=("latency_us", "low_us", "high_us", "energy_class", "extrapolated"),
    objectives=(Objective("latency_us"), Objective("energy_class")),
    files=_files,
    make=Estimates,
    chunk=256,
)
