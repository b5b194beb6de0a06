"""What a caller feeds and asks for, checked, and turned into what the graph takes and back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from openhtp.core import status as st
from openhtp.core.checks import items_of, shown
from openhtp.core.errors import Aborted, InvalidArgument, WrongState
from openhtp.engine.onnxruntime import onnxruntime
from openhtp.runtime.calls.execution import Outputs
from openhtp.session.loading import Loaded
from openhtp.session.pending import Results
from openhtp.session.values import OrtValue

Array = npt.NDArray[Any]


def checked_call(
    loaded: Loaded, output_names: Sequence[str] | None, feeds: Mapping[str, Any]
) -> tuple[list[str], dict[str, Array]]:
    """The names of the outputs that are asked for, and the inputs as the graph stores them."""
    if loaded.is_closed:
        raise WrongState("the session was closed")
    names = list(loaded.outputs) if output_names is None else items_of(output_names, len(loaded.outputs) + 1)
    if names is None:
        raise InvalidArgument(f"output_names is {shown(output_names)}; expected a list of names, or None")
    if not isinstance(feeds, Mapping):
        raise InvalidArgument(f"input_feed is a {type(feeds).__name__}; expected a mapping of names to arrays")
    names = names or list(loaded.outputs)
    for name in names:
        check_output(loaded, name)
    missing = [name for name in loaded.inputs if name not in feeds]
    if missing:
        raise InvalidArgument(f"required inputs {missing} are missing from the feed {list(feeds)}")
    return names, {name: _fed(name, array, loaded) for name, array in feeds.items()}


def check_output(loaded: Loaded, name: object) -> None:
    """Refuse a name that no output has."""
    if not isinstance(name, str) or name not in loaded.outputs:
        raise InvalidArgument(f"no output is called {shown(name)}; the model has {', '.join(loaded.outputs)}")


def collected(loaded: Loaded, names: Sequence[str], outputs: Outputs) -> Results:
    """The graph's outputs as the model declares them."""
    results = []
    for name in names:
        kind, array = loaded.outputs[name], outputs[name]
        if array.shape != kind.shape or array.dtype != kind.dtype:
            array = array.reshape(kind.shape).astype(kind.dtype)
        results.append(array)
    return results


def _fed(name: str, given: npt.ArrayLike, loaded: Loaded) -> Array:
    kind = loaded.inputs.get(name) if isinstance(name, str) else None
    if kind is None:
        raise InvalidArgument(
            f"no input is called {shown(name)}; the model has {', '.join(loaded.inputs)}",
            st.QNN_GRAPH_ERROR_INVALID_TENSOR,
        )
    try:
        array = np.asarray(given)
    except (TypeError, ValueError, OverflowError, MemoryError, RecursionError) as error:
        raise InvalidArgument(
            f"input {name!r} cannot be made from a {type(given).__name__}: {error}",
            st.QNN_GRAPH_ERROR_INVALID_TENSOR,
        ) from error
    if array.dtype != kind.dtype or array.shape != kind.shape:
        raise InvalidArgument(
            f"input {name!r} is {array.dtype}{list(array.shape)}; expected {kind.dtype}{list(kind.shape)}",
            st.QNN_GRAPH_ERROR_INVALID_TENSOR,
        )
    stored, shape = loaded.stored[name]
    if array.dtype != stored or array.shape != shape:
        return np.ascontiguousarray(array, stored).reshape(shape)
    return array


def arrays(feeds: Any) -> dict[str, Any]:
    """Feeds for ONNX Runtime itself, which does not know our values."""
    if not isinstance(feeds, Mapping):
        raise InvalidArgument(f"input_feed is a {type(feeds).__name__}; expected a mapping of names to arrays")
    return {name: np.asarray(array) if isinstance(array, OrtValue) else array for name, array in feeds.items()}


def check_run_options(given: object) -> None:
    """Refuse what are no run options, and runs that are not wanted any more."""
    if given is None:
        return
    if not isinstance(given, onnxruntime.RunOptions):
        raise InvalidArgument(f"run_options is {shown(given)}; expected onnxruntime.RunOptions, or None")
    if given.terminate:
        raise Aborted("the run was not begun: terminate is set in its run_options")
