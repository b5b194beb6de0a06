"""The cost model: how long a compiled graph takes on a SoC. Pure functions; every number is modelled.

Knows programs, ops and chips as data: it prices the kernels that the compiler made. Must not know files of models,
devices, schedules or clocks. Start at ``model.py``, which reads top to bottom; ``sizes.py`` puts a kernel in
numbers, ``demand.py`` says how much of what it needs, ``rates.py`` how fast a SoC gives it; ``batch.py`` prices
one network in thousands of settings at once. The fitted numbers and their error on networks that were kept out of
the fit are in ``parameters.toml``, written by ``tools/fit_cost_model.py``.
"""

from openhtp.cost.batch import Priced, Setting, price_many
from openhtp.cost.model import Bound, Estimate, OpTime, estimate
from openhtp.cost.number_format import NumberFormat
from openhtp.cost.sizes import KernelSize, sizes_of

__all__ = [
    "Bound",
    "Estimate",
    "KernelSize",
    "NumberFormat",
    "OpTime",
    "Priced",
    "Setting",
    "estimate",
    "price_many",
    "sizes_of",
]
