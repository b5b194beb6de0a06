"""Memory that holds code which was needed to load a graph, and is not needed to run it.

Making sessions uses most of ONNX Runtime's code, 17 MB of it; running them uses a fifth of that. The rest would
count as this process's memory until the system runs short of it. Code does not differ from its file, so a page
that was given back is read again when it is next used.
"""

from __future__ import annotations

import ctypes
import mmap
import sys
from pathlib import Path
from typing import Any

LARGE_BYTES = 48 << 20
"""Loading graphs with so many bytes of weights takes much longer than reading the code again."""


_BESIDE_MODULES = ("libpython3.", "libcrypto.")
"""Beginnings of the names of libraries that modules of the interpreter need, in any folder."""


def give_back_code() -> None:
    """Give back the memory of libraries of Python's modules that does not differ from their files."""
    advise: Any = ctypes.CDLL(None).madvise
    advise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    for begin, end in unchanged_pages():
        advise(begin, end - begin, mmap.MADV_DONTNEED)


def unchanged_pages() -> list[tuple[int, int]]:
    """Ranges of memory that are read-only and unchanged: the loader writes to some pages, and debuggers may.

    Only what is in memory counts. Emulators of other processors say that nothing is, and nothing changed either.
    """
    files = _module_files()
    pages: list[tuple[int, int]] = []
    mapping: tuple[int, int] | None = None
    with open("/proc/self/smaps", encoding="utf-8", errors="replace") as spans:
        for line in spans:
            fields = line.rstrip("\n").split(None, 5)
            if not fields[0].endswith(":"):
                begin, end = (int(address, 16) for address in fields[0].split("-"))
                is_read = len(fields) == 6 and fields[1].startswith("r-") and _is_of_modules(fields[5], files)
                mapping = (begin, end) if is_read else None
            elif fields[0] == "Rss:" and fields[1] == "0":
                mapping = None
            elif fields[0] == "Anonymous:" and fields[1] == "0" and mapping is not None:
                pages.append(mapping)
    return pages


def _module_files() -> set[str]:
    names = {str(getattr(module, "__file__", None)) for module in list(sys.modules.values())}
    return {str(Path(name).resolve()) for name in names if name.endswith(".so")}


def _is_of_modules(path: str, files: set[str]) -> bool:
    """Whether a library is a module, was bundled with some, as numpy's BLAS was, or is one that they need."""
    folder, name = Path(path).parent.name, Path(path).name
    return path in files or folder.endswith(".libs") or name.startswith(_BESIDE_MODULES)
