"""The op packages that a backend was given."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable, Iterator, Mapping

from openhtp.core import status as st
from openhtp.core.checks import items_of, shown, type_in_words
from openhtp.core.errors import InvalidArgument, NameClash, UnsupportedOp
from openhtp.device.op_packages import folders_of_modules, load_package
from openhtp.ops._packages import BUILT_IN, OpPackage, add_package, drop_package
from openhtp.rpc import messages as ms

PackageSource = OpPackage | str
"""A package, or where it is: ``module:attribute`` or ``library.so:provider``."""


class BackendPackages:
    """Packages by name. Graphs of the backend may have their operators."""

    def __init__(self) -> None:
        self._packages: dict[str, OpPackage] = {}
        # Users of packages that go with their last one.
        self._borrowers: dict[str, int] = {}

    def register(self, source: object) -> OpPackage:
        """Take a package. Raises NameClash if the backend has one of its name."""
        package = found_package(source)
        if package.name in self._packages:
            raise NameClash(
                f"op package {package.name!r} {self._packages[package.name].version} is registered already",
                st.QNN_BACKEND_ERROR_OP_PACKAGE_DUPLICATE,
            )
        add_package(package)
        self._packages[package.name] = package
        return package

    def lend(self, package: OpPackage) -> Callable[[], None]:
        """Have a package for as long as any of its users; return the function that ends the use of this one."""
        if self._packages.get(package.name) is not package:
            self.register(package)
        self._borrowers[package.name] = self._borrowers.get(package.name, 0) + 1
        over: list[None] = [None]

        def give_back() -> None:
            if over:
                over.clear()
                self._give_back(package)

        return give_back

    def _give_back(self, package: OpPackage) -> None:
        self._borrowers[package.name] -= 1
        if not self._borrowers[package.name] and self._packages.get(package.name) is package:
            del self._packages[package.name]
            drop_package(package)

    def find(self, name: str) -> OpPackage | None:
        """The package of this name."""
        return self._packages.get(name)

    def listed(self) -> tuple[OpPackage, ...]:
        """All of them, in the order in which they came."""
        return tuple(self._packages.values())

    def check(self, names: Iterable[object]) -> None:
        """Refuse operators of packages that were not registered here."""
        for name in names:
            if not isinstance(name, str) or (name != BUILT_IN and name not in self._packages):
                known = ", ".join(map(repr, (BUILT_IN, *self._packages)))
                raise UnsupportedOp(
                    f"op package {shown(name)} is not registered with this backend; expected one of {known}"
                    " (backend.register_op_package)",
                    st.QNN_BACKEND_ERROR_OP_PACKAGE_NOT_FOUND,
                )

    def wanted(self, versions: Mapping[str, str]) -> list[ms.WantedPackage]:
        """The references by which a device finds these packages."""
        wanted = []
        for name, version in versions.items():
            package = self._packages.get(name)
            reference = "" if package is None else package.reference
            folders = folders_of_modules() if reference and not os.path.isabs(reference) else []
            wanted.append(ms.WantedPackage(name=name, version=version, reference=reference, folders=folders))
        return wanted

    def drop_all(self) -> None:
        """The backend is gone."""
        while self._packages:
            drop_package(self._packages.popitem()[1])


@contextlib.contextmanager
def registered(sources: Iterable[object]) -> Iterator[tuple[OpPackage, ...]]:
    """Let graphs of this process use packages while the block runs, for work without a backend, as an estimate."""
    packages = found_packages(sources)
    with contextlib.ExitStack() as undoing:
        for package in packages:
            add_package(package)
            undoing.callback(drop_package, package)
        yield packages


def found_packages(sources: object) -> tuple[OpPackage, ...]:
    """The packages of a caller's list."""
    listed = items_of(sources)
    if listed is None:
        raise InvalidArgument(f"op_packages is {type_in_words(sources)}; expected a list of packages")
    return tuple(map(found_package, listed))


def found_package(source: object) -> OpPackage:
    """The package that a caller means."""
    if isinstance(source, OpPackage):
        return source
    if isinstance(source, str):
        return load_package(source)
    raise InvalidArgument(
        f"op package is {shown(source)}; expected an openhtp.OpPackage, module:attribute or library.so:provider",
        st.QNN_BACKEND_ERROR_INVALID_ARGUMENT,
    )
