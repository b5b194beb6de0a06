"""The public surface, found by looking: what ``openhtp.__all__`` names, with every public method and property.

A new class, method or argument is attacked without an edit here.
"""

from __future__ import annotations

import dataclasses
import enum
import inspect
from collections.abc import Callable
from typing import Any, NamedTuple

import openhtp as htp
from openhtp.options import _arguments

# Plain records that are handed out and that nobody makes.
_RECORDS = ("ProfileEvent", "TensorSpec")


class Door(NamedTuple):
    """One thing that can be called. ``owner`` is the class whose objects it needs; None if it needs none."""

    title: str
    owner: type | None
    call: Callable[..., Any]
    parameters: tuple[inspect.Parameter, ...]


def public_classes() -> dict[str, type]:
    """All classes of the surface that are no errors, by name."""
    found = {name: getattr(htp, name) for name in htp.__all__}
    return {
        name: item
        for name, item in found.items()
        if isinstance(item, type) and not issubclass(item, BaseException)
    }


def doors() -> list[Door]:
    """Everything that can be called, in a fixed order."""
    found = []
    for name in htp.__all__:
        item = getattr(htp, name)
        if inspect.isfunction(item):
            found.append(_door(name, None, item, skip=0))
    for name, cls in public_classes().items():
        if _is_made_by_users(cls):
            found.append(_door(name, None, cls, skip=0))
        found += doors_of(name, cls)
    return found


def _is_made_by_users(cls: type) -> bool:
    """Values, and what everything starts from; handles are made by methods."""
    if issubclass(cls, enum.Enum) or cls.__name__ in _RECORDS:
        return False
    return dataclasses.is_dataclass(cls) or cls.__name__ in ("Backend", "InferenceSession")


def doors_of(name: str, cls: type) -> list[Door]:
    """Public methods and properties of one class."""
    found = []
    for attribute in sorted({key for base in cls.__mro__ if _is_ours(base) for key in vars(base)}):
        if attribute.startswith("_"):
            continue
        item = inspect.getattr_static(cls, attribute)
        title = f"{name}.{attribute}"
        if isinstance(item, property) and item.fget is not None:
            found.append(Door(title, cls, item.fget, ()))
        elif isinstance(item, classmethod | staticmethod):
            found.append(_door(title, None, getattr(cls, attribute), skip=0))
        elif inspect.isfunction(item) and not _is_override(cls, attribute):
            found.append(_door(title, cls, item, skip=1))
    if "__repr__" in vars(cls):
        found.append(Door(f"repr({name})", cls, repr, ()))
    return found


def _is_override(cls: type, attribute: str) -> bool:
    """Whether a library calls it, not a user: ``logging.Handler.emit``."""
    return any(attribute in vars(base) for base in cls.__mro__ if not _is_ours(base))


def _is_ours(base: type) -> bool:
    return base.__module__.split(".")[0] == "openhtp"


def _door(title: str, owner: type | None, call: Callable[..., Any], skip: int) -> Door:
    parameters = tuple(inspect.signature(call).parameters.values())[skip:]
    variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    named = tuple(item for item in parameters if item.kind not in variable)
    return Door(title, owner, call, named + tuple(option for item in parameters for option in _options(item)))


def _options(parameter: inspect.Parameter) -> list[inspect.Parameter]:
    """The options that ``**options: Unpack[GraphArguments]`` stands for."""
    word = str(parameter.annotation).removeprefix("Unpack[").removesuffix("]")
    if parameter.kind is not inspect.Parameter.VAR_KEYWORD or not hasattr(_arguments, word):
        return []
    return [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in getattr(_arguments, word).__annotations__.items()
    ]
