"""The cost model: how long a compiled graph takes on a SoC. Pure functions; every number is modelled.

Knows programs, ops and chips as data: it prices the kernels that the compiler made and placed. Must not know files
of models, devices or clocks. Start at ``running.py``, which reads top to bottom: ``amounts.py`` counts the work of
each kernel, ``rates.py`` has the speed of a SoC for each kind of work, and ``timeline.py`` decides what overlaps.
``model.py`` makes an estimate of that, ``schedule.py`` a timeline to look at, and ``batch.py`` prices one network
in thousands of settings at once. The fitted numbers and their error on networks that were kept out of the fit are
in ``parameters.toml``, written by ``tools/fit_cost_model.py``.
"""

from openhtp.compiler.sizes import KernelSize, sizes_of
from openhtp.core.precision import NumberFormat
from openhtp.cost.batch import Priced, Setting, price_many
from openhtp.cost.model import Bound, Estimate, OpTime, estimate
from openhtp.cost.schedule import schedule_of

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
    "schedule_of",
    "sizes_of",
]
