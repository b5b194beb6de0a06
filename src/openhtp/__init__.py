"""OpenHTP: Qualcomm's QNN runtime for the HTP, open.

A user builds or imports a graph, compiles it and queues it asynchronously on an emulated HTP with priorities,
pre-emption, limited memory and a profiler. Start at ``Backend``.
"""

from _ast import ImportFrom as _ImportFrom, PyCF_ONLY_AST as _ONLY_PARSED
from importlib import import_module as _import_module

from openhtp.core.version import VERSION

__version__ = VERSION


def _homes() -> dict[str, str]:
    """The module that defines each public name, as the stub beside this file tells type checkers.

    A module is imported when one of its names is first used, so importing the package alone costs next to nothing.
    """
    try:
        text = __loader__.get_data(f"{__file__}i")
    except (OSError, AttributeError) as error:
        raise ImportError(
            f"openhtp has no {__file__}i, where its public names are: an app that is frozen needs the data files"
            " of the package, too (for PyInstaller: --collect-data openhtp)"
        ) from error
    stub = compile(text, f"{__file__}i", "exec", _ONLY_PARSED)
    imports = (line for line in stub.body if isinstance(line, _ImportFrom))
    return {alias.name: line.module for line in imports for alias in line.names}


_HOME_OF = _homes()
# Packages that are reached as attributes: ``openhtp.onnx.load``.
_PACKAGES = tuple(name for name, home in _HOME_OF.items() if home == __name__)

__all__ = sorted(("__version__", *_HOME_OF.keys() - set(_PACKAGES)))  # noqa: PLE0605


def __getattr__(name: str) -> object:
    home = _HOME_OF.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    if home == __name__:
        return _import_module(f"{__name__}.{name}")
    value = globals()[name] = getattr(_import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME_OF})
