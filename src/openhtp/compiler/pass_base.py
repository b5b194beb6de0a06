"""A pass is a function from a program to a program, with conditions that must hold before and after it.

The driver checks both, so that a pass that breaks a program is named at once, before the program runs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from openhtp.core.errors import InternalError, error_context
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
