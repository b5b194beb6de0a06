"""``openhtp lib-dir``: the folder of libQnnHtp.so and its companions, for LD_LIBRARY_PATH and QNN clients."""

from __future__ import annotations

import typer

from openhtp.abi.numbers import LIBRARY_NAME, SYSTEM_NAME
from openhtp.capi.identity import lib_dir as folder_of_libraries
from openhtp.cli._terminal import JsonFile, complain, say, write_json
from openhtp.core.errors import QnnError


def lib_dir(json_file: JsonFile = None) -> None:
    """Print the absolute path of the folder with our QNN libraries, and nothing else."""
    try:
        folder = folder_of_libraries()
    except QnnError as error:
        complain(str(error), "red")
        raise typer.Exit(1) from None
    if json_file is None:
        say(str(folder), folded=False)
    names = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.so"))
    write_json(
        json_file,
        {
            "folder": str(folder),
            "backend": str(folder / LIBRARY_NAME),
            "system": str(folder / SYSTEM_NAME),
            "libraries": names,
        },
    )
