"""Modelled time of a network on a SoC: compiled once per network and SoC, priced in batches."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from openhtp.compiler.driver import program_for
from openhtp.core.errors import InvalidArgument, QnnError
from openhtp.cost import KernelSize, NumberFormat, Priced, Setting, price_many, sizes_of
from openhtp.estimation import ZOO, compiled
from openhtp.hw.catalog import find_soc
from openhtp.hw.perf_profiles import MODELLED_PERF_PROFILE, find_perf_profile
from openhtp.hw.soc import SocSpec
from openhtp.program.qnn_program import QnnProgram
from openhtp.sweeping.measures import Measure, Measured, values_of
from openhtp.sweeping.study import Objective, Scalar, Study, StudyFiles, Values

DIMS = "dims."
_Network = tuple[Scalar, ...]
"""A model and its sizes, as the axes have them."""
_Kernels = tuple[KernelSize, ...]
_OPTIONS = ("vtcm_mb", "hvx_threads")


def _files(study: Study) -> list[str]:
    return [str(name) for name in values_of(study, "model") if not str(name).startswith(ZOO)]


def place_of(model: str, files: StudyFiles) -> str:
    """The argument of ``openhtp.estimate`` for it."""
    return model if model.startswith(ZOO) else str(files.path(model))


def dims_of(values: Values) -> dict[str, int]:
    """Sizes of open dimensions that a point gives."""
    return {name.removeprefix(DIMS): int(size) for name, size in values.items() if name.startswith(DIMS) and size}


class Estimates:
    """Prices points; networks that were compiled are kept."""

    def __init__(self, study: Study, files: StudyFiles) -> None:
        self._files = files
        self._socs: dict[str, SocSpec] = {}
        self._programs: dict[_Network, QnnProgram | QnnError | OSError] = {}
        self._kernels: dict[tuple[_Network, str], _Kernels | QnnError | OSError] = {}
        self._distinct: dict[_Kernels, _Kernels] = {}
        # Besides the model, dimensions are the only axes that change what is compiled.
        self._shaping = [axis.name for axis in study.axes if axis.name.startswith(DIMS)]

    def run(self, points: Sequence[Values]) -> list[Measured]:
        """Price points, all of the same kernels together."""
        measured: list[Measured | None] = [None] * len(points)
        groups: dict[int, tuple[_Kernels, dict[int, Setting]]] = {}
        for number, values in enumerate(points):
            try:
                setting = self._setting(values)
            except QnnError as error:
                measured[number] = error
                continue
            kernels = self._kernels_for(values, setting.soc)
            if isinstance(kernels, Exception):
                measured[number] = kernels
            else:
                # Known by identity: hashing all kernels for every point costs more than pricing it.
                groups.setdefault(id(kernels), (kernels, {}))[1][number] = setting
        for kernels, settings in groups.values():
            for number, priced in zip(settings, price_many(kernels, list(settings.values())), strict=True):
                measured[number] = numbers_of(priced)
        return [each for each in measured if each is not None]

    def _kernels_for(self, values: Values, soc: SocSpec) -> _Kernels | QnnError | OSError:
        """The kernels of a network on a SoC; the very same object for SoCs that run the same ones."""
        network = (values["model"], *(values[name] for name in self._shaping))
        key = (network, soc.name)
        if key not in self._kernels:
            program = self._compiled(network, values)
            try:
                if isinstance(program, Exception):
                    self._kernels[key] = program
                else:
                    sizes = sizes_of(program_for(program, soc))
                    self._kernels[key] = self._distinct.setdefault(sizes, sizes)
            except QnnError as error:
                self._kernels[key] = error
        return self._kernels[key]

    def _compiled(self, network: _Network, values: Values) -> QnnProgram | QnnError | OSError:
        if network not in self._programs:
            try:
                model_path = place_of(str(values["model"]), self._files)
                self._programs[network] = compiled(model_path, dims_of(values) or None)
            except (QnnError, OSError) as error:
                self._programs[network] = error
        return self._programs[network]

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
            precision=None if precision is None else NumberFormat.parse(str(precision)),
            ddr_gbs=bandwidth,
            clocks=find_perf_profile(values.get("perf_profile") or MODELLED_PERF_PROFILE).clocks(),
            **options,
        )


def numbers_of(priced: Priced | QnnError) -> Measured:
    """The numbers that a study gets from a price."""
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
    axes=("model", "soc", "precision", *_OPTIONS, "ddr_gbs", "perf_profile"),
    families=(DIMS,),
    needs=("model", "soc"),
    numbers=("latency_us", "low_us", "high_us", "energy_class", "extrapolated"),
    objectives=(Objective("latency_us"), Objective("energy_class")),
    files=_files,
    make=Estimates,
    chunk=256,
)
