"""Constants in another order of axes: every element is where it was, and nothing is copied without need."""

from __future__ import annotations

import numpy as np
import pytest

from openhtp.frontend.assembly import in_order


@pytest.mark.parametrize("dtype", ["float32", "uint8", "int16", "float64"])
@pytest.mark.parametrize("shape", [(70, 33, 3, 3), (1000, 100, 1, 1), (7, 3), (513, 257)])
def test_a_copy_has_every_element_where_it_was(shape: tuple[int, ...], dtype: str) -> None:
    whole = np.arange(np.prod(shape)).astype(dtype).reshape(shape)
    turned = whole.transpose((*range(1, len(shape)), 0))
    made = in_order(turned, np.dtype(dtype))
    assert made.flags.c_contiguous
    np.testing.assert_array_equal(made, turned)


def test_what_lies_in_order_is_not_copied_and_types_are_changed() -> None:
    whole = np.arange(100_000, dtype=np.float32).reshape(100, 1000)
    assert in_order(whole, np.dtype(np.float32)) is whole
    assert in_order(whole.T, np.dtype(np.int32)).dtype == np.int32
