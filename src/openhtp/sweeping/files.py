"""The files that a study reads: where they lie on this machine, or as they were shipped to it."""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections.abc import Mapping
from pathlib import Path

from openhtp.core.errors import InvalidArgument
from openhtp.core.files import read_file
from openhtp.core.units import GIB
from openhtp.sweeping.study import Study

_MOST_BYTES = 2 * GIB


class Files:
    """Finds files by the name that the study has for them, relative to its own folder."""

    def __init__(self, study: Study, shipped: Mapping[str, bytes] | None = None) -> None:
        self._folder = study.folder
        self.shipped = shipped
        self._places: dict[str, Path] = {}
        if shipped is not None:
            self._unpack(shipped)

    def _unpack(self, shipped: Mapping[str, bytes]) -> None:
        here = tempfile.mkdtemp(prefix="openhtp-sweep-")
        weakref.finalize(self, shutil.rmtree, here, ignore_errors=True)
        for name, data in shipped.items():
            # Names may lead out of the study's folder; here each folder gets one of its own.
            parent = self._places.setdefault(str(Path(name).parent), Path(here, str(len(self._places))))
            parent.mkdir(exist_ok=True)
            self._places[str(Path(name))] = parent / Path(name).name
            (parent / Path(name).name).write_bytes(data)

    def path(self, name: str) -> Path:
        """Where a file, or a folder of files, lies."""
        if self.shipped is None:
            return Path(self._folder, name)
        return self._places.get(str(Path(name)), Path(self._folder, name))


def read_all(study: Study) -> dict[str, bytes]:
    """What is in the files, to be shipped; models with the data beside them put inside."""
    from openhtp.frontend.probing import with_fixed_inputs

    files = {}
    for name in study.files:
        path = Path(study.folder, name)
        if path.suffix == ".onnx":
            files[name] = with_fixed_inputs(path, may_stay_open=True)
        else:
            files[name] = read_file(path, most=_MOST_BYTES, what="what a study reads", error=InvalidArgument)
    return files
