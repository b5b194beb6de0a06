"""The cost model: how long a compiled graph takes on a SoC. Pure functions; every number is modelled.

Knows programs, ops and chips as data. Must not know files of models, devices, schedules or clocks. Start at
``model.py``, which reads top to bottom; ``kernels.py`` says what the chip runs as one piece, ``demand.py`` how
much of what a piece needs, ``rates.py`` how fast a SoC gives it; ``batch.py`` prices one network in thousands of
settings at once. The fitted numbers and their error on networks
that were kept out of the fit are in ``parameters.toml``, written by ``tools/fit_cost_model.py``.
"""

from openhtp.cost.batch import Priced, Setting, price_many
from openhtp.cost.kernels import Kernel, kernels_of
from openhtp.cost.model import Bound, Estimate, OpTime, estimate
from openhtp.cost.precision import Precision

__all__ = [
    "Bound",
    "Estimate",
    "Kernel",
    "OpTime",
    "Precision",
    "Priced",
    "Setting",
    "estimate",
    "kernels_of",
    "price_many",
]
