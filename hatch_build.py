"""Compiles the C parts of the package (``capi``, ``engine``) when it is built: for a wheel, or an editable one.

Without a C compiler the package is built all the same; ``openhtp.backend_path()`` then says what is missing, and
graphs are loaded more slowly.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

try:
    from hatchling.builders.hooks.plugin.interface import BuildHookInterface
except ImportError:  # used by itself, to compile
    BuildHookInterface = object  # type: ignore[assignment, misc]

CAPI = Path("src/openhtp/capi")
ENGINE = Path("src/openhtp/engine")
# Which source makes which libraries. Those of one source differ in their SONAME only. A program that opens a
# library by its bare name gets the one that is loaded under that name.
LIBRARIES = {
    "stub.c": ("libQnnHtp.so", "libQnnSystem.so", "libQnnSaver.so"),
    "rpcmem.c": ("libcdsprpc.so",),
    "empty.c": ("libQnnIr.so", "libQnnLpai.so"),
}
SESSIONS = {"sessions.c": ("libopenhtp_sessions.so",)}
FLAGS = ("-O2", "-std=gnu11", "-Wall", "-Wextra", "-shared", "-fPIC", "-fvisibility=hidden", "-Wl,-z,nodelete")


def compiler() -> list[str] | None:
    """The C compiler's command, None if there is none."""
    named = os.environ.get("CC", "").split()
    for words in (named, ["cc"], ["gcc"], ["clang"]):
        if words and shutil.which(words[0]):
            return words
    return None


def compile_libraries(root: Path, folder: Path) -> bool:
    """Compile what C programs load into ``folder``; False if there is no compiler."""
    return _compile(root / CAPI / "native", LIBRARIES, folder)


def compile_sessions(root: Path, folder: Path) -> bool:
    """Compile what the engine loads into ``folder``; False if there is no compiler."""
    return _compile(root / ENGINE / "native", SESSIONS, folder)


def _compile(sources: Path, libraries: dict[str, tuple[str, ...]], folder: Path) -> bool:
    command = compiler()
    if command is None:
        return False
    folder.mkdir(parents=True, exist_ok=True)
    for source, names in libraries.items():
        for name in names:
            new = folder / f".{name}.new"
            words = [*FLAGS, f"-Wl,-soname,{name}", "-o", str(new), str(sources / source), "-ldl", "-lpthread"]
            subprocess.run([*command, *words], check=True)
            new.replace(folder / name)  # a process may have the old one mapped
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
        folder = root / CAPI / "lib"
        if not compile_libraries(root, folder) or not compile_sessions(root, root / ENGINE / "lib"):
            self.app.display_warning(
                "no C compiler was found: libQnnHtp.so is not built. Everything else of openhtp works"
            )
            return
        if version == "editable":
            note_python(folder)
            return
        (folder / "python.cfg").unlink(missing_ok=True)
        build_data["pure_python"] = False
        build_data["tag"] = f"py3-none-{sysconfig.get_platform().replace('-', '_').replace('.', '_')}"
        build_data["artifacts"] += [f"{CAPI}/lib/*.so", f"{ENGINE}/lib/*.so"]
