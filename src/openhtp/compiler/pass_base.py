"""A pass is a function from a program to a program, with conditions that must hold before and after it.

The driver checks both, so that a pass that breaks a program is named at once, before the program runs. The
conditions that passes of this package require and ensure are at the end of the file.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from openhtp.core.errors import InternalError, error_context
from openhtp.ir.def_use import needed_nodes, order_problem
from openhtp.program.htp_program import HtpProgram
from openhtp.program.qnn_program import QnnProgram

P = TypeVar("P", QnnProgram, HtpProgram)
Check = Callable[[P], str | None]
"""Returns the problem of a program; None if it has none."""


@dataclass(frozen=True, slots=True)
class Pass(Generic[P]):
    """One pass with its conditions."""

    run: Callable[[P], P]
    requires: tuple[Check[P], ...] = ()
    ensures: tuple[Check[P], ...] = ()

    @property
    def name(self) -> str:
        """Its name in errors."""
        return self.run.__name__


def run_passes(program: P, passes: Sequence[Pass[P]]) -> P:
    """Run passes one after the other. Errors name their pass.

    Raises InternalError if a program violates a condition that a pass requires or ensures.
    """
    for each in passes:
        with error_context(**{"pass": each.name}):
            _demand(program, each.requires, f"pass {each.name!r} requires")
            program = each.run(program)
            _demand(program, each.ensures, f"pass {each.name!r} did not ensure")
    return program


def _demand(program: P, checks: Sequence[Check[P]], whose: str) -> None:
    for check in checks:
        problem = check(program)
        if problem is not None:
            raise InternalError(f"{whose} {check.__name__}: {problem}")


# Conditions. Each check returns the problem, or None.


def nodes_in_order(program: QnnProgram) -> str | None:
    """Every tensor is made once, before it is read; every output is made."""
    return order_problem(program.nodes, program.given_names, program.output_names)


def statics_have_data(program: QnnProgram) -> str | None:
    """Static tensors, and no others, have data."""
    static = {name for name, spec in program.tensors.items() if spec.kind.is_static}
    mismatched = static ^ set(program.statics)
    problem = f"{sorted(mismatched)} are static tensors without data, or have data and are not static"
    return problem if mismatched else None


def nothing_unused(program: QnnProgram) -> str | None:
    """Every node is needed by an output."""
    idle = len(program.nodes) - len(needed_nodes(program.nodes, program.output_names))
    return f"{idle} nodes are needed by no output" if idle else None


def kernels_in_order(program: HtpProgram) -> str | None:
    """Check the order of kernels, and that no other kernel reads tensors that a kernel makes for itself."""
    source = program.source
    return order_problem(program.kernels, source.given_names, source.output_names)


def kernels_of_one_op(program: HtpProgram) -> str | None:
    """No kernels have been joined so far."""
    joined = next((kernel.name for kernel in program.kernels if len(kernel.nodes) != 1), None)
    return None if joined is None else f"kernel {joined!r} has several ops already"


def kernels_are_chains(program: HtpProgram) -> str | None:
    """Every op of a kernel works on the result of the op before it."""
    for kernel in program.kernels:
        for before, node in itertools.pairwise(kernel.nodes):
            if before.outputs[0] not in node.inputs or len(before.outputs) != 1:
                return f"in kernel {kernel.name!r}, {node.name!r} does not go on from {before.name!r}"
    return None


def sources_once(program: HtpProgram) -> str | None:
    """No node of the graph is in two kernels, and kernels have no unknown nodes."""
    sources = [name for kernel in program.kernels for name in kernel.sources]
    unknown = set(sources) - {node.name for node in program.source.nodes}
    if unknown or len(sources) != len(set(sources)):
        return f"kernels stand for unknown nodes {sorted(unknown)}, or for one node twice"
    return None


def units_are_busy(program: HtpProgram) -> str | None:
    """At least one kernel keeps a unit busy, so that the program takes time."""
    return None if any(kernel.units for kernel in program.kernels) else "no kernel keeps any unit busy"


def steps_cover_kernels(program: HtpProgram) -> str | None:
    """Steps follow one another and hold every kernel."""
    ends = [0, *(step.end for step in program.steps)]
    begins = [*(step.begin for step in program.steps), len(program.kernels)]
    return None if ends == begins else f"steps begin at {begins} and end at {ends}"


def buffers_hold_what_is_read(program: HtpProgram) -> str | None:
    """Every tensor that a kernel reads is in a buffer at that time, unless it is constant."""
    alive = {buffer.tensor: buffer for buffer in program.buffers}
    for index, kernel in enumerate(program.kernels):
        for name in kernel.inputs:
            buffer = alive.get(name)
            if name not in program.statics and (buffer is None or not buffer.first <= index <= buffer.last):
                return f"kernel {kernel.name!r} reads {name!r}, which is in no buffer then"
    return None
