"""Products on one thread, and as many as before afterwards."""

from __future__ import annotations

import numpy as np
import pytest

from openhtp.core.machine import blas_threads, one_blas_thread


def test_one_thread_within_and_as_before_behind() -> None:
    matrix = np.eye(300, dtype=np.float32)
    before = blas_threads()
    if before is None:
        pytest.skip("numpy has no OpenBLAS here")
    with one_blas_thread():
        assert blas_threads() == 1
        with pytest.raises(ZeroDivisionError), one_blas_thread():
            raise ZeroDivisionError
        assert blas_threads() == 1
        np.testing.assert_array_equal(matrix @ matrix, matrix)
    assert blas_threads() == before
