"""Compiles the C parts of the package (``capi``, ``engine``, ``planning``) when it is built, also an editable one.

Without a C compiler the package is built all the same; ``openhtp.backend_path()`` then says what is missing, and
graphs are loaded and scenarios planned more slowly.

A wheel is tagged by what the compiler made, so ``CC`` alone chooses the target:
``CC="python -m ziglang cc -target aarch64-linux-gnu.2.28"``. ``_PYTHON_HOST_PLATFORM``, which names the target in
other cross builds, is a promise that is checked.
"""

from __future__ import annotations

import hashlib
import os
import shlex
import shutil
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # used by itself, to compile
    BuildHookInterface = object  # type: ignore[assignment, misc]

CAPI = Path("src/openhtp/capi")
ENGINE = Path("src/openhtp/engine")
PLANNING = Path("src/openhtp/planning")
# Which source makes which libraries. Those of one source differ in their SONAME only. A program that opens a
# library by its bare name gets the one that is loaded under that name.
LIBRARIES = {
    "stub.c": ("libQnnHtp.so", "libQnnSystem.so", "libQnnSaver.so"),
    # In a folder of its own: on a board it must not come before the library of the same name that reaches the DSP.
    "rpcmem.c": ("rpcmem/libcdsprpc.so",),
    "empty.c": ("libQnnIr.so", "libQnnLpai.so"),
}
SESSIONS = {"sessions.c": ("libopenhtp_sessions.so",)}
PLANS = {"plan.c": ("libopenhtp_plan.so",)}
# Without contraction, which would round a product and a sum at once on some processors: results are equal on all.
FLAGS = (
    "-O2",
    "-ffp-contract=off",
    "-std=gnu11",
    "-Wall",
    "-Wextra",
    "-shared",
    "-fPIC",
    "-fvisibility=hidden",
    "-Wl,-z,nodelete",
)
TARGET_VARIABLE = "_PYTHON_HOST_PLATFORM"
# The number of a machine in an ELF file, and its name in a wheel's tag.
MACHINES = {3: "i686", 40: "armv7l", 62: "x86_64", 183: "aarch64", 243: "riscv64"}


def compiler() -> list[str] | None:
    """The C compiler's command, None if there is none. One that ``CC`` names must exist: it chooses the target."""
    named = shlex.split(os.environ.get("CC", ""))
    if named and not shutil.which(named[0]):
        raise RuntimeError(f"CC is {shlex.join(named)!r}, and there is no such program: unset CC, or correct it")
    return named or next(([name] for name in ("cc", "gcc", "clang") if shutil.which(name)), None)


def machine_of(library: Path) -> str:
    """The machine that a library was compiled for, as wheels name machines."""
    with library.open("rb") as file:
        head = file.read(20)
    number = int.from_bytes(head[18:20], "little")
    if head[:4] != b"\x7fELF" or number not in MACHINES:
        raise RuntimeError(
            f"the compiler made no library for Linux that a wheel can carry: {library.name} begins with"
            f" {head.hex(' ')}. Let CC name a compiler for one of {', '.join(MACHINES.values())}"
        )
    return MACHINES[number]


def target_platform(library: Path) -> str:
    """The platform in the tag of a wheel with this library."""
    machine = machine_of(library)
    promised = os.environ.get(TARGET_VARIABLE, "")
    if promised and promised.replace("-", "_") != f"linux_{machine}":
        raise RuntimeError(
            f"{TARGET_VARIABLE} is {promised!r}, and CC made libraries for linux-{machine}: let CC compile for the"
            f' same target, for example CC="{sys.executable} -m ziglang cc -target aarch64-linux-gnu.2.28"'
        )
    return f"linux_{machine}"


def compile_libraries(root: Path, folder: Path) -> bool:
    """Compile what C programs load into ``folder``; False if there is no compiler."""
    return _compile(root / CAPI / "native", LIBRARIES, folder)


def compile_sessions(root: Path, folder: Path) -> bool:
    """Compile what the engine loads into ``folder``; False if there is no compiler."""
    return _compile(root / ENGINE / "native", SESSIONS, folder)


def compile_plans(root: Path, folder: Path) -> bool:
    """Compile what the planner loads into ``folder``; False if there is no compiler."""
    return _compile(root / PLANNING / "native", PLANS, folder)


def digest_of(sources: Path) -> str:
    """Tells C sources from others. A library says which it was compiled from; ``engine/native.py`` compares."""
    files = sorted(sources.glob("*.[ch]"))
    return hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()


def _compile(sources: Path, libraries: dict[str, tuple[str, ...]], folder: Path) -> bool:
    command = compiler()
    if command is None:
        return False
    folder.mkdir(parents=True, exist_ok=True)
    for source, names in libraries.items():
        for name in names:
            library = folder / name
            library.parent.mkdir(exist_ok=True)
            new = library.with_name(f".{library.name}.new")
            words = [
                *FLAGS,
                f'-DOPENHTP_SOURCES="{digest_of(sources)}"',
                f"-Wl,-soname,{library.name}",
                "-o",
                str(new),
                str(sources / source),
                "-ldl",
                "-lpthread",
            ]
            subprocess.run([*command, *words], check=True)
            new.replace(library)  # a process may have the old one mapped
    # What an earlier version made here would still be found, and be taken for another library of that name.
    made = {folder / name for names in libraries.values() for name in names}
    for library in set(folder.rglob("*.so")) - made:
        library.unlink()
    return True


def python_library() -> str | None:
    """The library of this Python; None for a static one."""
    soname = str(sysconfig.get_config_var("INSTSONAME") or "")
    if not soname or soname.endswith(".a"):
        return None
    # A Python that was moved since it was built is not where its own settings say.
    folders = (Path(sys.base_prefix) / "lib", Path(sysconfig.get_config_var("LIBDIR") or ""))
    return next((str(path / soname) for path in folders if os.access(path / soname, os.R_OK)), None)


def note_python(folder: Path) -> None:
    """For a C program that loads an editable installation: which Python, and where its packages are."""
    lines = [f"site={sysconfig.get_paths()['purelib']}"]
    prefix_site = Path(sys.prefix) / "lib" / f"python{sysconfig.get_python_version()}" / "site-packages"
    if prefix_site.is_dir():
        lines = [f"site={prefix_site}"]
    library = python_library()
    if library is not None:
        lines.append(f"libpython={library}")
    (folder / "python.cfg").write_text("\n".join(lines) + "\n", encoding="utf-8")


class CustomBuildHook(BuildHookInterface):  # type: ignore[misc, type-arg]
    """Called by hatchling."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile before the files are collected."""
        if self.target_name != "wheel":
            return
        root = Path(self.root)
        if compiler() is None:
            self.app.display_warning(
                "no C compiler was found: libQnnHtp.so is not built. Everything else of openhtp works"
            )
        elif version == "editable":
            folder = root / CAPI / "lib"
            compile_libraries(root, folder)
            compile_sessions(root, root / ENGINE / "lib")
            compile_plans(root, root / PLANNING / "lib")
            note_python(folder)
        else:
            self._compile_for_wheel(root, build_data)

    def _compile_for_wheel(self, root: Path, build_data: dict[str, Any]) -> None:
        # Not in the sources: an editable installation has its libraries there, and these may be for another CPU.
        self._folder = tempfile.TemporaryDirectory(prefix="openhtp-build-")
        parts = ((CAPI, compile_libraries), (ENGINE, compile_sessions), (PLANNING, compile_plans))
        for package, compile_part in parts:
            folder = Path(self._folder.name) / package.name
            compile_part(root, folder)
            for library in folder.rglob("*.so"):
                inside = package.relative_to("src") / "lib" / library.relative_to(folder)
                build_data["force_include"][str(library)] = str(inside)
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{target_platform(Path(next(iter(build_data['force_include']))))}"

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove what was compiled for a wheel."""
        folder = getattr(self, "_folder", None)
        if folder is not None:
            folder.cleanup()
