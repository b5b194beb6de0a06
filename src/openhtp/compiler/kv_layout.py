"""KV caches that lie flat: what has to be put into the layout of the HMX before attention multiplies with it.

The HMX wants the second factor of a product in tiles. A native cache is kept like that by the client; a flat one
is brought into tiles in every execution, all of its context, whatever part of it is valid.
"""

from __future__ import annotations

from openhtp.core.enumerations import DataFormat
from openhtp.core.tensor import TensorKind
from openhtp.ir.def_use import DefUse
from openhtp.ops import op_of
from openhtp.program.htp_program import HtpProgram, Kernel

_JOINS = ("ScatterElements", "Concat")
_CACHE_RANK = 4


def retiled_elements(program: HtpProgram) -> dict[str, int]:
    """Elements of a flat cache that each product puts into tiles, by the kernel's name."""
    if not any(_may_be_cache(program, spec.name) for spec in program.inputs):
        return {}
    uses = program.def_use()
    retiled = {}
    for kernel in program.kernels:
        if kernel.op == "MatMul" and (factor := kernel.nodes[0].inputs[1]) is not None:
            cache = _cache_behind(program, uses, factor)
            if cache is not None and program.tensors[cache].data_format is not DataFormat.HMX_WEIGHT_LAYOUT:
                retiled[kernel.name] = program.tensors[factor].elements
    return retiled


def _may_be_cache(program: HtpProgram, name: str) -> bool:
    spec = program.tensors[name]
    return spec.kind is TensorKind.APP_WRITE and spec.rank == _CACHE_RANK


def _cache_behind(program: HtpProgram, uses: DefUse[Kernel], name: str) -> str | None:
    """The client's tensor into which new tokens were put to make this one."""
    join = uses.maker(_unformed(uses, name))
    if join is None or join.op not in _JOINS:
        return None
    # New tokens may come before or after those of the cache.
    roots = (_unformed(uses, each) for each in join.inputs)
    return next((root for root in roots if _may_be_cache(program, root)), None)


def _unformed(uses: DefUse[Kernel], name: str) -> str:
    """The tensor that this one is another form, or a head, of."""
    while (maker := uses.maker(name)) is not None and maker.op not in _JOINS and op_of(maker.nodes[0]).moves_only:
        name = maker.inputs[0]
    return name
