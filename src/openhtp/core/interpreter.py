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


def command(*words: str) -> list[str]:
    """Command line of this interpreter, which does not look for modules in its working folder."""
    return [sys.executable, "-P", *words]


def environment() -> dict[str, str]:
    """Our environment, in which a child finds this package where we found it.

    Of PYTHONPATH the child gets what names a folder: an empty entry means the working folder, and is most often
    left over from joining with an unset variable.
    """
    found = dict(os.environ)
    folders = [os.path.abspath(folder) for folder in found.get("PYTHONPATH", "").split(os.pathsep) if folder]
    if _ROOT not in folders and os.path.realpath(_ROOT) not in _installed():
        folders.insert(0, _ROOT)
    found["PYTHONPATH"] = os.pathsep.join(folders)
    if not folders:
        del found["PYTHONPATH"]
    return found


def _installed() -> set[str]:
    """Folders that every start of this interpreter looks into by itself."""
    paths = sysconfig.get_paths()
    named = [paths["purelib"], paths["platlib"], *site.getsitepackages()]
    if site.ENABLE_USER_SITE:
        named.append(site.getusersitepackages())
    return {os.path.realpath(folder) for folder in named}
