"""The threads of numpy's products: small products take many times longer on several, which spin in between."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import sys
import threading
from collections.abc import Callable, Iterator

_UMATH = ("numpy._core._multiarray_umath", "numpy.core._multiarray_umath")
# OpenBLAS has other names for its functions in wheels of numpy, and where integers have 64 bits.
_SPELLINGS = ("scipy_openblas_{}64_", "scipy_openblas_{}", "openblas_{}64_", "openblas_{}")

_lock = threading.Lock()
# The number of threads that was set before, once for each user.
_before: list[int] = []


@contextlib.contextmanager
def one_blas_thread() -> Iterator[None]:
    """Let products of numpy run on the thread that asks for them, in the whole process.

    Where numpy has no OpenBLAS, nothing changes. What was set before comes back with the end of the last user.
    """
    controls = _controls()
    if controls is None:
        yield
        return
    count, choose = controls
    with _lock:
        _before.append(_before[0] if _before else count())
        choose(1)
    try:
        yield
    finally:
        with _lock:
            threads = _before.pop()
            if not _before:
                choose(threads)


def blas_threads() -> int | None:
    """How many there are; None where nobody can tell."""
    controls = _controls()
    return None if controls is None else controls[0]()


@functools.cache
def _controls() -> tuple[Callable[[], int], Callable[[int], object]] | None:
    module = next((sys.modules[name] for name in _UMATH if name in sys.modules), None)
    path = getattr(module, "__file__", None)
    if path is None:
        return None
    # Names are looked up in what numpy's own library is linked with, too.
    library = ctypes.CDLL(path)
    for spelling in _SPELLINGS:
        with contextlib.suppress(AttributeError):
            return library[spelling.format("get_num_threads")], library[spelling.format("set_num_threads")]
    return None
