"""The graphs of a bundle in context binaries of the vendor's, with which Genie runs on the vendor's library."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from openhtp.core.files import write_file
from openhtp.genie.settings import GenieBundle
from openhtp.runtime.instruments.device_queries import library_binary
from openhtp.runtime.objects.backend import Backend


@contextmanager
def compiled_by_vendor(bundle: GenieBundle, soc: str) -> Iterator[GenieBundle]:
    """The bundle with binaries that the vendor's library compiled; they are removed with the block.

    Graphs do not share weights in them: the vendor's simulator cannot load what it saved with sharing.
    """
    with TemporaryDirectory(prefix="openhtp-genie-vendor-") as folder:
        parts = []
        with Backend(library="vendor") as backend:
            device = backend.create_device(soc=soc)
            for path in bundle.parts:
                with device.create_context_from_binary(path) as context:
                    parts.append(Path(folder) / path.name)
                    write_file(parts[-1], library_binary(context))
        yield bundle.with_parts(parts)
