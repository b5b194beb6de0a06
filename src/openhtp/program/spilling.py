"""The spill-fill buffer: where tensors go that VTCM has no room for while they wait to be read."""

from __future__ import annotations

from openhtp.program.htp_program import HtpProgram

_PAGE = 4096


def spill_fill_bytes(program: HtpProgram) -> int:
    """How much of what is alive at once does not fit into the graph's VTCM, at most; in whole pages."""
    vtcm = program.options.vtcm_bytes or program.soc.vtcm_bytes
    changes = [0] * (len(program.kernels) + 2)
    for buffer in program.buffers:
        changes[buffer.first] += buffer.nbytes
        changes[buffer.last + 1] -= buffer.nbytes
    alive = peak = 0
    for change in changes:
        alive += change
        peak = max(peak, alive)
    return -(-max(0, peak - vtcm) // _PAGE) * _PAGE
