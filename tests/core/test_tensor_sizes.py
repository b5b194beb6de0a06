"""Which shapes an execution may give a tensor."""

from __future__ import annotations

import pytest

from openhtp.core.dtype import DType
from openhtp.core.tensor import TensorSpec, batched

FIXED = TensorSpec("fixed", (2, 3), DType.FLOAT_32)
GROWS = TensorSpec("grows", (2, 3), DType.FLOAT_32, dynamic=(False, True))


@pytest.mark.parametrize(
    ("spec", "shape", "accepted"),
    [
        (FIXED, (2, 3), True),
        (FIXED, (2, 2), False),
        (FIXED, (2,), False),
        (GROWS, (2, 3), True),
        (GROWS, (2, 1), True),
        (GROWS, (2, 0), False),
        (GROWS, (2, 4), False),
        (GROWS, (1, 3), False),
        (GROWS, (2, 3, 1), False),
    ],
)
def test_only_dynamic_dimensions_may_be_lower(spec: TensorSpec, shape: tuple[int, ...], accepted: bool) -> None:
    assert spec.accepts(shape) is accepted


def test_every_dimension_says_whether_it_is_free() -> None:
    assert FIXED.free == (False, False)
    assert GROWS.free == (False, True)


def test_pieces_of_a_batch_lie_in_the_first_dimension() -> None:
    assert batched((2, 3), 4) == (8, 3)
    assert batched((), 4) == ()
