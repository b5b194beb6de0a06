"""From a model file to its modelled time on a SoC: ``openhtp.estimate``.

>>> import openhtp
>>> result = openhtp.estimate("zoo:tiny_mlp", soc="SM8650")
>>> result.low_us < result.total_us < result.high_us
True
"""

from __future__ import annotations

import dataclasses
import difflib
import functools
from collections.abc import Mapping, Sequence

from openhtp.compiler.driver import portable_program, program_for
from openhtp.compiler.sizes import batched, sizes_of
from openhtp.core.errors import InvalidArgument
from openhtp.cost import Estimate, NumberFormat, estimate as estimate_program
from openhtp.cost.model import estimate_kernels
from openhtp.cost.running import Tuning
from openhtp.frontend.fixing import Dims, Freeze
from openhtp.frontend.onnx_import import load
from openhtp.frontend.onnx_reader import ModelSource
from openhtp.hw.catalog import find_soc
from openhtp.hw.perf_profiles import MODELLED_PERF_PROFILE, find_perf_profile
from openhtp.hw.soc import SocSpec
from openhtp.ir.graph import Graph
from openhtp.options import GRAPH
from openhtp.program.qnn_program import QnnProgram
from openhtp.runtime.objects.op_packages import PackageSource, registered
from openhtp.zoo import MODELS

ZOO = "zoo:"
"""What a name of our own networks begins with where a file is expected."""


def estimate(
    model: ModelSource | Graph | QnnProgram,
    soc: str | int | SocSpec,
    *,
    precision: NumberFormat | str | None = None,
    dims: Dims | None = None,
    freeze: Freeze | None = None,
    perf_profile: str = MODELLED_PERF_PROFILE,
    op_packages: Sequence[PackageSource] = (),
    **options: object,
) -> Estimate:
    """How long one run of a model takes on a SoC. Nothing is run: every number is modelled.

    Args:
        model: an ONNX file, its bytes or a ``ModelProto``, ``zoo:resnet50`` (see ``openhtp.zoo``), or a graph that
            was built.
        soc: a chip by name (``SM8650``), marketing name or number.
        precision: ``float``, ``w8a8`` or ``w8a16``: what a float model would be quantized to. Left out, the
            model's own types decide.
        dims: sizes of dimensions that the file leaves open, by name.
        freeze: values of inputs that never change, by name.
        perf_profile: whose clocks to assume, as ``balanced``; published times are of ``burst``.
        op_packages: packages of one's own that the model's operators come from.
        options: options of the graph, as ``Context.create_graph`` takes them: ``vtcm_mb=4``, ``hvx_threads=2``.

    Raises:
        InvalidArgument: the SoC, the precision, the perf profile, an option or the zoo's network is unknown.
        UnsupportedOp: the model has an operator that is not supported; the message names it.
        UnsupportedFeature: the SoC does not compute in that precision.
        BadModel: the file cannot be used.
    """
    asked = None if precision is None else NumberFormat.parse(precision)
    chip = soc if isinstance(soc, SocSpec) else find_soc(soc)
    clocks = find_perf_profile(perf_profile).clocks()
    with registered(op_packages):
        program = program_for(with_options(compiled(model, dims, freeze), options), chip)
        return estimate_program(program, asked, clocks)


def with_options(program: QnnProgram, options: Mapping[str, object]) -> QnnProgram:
    """A program with other options of the graph; those that are not named stay."""
    if not options:
        return program
    chosen = GRAPH.read(options)
    names = {GRAPH.option(name).same_as or name for name in options}
    return dataclasses.replace(program, options=program.options.replace(**{name: chosen[name] for name in names}))


def throughput(
    model: ModelSource | Graph | QnnProgram,
    soc: str | int | SocSpec,
    *,
    precision: NumberFormat | str | None = None,
    batch: int = 1,
    threads: int = 1,
    perf_profile: str = MODELLED_PERF_PROFILE,
) -> float:
    """Inferences per second (modelled) while ``threads`` threads keep calling, each with ``batch`` inputs at once.

    While one thread's call is on its way another's is computed; weights are fetched once for a whole batch.
    """
    if batch < 1 or threads < 1:
        raise InvalidArgument(f"batch is {batch} and threads {threads}; expected whole numbers from 1 on")
    asked = None if precision is None else NumberFormat.parse(precision)
    chip = soc if isinstance(soc, SocSpec) else find_soc(soc)
    program = program_for(compiled(model), chip)
    kernels = [batched(kernel, batch) for kernel in sizes_of(program)]
    clocks = find_perf_profile(perf_profile).clocks()
    estimated = estimate_kernels(kernels, chip, asked, clocks=clocks, tuning=Tuning.of(program))
    computing = estimated.total_us - estimated.launch_us
    return 1e6 * batch / max(computing, estimated.total_us / threads)


def compiled(
    model: ModelSource | Graph | QnnProgram, dims: Dims | None = None, freeze: Freeze | None = None
) -> QnnProgram:
    """A model as a portable program, ready to be estimated for any number of SoCs."""
    if isinstance(model, QnnProgram):
        return model
    if isinstance(model, Graph):
        return portable_program(model)
    if isinstance(model, str) and model.startswith(ZOO):
        if dims or freeze:
            raise InvalidArgument(f"{model} has fixed sizes; dims and freeze are for files")
        return _from_zoo(model)
    return portable_program(load(model, dims, freeze))


@functools.lru_cache(maxsize=4)
def _from_zoo(name: str) -> QnnProgram:
    return portable_program(load(zoo_model(name)))


def zoo_model(name: str) -> bytes:
    """The file of ``zoo:resnet50``."""
    network = name.removeprefix(ZOO)
    if network not in MODELS:
        near = difflib.get_close_matches(network, MODELS, n=3, cutoff=0.3) or list(MODELS)
        raise InvalidArgument(f"the zoo has no network {network!r}; nearest known: {', '.join(near)}")
    return MODELS[network]()
