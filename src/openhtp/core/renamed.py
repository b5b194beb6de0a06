"""Packages and names that were renamed answer by their old name for one release."""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable, Mapping
from importlib import import_module
from types import ModuleType
from typing import Any


class RenamedPackage(ModuleType):
    """A package under its old name, which is also the name of a function of ``openhtp``.

    Importing ``openhtp.plan`` binds that name in ``openhtp`` to the module, whatever was there. Programs that call
    ``openhtp.plan(...)`` afterwards still mean the function, so the module passes the call on.
    """

    def __init__(self, name: str, package: ModuleType, function: Callable[..., Any]) -> None:
        super().__init__(name, package.__doc__)
        self.__all__ = list(getattr(package, "__all__", []))
        self.__dict__.update((public, getattr(package, public)) for public in self.__all__)
        self.__package = package
        self.__call = function

    def __getattr__(self, name: str) -> Any:
        """Names that changed before the package did: the new package answers to them as well."""
        return getattr(self.__package, name)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the function of that name."""
        return self.__call(*args, **kwargs)


def answer_by_old_name(old: str, new: str, function: str, modules: Mapping[str, str]) -> None:
    """Let ``import old`` give the public names of package ``new``, with a warning.

    Args:
        old: the old package; its one module calls this while it is imported.
        new: the package that took its place.
        function: where the function of the old name is, as ``module:name``.
        modules: the documented modules of the package, by old name.
    """
    warnings.warn(
        f"the package {old} is {new} now, and {old} is a function; the old name goes with the next release",
        DeprecationWarning,
        stacklevel=3,
    )
    home, name = function.split(":")
    alias = RenamedPackage(old, import_module(new), getattr(import_module(home), name))
    for before, after in modules.items():
        module = sys.modules[f"{old}.{before}"] = import_module(f"{new}.{after}")
        alias.__dict__.setdefault(before, module)
    sys.modules[old] = alias


def renamed_names(module: str, names: Mapping[str, str]) -> Callable[[str], object]:
    """The ``__getattr__`` of a module whose names changed: an old one is answered with the new, and a warning."""

    def attribute(name: str) -> object:
        if name not in names:
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        warnings.warn(f"{module}.{name} is now {module}.{names[name]}", DeprecationWarning, stacklevel=2)
        return getattr(sys.modules[module], names[name])

    return attribute
