"""How much of a program is in VTCM at once: what it has to save when it yields."""

from __future__ import annotations

from openhtp.compiler.sizes import sizes_of
from openhtp.compiler.vtcm.place import placements
from openhtp.core.precision import NumberFormat
from openhtp.program.htp_program import HtpProgram


def vtcm_peak_bytes(program: HtpProgram) -> int:
    """The most bytes in VTCM at once, at most what the graph has of it.

    Where several placements are left to choose from, that of the one with the most: any of them may be chosen.
    """
    sizes = sizes_of(program)
    formats = [size.precision or NumberFormat.FLOAT for size in sizes]
    vtcm_bytes = min(program.soc.vtcm_bytes, program.options.vtcm_bytes or program.soc.vtcm_bytes)
    ways = placements(sizes, formats, vtcm_bytes, program.options.optimization_level)
    return max(placed.peak_bytes for placed in ways)
