"""A model's bundle: compiled or quantized, from the store of prepared models; otherwise exported now."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openhtp.core.errors import BadModel, QnnError
from openhtp.core.files import digest_of
from openhtp.core.model_store import CacheEntry, ModelStore
from openhtp.llm.adapter import adapter_files, load_adapter
from openhtp.llm.bundle import Bundle
from openhtp.llm.checkpoint import checkpoint_files, load
from openhtp.llm.export import Progress, export
from openhtp.llm.generator import Generator

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedBundle:
    """A bundle and its origin: ``"compiled"`` and ``"quantized"`` are from the store."""

    bundle: Bundle
    adapter: str | None
    origin: str
    entry: CacheEntry | None = None

    def keep(self, chat: Generator) -> bool:
        """Keep the device's compiled graphs, unless they came from the store; return whether they are kept now."""
        if self.entry is None or chat.was_prepared or chat.adapter is not None:
            return False
        return _offer(self.entry, chat.compiled())


def prepare_bundle(
    folder: str | os.PathLike[str],
    *,
    adapter: str | None = None,
    soc: str = "",
    store: ModelStore | None = None,
    progress: Progress | None = None,
    **options: Any,
) -> PreparedBundle:
    """A bundle that was saved in the folder, or that of the checkpoint in it: from the store, or exported now.

    Args:
        folder: of a bundle or of a checkpoint.
        adapter: of a bundle, the name of its adapter; of a checkpoint, the folder of one.
        soc: the chip that it is to run on, and whatever else its compiled form depends on.
        store: where prepared models are kept; None keeps nothing.
        progress: called with the present work and how far it is.
        options: of ``export``.
    """
    path = Path(folder)
    if (path / "bundle.json").exists():
        return PreparedBundle(bundle=Bundle.at(path), adapter=adapter, origin="bundle")
    quantized = compiled = None
    if store is not None:
        if progress is not None:
            progress("looking for it in the cache", 0.0)
        sources = _digests(path, adapter), sorted((name, repr(value)) for name, value in options.items())
        title = path.resolve().name
        quantized = store.entry("llm", f"{title}, quantized", *sources)
        compiled = store.entry("llm-compiled", f"{title}, compiled for {soc}", *sources, soc)
    for origin, entry in (("compiled", compiled), ("quantized", quantized)):
        bundle = None if entry is None else _stored(entry, path)
        if bundle is not None:
            chosen = next(iter(bundle.adapters), None)
            return PreparedBundle(bundle=bundle, adapter=chosen, origin=origin, entry=compiled)
    model = load(path)
    added = [] if adapter is None else [load_adapter(adapter, model.config)]
    bundle = export(model, adapters=added, progress=progress, **options)
    if quantized is not None:
        _offer(quantized, bundle)
    chosen = next(iter(bundle.adapters), None)
    return PreparedBundle(bundle=bundle, adapter=chosen, origin="exported", entry=compiled)


def _digests(folder: Path, adapter: str | None) -> list[tuple[str, str]]:
    """The content of all files that a bundle is made from; of an adapter also its name, which graphs have."""
    files = [(path.name, path) for path in checkpoint_files(folder)]
    if adapter is not None:
        files += [(f"{Path(adapter).resolve().name}/{path.name}", path) for path in adapter_files(Path(adapter))]
    return [(name, digest_of(path, what="a part of a model", error=BadModel)) for name, path in files]


def _stored(entry: CacheEntry, folder: Path) -> Bundle | None:
    files = entry.read()
    if files is None:
        return None
    try:
        return Bundle.from_files(_reader(files), folder / "tokenizer.json")
    except QnnError as error:
        log.info("what the cache has is not used: %s", error)
        return None


def _reader(files: Mapping[str, bytes]) -> Callable[[str, int], bytes]:
    def read(name: str, most: int) -> bytes:
        data = files.get(name)
        if data is None or len(data) > most:
            raise BadModel(f"{name!r} is missing, or has more than {most} bytes")
        return data

    return read


def _offer(entry: CacheEntry, bundle: Bundle) -> bool:
    """A store that is full or gone costs only the time of the next start."""
    try:
        return entry.offer(bundle.files())
    except OSError as error:
        log.warning("the prepared model is not kept: %s", error)
        return False
