"""The compiler's pipeline, in two halves: first the passes for every chip, then those for one chip."""

from __future__ import annotations

from dataclasses import dataclass, field

from openhtp.compiler import pass_base as checks
from openhtp.compiler.kernels import draft_program
from openhtp.compiler.pass_base import Pass, run_passes
from openhtp.compiler.passes.assign_kinds import assign_kinds, assign_units
from openhtp.compiler.passes.find_native_kv import find_native_kv
from openhtp.compiler.passes.fold_constants import drop_unused, fold_constants, join_constants
from openhtp.compiler.passes.fuse_activation import fuse_activation, fuse_advanced, fuse_prelu, fuse_silu
from openhtp.compiler.passes.fuse_masked_softmax import fuse_masked_softmax
from openhtp.compiler.passes.join_rearranging import join_rearranging
from openhtp.compiler.passes.mark_steps import mark_steps
from openhtp.compiler.passes.measure_buffers import measure_buffers
from openhtp.compiler.passes.order_kernels import order_kernels
from openhtp.core.errors import error_context
from openhtp.hw.catalog import find_soc
from openhtp.hw.soc import SocSpec
from openhtp.ir.graph import Graph
from openhtp.options import GRAPH, OptionValues
from openhtp.program.htp_program import HtpProgram
from openhtp.program.qnn_program import QnnProgram, frozen_array

_SOUND = (checks.nodes_in_order, checks.statics_have_data)
_WHOLE = (checks.kernels_in_order, checks.kernels_are_chains, checks.sources_once)
_SINGLE = (checks.kernels_of_one_op,)

_DROP_UNUSED = Pass(drop_unused, requires=_SOUND, ensures=(*_SOUND, checks.nothing_unused))
_FOLD = Pass(fold_constants, requires=_SOUND, ensures=_SOUND)

_FUSED = (
    # Before anything is fused: the kernels still have the structure of the graph.
    Pass(find_native_kv, requires=_SINGLE),
    # The ops of a kernel: nodes that are computed as one op, with one rounding.
    Pass(fuse_activation, requires=(*_WHOLE, *_SINGLE), ensures=_WHOLE),
    Pass(fuse_masked_softmax, requires=_SINGLE, ensures=_WHOLE),
    # The kernels: ops that run as one piece.
    Pass(assign_kinds, requires=_SINGLE),
    Pass(fuse_prelu, ensures=_WHOLE),
)
_JOINED = (
    # Results stay the same: only fewer pieces run.
    Pass(fuse_silu, ensures=_WHOLE),
    Pass(join_rearranging, ensures=_WHOLE),
    Pass(join_constants, ensures=_WHOLE),
    Pass(fuse_advanced, ensures=_WHOLE),
)
_ORDERED = (Pass(order_kernels, requires=_WHOLE, ensures=_WHOLE),)
_DESCRIBED = (
    # Further properties of kernels that a device needs.
    Pass(assign_units, ensures=(checks.units_are_busy,)),
    Pass(mark_steps, requires=(checks.units_are_busy,), ensures=(checks.steps_cover_kernels,)),
    Pass(measure_buffers, requires=_WHOLE, ensures=(checks.buffers_hold_what_is_read,)),
)


@dataclass(frozen=True, slots=True)
class CompileOptions:
    """Options of the graph, and whether constants are folded."""

    graph: OptionValues = field(default_factory=GRAPH.defaults)
    fold: bool = True


def compile_graph(graph: Graph, target: SocSpec | str | int, options: CompileOptions | None = None) -> HtpProgram:
    """Compile a verified graph for a SoC, given itself or by name. Inputs and outputs are never changed."""
    return program_for(portable_program(graph, options), target)


def portable_program(graph: Graph, options: CompileOptions | None = None) -> QnnProgram:
    """A verified graph without unused nodes and without nodes that can be computed now."""
    options = options or CompileOptions()
    program = QnnProgram(graph.name, graph.tensors, graph.statics, graph.nodes, options.graph)
    passes = (_DROP_UNUSED, _FOLD, _DROP_UNUSED) if options.fold else (_DROP_UNUSED,)
    with error_context(graph=graph.name):
        program = run_passes(program, passes)
    statics = {name: frozen_array(data) for name, data in program.statics.items()}
    return QnnProgram(program.name, dict(program.tensors), statics, program.nodes, program.options)


def program_for(program: QnnProgram, target: SocSpec | str | int) -> HtpProgram:
    """A portable program as one SoC runs it: kernels, steps and buffers."""
    soc = target if isinstance(target, SocSpec) else find_soc(target)
    with error_context(graph=program.name, soc=soc.name):
        return run_passes(draft_program(program, soc), _passes(program.options.optimization_level))


def _passes(level: int) -> tuple[Pass[HtpProgram], ...]:
    """The passes of a level of optimization: 1 omits passes that only save time, 3 looks for a better order."""
    return (*_FUSED, *(_JOINED if level > 1 else ()), *(_ORDERED if level > 2 else ()), *_DESCRIBED)
