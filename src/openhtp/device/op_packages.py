"""Op packages of users, found by reference: where they may come from, and on whose word.

A device that serves one client imports what that client names: it is that client's process. A named device serves
others, too. It has the packages that it was started with, and imports nothing that a client names.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
from collections.abc import Iterable, Sequence

from openhtp.core import status as st
from openhtp.core.checks import type_in_words
from openhtp.core.errors import InvalidArgument, QnnError, UnsupportedFeature
from openhtp.ops._packages import OpPackage, add_package, find_package
from openhtp.rpc import messages as ms

_MODULE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")
_FAILED = st.QNN_BACKEND_ERROR_OP_PACKAGE_REGISTRATION_FAILED


def load_package(reference: str) -> OpPackage:
    """The package at ``module:attribute``, or the C interface at ``library.so:provider``."""
    if ".so" in reference.rpartition(":")[0] or "/" in reference:
        from openhtp.abi.op_package import open_library  # with all its layouts

        path, _, provider = reference.rpartition(":")
        return open_library(path, provider)
    if not _MODULE.fullmatch(reference):
        raise InvalidArgument(
            f"op package is at {reference!r}; expected module:attribute, or library.so:provider",
            st.QNN_BACKEND_ERROR_INVALID_ARGUMENT,
        )
    name, _, path = reference.partition(":")
    try:
        package: object = importlib.import_module(name)
        for attribute in path.split("."):
            package = getattr(package, attribute)
    except QnnError:
        raise
    except Exception as error:
        raise InvalidArgument(
            f"op package {reference!r} cannot be imported: {type(error).__name__}: {error}",
            st.QNN_BACKEND_ERROR_OP_PACKAGE_NOT_FOUND,
        ) from error
    if not isinstance(package, OpPackage):
        raise InvalidArgument(
            f"{reference!r} is {type_in_words(package)}; expected an openhtp.OpPackage",
            st.QNN_BACKEND_ERROR_OP_PACKAGE_IF_PROVIDER_NOT_FOUND,
        )
    return package


def load_packages(packages: Sequence[str] = (), folders: Sequence[str] = ()) -> None:
    """Load the packages that the user who starts the device names."""
    add_folders(folders)
    for reference in packages:
        add_package(load_package(reference))


def provide_packages(wanted: Iterable[ms.WantedPackage], *, may_load: bool) -> None:
    """Have these packages registered in this process, or say why that cannot be."""
    for each in wanted:
        known = find_package(each.name)
        title = f"op package {each.name!r} {each.version}"
        if known is not None:
            if (known.version, known.reference) != (each.version, each.reference):
                raise UnsupportedFeature(
                    f"{title} is not what the device has under that name: {known.version}, from"
                    f" {known.reference or 'its own process'!r}; use another device, or the same package",
                    st.QNN_BACKEND_ERROR_OP_PACKAGE_DUPLICATE,
                )
        elif not may_load:
            raise UnsupportedFeature(
                f"{title} is not on this device, which serves several clients and loads no code that one of them"
                f" names; start it with: openhtp device start --op-package {each.reference or 'module:attribute'}",
                st.QNN_BACKEND_ERROR_OP_PACKAGE_NOT_FOUND,
            )
        elif not each.reference:
            raise UnsupportedFeature(
                f"{title} cannot be imported by the device's process: it is no attribute of a module that defines"
                " one of its functions (a script is none). Put it into a module, or create the device with"
                " host='thread' (a session with transport='inprocess')",
                _FAILED,
            )
        else:
            _load_as(each, title)


def _load_as(wanted: ms.WantedPackage, title: str) -> None:
    add_folders(wanted.folders)
    package = load_package(wanted.reference)
    if (package.name, package.version) != (wanted.name, wanted.version):
        raise InvalidArgument(
            f"{wanted.reference!r} is op package {package.name!r} {package.version} in the device's process;"
            f" expected {title.removeprefix('op package ')}: is it made anew in each process?",
            _FAILED,
        )
    add_package(package)


def add_folders(folders: Sequence[str]) -> None:
    """Look for modules in these folders, too, after all others."""
    for folder in folders:
        if os.path.isabs(folder) and folder not in sys.path:
            sys.path.append(folder)


def folders_of_modules() -> list[str]:
    """Where this process finds modules."""
    return [os.path.abspath(folder) for folder in sys.path]
