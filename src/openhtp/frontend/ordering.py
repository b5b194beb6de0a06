"""Constants whose axes were put in another order, laid out anew."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

# Bytes of the last axis that are copied at a time: more, and what is read in between does not stay in the cache.
_STRIP_BYTES = 32
# From this size on the order in which a copy is made decides how long it takes.
_LARGE = 64 * 1024


def in_order(array: npt.NDArray[Any], dtype: np.dtype[Any]) -> npt.NDArray[Any]:
    """The array as it is if it lies in order and has this type, else a copy that does.

    Filters have their channels moved from the first axis to the last: copied in order of the result, every element
    would come from another page.
    """
    if array.nbytes < _LARGE or array.dtype != dtype or array.flags.c_contiguous:
        return np.ascontiguousarray(array, dtype)
    made = np.empty(array.shape, dtype)
    strip = max(1, _STRIP_BYTES // dtype.itemsize)
    for begin in range(0, array.shape[-1], strip):
        made[..., begin : begin + strip] = array[..., begin : begin + strip]
    return made
