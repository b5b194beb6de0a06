"""Checks of what a caller chooses for a graph or tensor, each with a message that says what is valid."""

from __future__ import annotations

from collections.abc import Iterable

from openhtp.core import status as st
from openhtp.core.errors import InvalidArgument
from openhtp.core.priority import Priority
from openhtp.core.units import MIB
from openhtp.program.options import GraphOptions, Precision

# The longest that a caller may ask for: a day.
MAX_DEADLINE_US = 24 * 3600 * 1_000_000


def deadline_from(called_ns: int, deadline_us: int) -> int:
    """When an execution should be done that was asked for at ``called_ns``."""
    return called_ns + check_count("deadline_us", deadline_us, MAX_DEADLINE_US) * 1000


def make_options(
    *,
    priority: Priority | str | int,
    vtcm_mb: int | None = None,
    vtcm_bytes: int | None = None,
    hvx_threads: int | None = None,
    precision: str = "float16",
) -> GraphOptions:
    """Check a graph's options; None leaves the choice to the device."""
    if vtcm_mb is not None:
        if vtcm_bytes is not None:
            raise InvalidArgument("give vtcm_mb or vtcm_bytes, not both", st.QNN_GRAPH_ERROR_INVALID_ARGUMENT)
        vtcm_bytes = check_count("vtcm_mb", vtcm_mb, 1024) * MIB
    elif vtcm_bytes is not None:
        vtcm_bytes = check_count("vtcm_bytes", vtcm_bytes, 1024 * MIB)
    if hvx_threads is not None:
        hvx_threads = check_count("hvx_threads", hvx_threads, 64)
    try:
        chosen = Precision(precision)
    except ValueError:
        raise InvalidArgument(
            f"precision {precision!r}; expected float16 or float32", st.QNN_GRAPH_ERROR_INVALID_ARGUMENT
        ) from None
    return GraphOptions(
        priority=Priority.parse(priority), vtcm_bytes=vtcm_bytes, hvx_threads=hvx_threads, precision=chosen
    )


def check_count(what: str, value: object, most: int) -> int:
    """A whole number from 1 to ``most``."""
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= most:
        raise InvalidArgument(
            f"{what} is {value!r}; expected a whole number from 1 to {most}",
            st.QNN_GRAPH_ERROR_INVALID_ARGUMENT,
        )
    return value


def check_name(name: object, what: str) -> str:
    """A non-empty name."""
    if not isinstance(name, str) or not name:
        status = st.QNN_GRAPH_ERROR_INVALID_NAME if what == "graph" else st.QNN_TENSOR_ERROR_INVALID_TENSOR_PARAM
        raise InvalidArgument(f"{what} name {name!r}; expected a non-empty string", status)
    return name


def check_shape(name: str, shape: Iterable[int]) -> tuple[int, ...]:
    """Dimensions as a tuple of whole numbers."""
    try:
        return tuple(int(size) for size in shape)
    except (TypeError, ValueError):
        raise InvalidArgument(
            f"shape of tensor {name!r} is {shape!r}; expected whole numbers",
            st.QNN_TENSOR_ERROR_INVALID_TENSOR_PARAM,
        ) from None


def check_handle(what: str, given: object, kind: type) -> None:
    """None, or a handle of the right kind."""
    if given is not None and not isinstance(given, kind):
        raise InvalidArgument(
            f"{what} is a {type(given).__name__}; expected a {what} handle of this backend or None",
            st.QNN_GRAPH_ERROR_INVALID_ARGUMENT,
        )
