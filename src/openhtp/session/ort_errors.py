"""Errors of sessions are also those that ONNX Runtime raises there, so that its scripts catch them.

An error keeps its class, message, status and traceback: it is only made an instance of ONNX Runtime's class as
well, where it leaves a session, a binding or a value.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ParamSpec, TypeVar

from google.protobuf.message import DecodeError  # type: ignore[import-untyped]

from openhtp.core.errors import BadModel, DeviceLost, InvalidArgument, QnnError, UnsupportedError
from openhtp.engine.onnxruntime import part

_state = part("capi.onnxruntime_pybind11_state")
_THEIRS = tuple(each for each in vars(_state).values() if isinstance(each, type) and issubclass(each, Exception))
_P = ParamSpec("_P")
_R = TypeVar("_R")


class SessionLost(DeviceLost, _state.EngineError):  # type: ignore[misc, name-defined]
    """A session's device process went away; ONNX Runtime's QNN provider reports that as ENGINE_ERROR.

    Create the session again.
    """


class WrongKind(InvalidArgument, TypeError):
    """An argument is no object of the expected class; ONNX Runtime raises a TypeError."""


class UnusableInput(InvalidArgument, RuntimeError):
    """What was fed cannot be made into a tensor; ONNX Runtime raises a RuntimeError."""


class UnknownProvider(InvalidArgument, RuntimeError):
    """No provider has that name; ONNX Runtime raises a RuntimeError."""


class MissingInput(InvalidArgument, ValueError):
    """A run lacks an input; ONNX Runtime raises a ValueError."""


def as_ort_error(error: QnnError) -> QnnError:
    """The error, from now on also an instance of the class that ONNX Runtime raises in its place."""
    if not isinstance(error, _THEIRS):
        error.__class__ = _joined(type(error), _theirs(error))
    return error


def _theirs(error: QnnError) -> Any:
    cause = error.__cause__
    if isinstance(cause, _THEIRS):
        return type(cause)  # ONNX Runtime itself refused
    if isinstance(cause, FileNotFoundError):
        return _state.NoSuchFile
    if isinstance(error, BadModel) and isinstance(cause, DecodeError):
        return _state.InvalidProtobuf
    if isinstance(error, InvalidArgument):
        return _state.InvalidArgument
    return _state.NotImplemented if isinstance(error, UnsupportedError) else _state.Fail


_classes: dict[tuple[type[QnnError], type[Exception]], type[QnnError]] = {}


def _joined(ours: type[QnnError], theirs: type[Exception]) -> type[QnnError]:
    """The one class of both."""
    if issubclass(ours, DeviceLost):
        return SessionLost
    known = _classes.get((ours, theirs))
    return known if known is not None else _classes.setdefault((ours, theirs), _new_class(ours, theirs))


def _new_class(ours: type[QnnError], theirs: type[Exception]) -> type[QnnError]:
    members = {
        "__module__": ours.__module__,
        "__doc__": ours.__doc__,
        "__reduce__": _reduced,
        "_parts": (ours, theirs),
    }
    return type(ours.__name__, (ours, theirs), members)


def _reduced(error: Any) -> tuple[Any, ...]:
    """Pickled by its two classes, as the class of both is made where it is needed."""
    ours, theirs = error._parts
    return _restored, (ours, theirs, error.message, error.status), {"context": error.context, "where": error.where}


def _restored(ours: type[QnnError], theirs: type[Exception], *arguments: Any) -> QnnError:
    return _joined(ours, theirs)(*arguments)


def with_ort_errors(function: Callable[_P, _R]) -> Callable[_P, _R]:
    """A function whose errors are ONNX Runtime's, too."""

    @functools.wraps(function)
    def guarded(*args: _P.args, **kwargs: _P.kwargs) -> _R:
        try:
            return function(*args, **kwargs)
        except QnnError as error:
            as_ort_error(error)
            raise

    return guarded
