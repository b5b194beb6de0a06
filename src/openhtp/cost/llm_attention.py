"""What a native KV cache and a masked softmax save of a language model's time and energy. All of it is modelled.

Published rates are of flat caches and added masks, so the fitted times are theirs. What they grow by with the
context is shared out among three kinds of work, as the cost model prices them. The cache is read. A flat one is
put into the HMX's tiles in every pass, all of its context, which is taken for a transpose; a native one is there
already. Scores get their mask added and are exponentiated at every place; a masked softmax exponentiates those of
valid places and only looks at the mask of others.
"""

from __future__ import annotations

from dataclasses import dataclass

from openhtp.core.precision import NumberFormat
from openhtp.cost.energy import DDR_PJ_PER_BYTE, MAC_PJ, VTCM_PJ_PER_BYTE
from openhtp.cost.rates import find_rates, fitted_parameters
from openhtp.hw.catalog import find_soc

KV_FORMS = ("flat", "native")
_WORD = NumberFormat.W8A16.value
_MILLION = 1e6


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionForm:
    """How a pass keeps its cache and masks its scores: ``valid`` places of ``context`` take part."""

    kv: str
    masked_softmax: bool
    valid: int
    context: int

    def passed_ms(self, soc: str, growing_ms: float, kv_bytes: int, scores: int) -> float:
        """What is left of the part of a pass's time that grows with the context, which is of a flat cache."""
        parameters = fitted_parameters()
        rates = find_rates(find_soc(soc), parameters).rates
        price = {kind: parameters.vector[kind][_WORD] / rates.vector_speed for kind in ("add", "softmax")}
        tile_price = parameters.vector["transpose"][NumberFormat.W8A8.value] / rates.vector_speed
        reading_us = kv_bytes / rates.ddr_gbs / 1e3
        tiling_us = kv_bytes / _MILLION * tile_price
        scoring_us = scores / _MILLION * (price["add"] + price["softmax"])
        left_us = reading_us + (tiling_us if self.kv == "flat" else 0.0)
        if self.masked_softmax:
            left_us += scores / _MILLION * (price["add"] + price["softmax"] * self.valid / self.context)
        else:
            left_us += scoring_us
        return growing_ms * left_us / (reading_us + tiling_us + scoring_us)

    def token_pj(self, weight_bytes: float, kv_bytes: int, macs: float) -> float:
        """Energy of one token, for ratios alone (``energy.py``): reading weights and cache, products, tiles."""
        tiles = kv_bytes * (2 * VTCM_PJ_PER_BYTE + MAC_PJ[NumberFormat.W8A8]) if self.kv == "flat" else 0.0
        return (weight_bytes + kv_bytes) * DDR_PJ_PER_BYTE + macs * MAC_PJ[NumberFormat.W8A16] + tiles
