"""How Python processes of our own are started: with this very package, and with nothing from the working folder.

``python -m`` and ``python -c`` put the working folder before the standard library, so a ``json.py`` that lies
there would run inside the device.
"""

from __future__ import annotations

import os
import site
import sys
import sysconfig
from pathlib import Path

_ROOT = str(Path(__file__).absolute().parents[2])


def is_embedded() -> bool:
    """Whether the process is another program that has Python inside it."""
    try:
        return not os.path.samefile(sys.executable or "/", "/proc/self/exe")
    except OSError:
        return False


def program() -> str:
    """The interpreter, which in a program that only has Python inside is the one that its library belongs to."""
    if not is_embedded():
        return sys.executable
    version = f"{sys.version_info.major}.{sys.version_info.minor}"
    beside = Path(sys.base_exec_prefix) / "bin" / f"python{version}"
    return str(beside) if beside.exists() else sys.executable or f"python{version}"


def command(*words: str) -> list[str]:
    """Command line of this interpreter, which does not look for modules in its working folder."""
    return [program(), "-P", *words]


def environment() -> dict[str, str]:
    """Our environment, in which a child finds this package where we found it.

    Of PYTHONPATH the child gets what names a folder: an empty entry means the working folder, and is most often
    left over from joining with an unset variable.
    """
    variables = dict(os.environ)
    folders = [os.path.abspath(folder) for folder in variables.get("PYTHONPATH", "").split(os.pathsep) if folder]
    if is_embedded():
        # The interpreter by itself would not find the folders that were found for this program.
        folders += [folder for folder in sys.path if folder and folder not in folders]
    if _ROOT not in folders and os.path.realpath(_ROOT) not in _installed():
        folders.insert(0, _ROOT)
    variables["PYTHONPATH"] = os.pathsep.join(folders)
    if not folders:
        del variables["PYTHONPATH"]
    return variables


def _installed() -> set[str]:
    """Folders that every start of this interpreter looks into by itself."""
    paths = sysconfig.get_paths()
    named = [paths["purelib"], paths["platlib"], *site.getsitepackages()]
    if site.ENABLE_USER_SITE:
        named.append(site.getusersitepackages())
    return {os.path.realpath(folder) for folder in named}
