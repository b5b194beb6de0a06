"""A bundle as Genie sees it: its ``genie_config.json``, checked where Genie's own answer would be unclear."""

from __future__ import annotations

import copy
import json
import logging
import os
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from openhtp.core.checks import shown, whole_number
from openhtp.core.enumerations import DataFormat
from openhtp.core.errors import BadBinary, BadModel, InvalidArgument
from openhtp.core.files import read_file
from openhtp.hw.catalog import catalog, find_soc
from openhtp.llm import Bundle
from openhtp.llm.genie_config import GENIE_CONFIG, longest_dialog
from openhtp.program.binary import ContextBinary, read_binary
from openhtp.session.options import DEFAULT_SOC

log = logging.getLogger(__name__)

_MOST_CONFIG = 16 << 20
_MOST_BINARY = 8 << 30


@dataclass(frozen=True, slots=True, eq=False)
class GenieBundle:
    """A configuration of Genie's, all of whose files have absolute names and are there."""

    source: Path
    content: Mapping[str, Any]

    @classmethod
    def at(cls, path: str | os.PathLike[str]) -> GenieBundle:
        """Read a configuration file, or that of a bundle's folder. For an older bundle without one, it is made."""
        source = Path(path)
        if os.path.isdir(source):
            folder, source = source, source / GENIE_CONFIG
            if not source.exists() and (folder / "bundle.json").exists():
                return cls._checked(source, Bundle.at(folder).genie_config())
            if not source.exists() and (folder / "config.json").exists():
                raise BadModel(
                    f"{str(folder)!r} is a checkpoint, not a bundle; first: openhtp llm export {folder} -o BUNDLE"
                )
        text = read_file(source, most=_MOST_CONFIG, what="a configuration of Genie", error=BadModel)
        try:
            content = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise BadModel(f"{str(source)!r} is no JSON: {error}") from error
        return cls._checked(source, content)

    @classmethod
    def _checked(cls, source: Path, content: Any) -> GenieBundle:
        content = copy.deepcopy(content)
        dialog = _object(content, "dialog", source)
        model = _object(_object(dialog, "engine", source), "model", source)
        tokenizer, binary = _object(dialog, "tokenizer", source), _object(model, "binary", source)
        folder = source.absolute().parent
        tokenizer["path"] = _file(folder, tokenizer.get("path"), "the tokenizer", source)
        names = binary.get("ctx-bins")
        if not isinstance(names, list) or not names:
            raise BadModel(f"{str(source)!r} names no ctx-bins; expected the context binaries of the model")
        binary["ctx-bins"] = [_file(folder, name, "a context binary", source) for name in names]
        for owner, key in _other_files(dialog):
            owner[key] = _file(folder, owner[key], f"the file of {key!r}", source)
        return cls(source, content)

    @property
    def dialog(self) -> Any:
        """The dialog's part of the configuration."""
        return self.content["dialog"]

    @property
    def parts(self) -> list[Path]:
        """The context binaries."""
        return [Path(name) for name in self.dialog["engine"]["model"]["binary"]["ctx-bins"]]

    def binaries(self) -> Iterator[tuple[Path, ContextBinary]]:
        """The context binaries, opened. Raises BadBinary with advice for those of the vendor's own format."""
        for path in self.parts:
            data = read_file(path, most=_MOST_BINARY, what="a context binary", error=BadModel)
            try:
                yield path, read_binary(data)
            except BadBinary as error:
                raise BadBinary(
                    f"{str(path)!r} cannot be read: {error.message}. Export the model again with openhtp llm"
                    " export; binaries of the vendor's own format run on the vendor's library only"
                ) from error

    def chip(self, soc: str | None) -> str:
        """The chip to run on: that of the binaries. Raises if ``soc`` is another one, or the context is wrong."""
        asked = [("", soc)] if soc is not None else []
        named = self._extensions_chip()
        if named is not None:
            asked.append((f" by {self.dialog['engine']['backend']['extensions']!r}", named))
        first: tuple[Path, str] | None = None
        for path, binary in self.binaries():
            made_for = binary.info.soc
            first = first or ((path, made_for) if made_for else None)
            for where, other in asked:
                if made_for and not _is_same_chip(made_for, other):
                    raise BadBinary(
                        f"{str(path)!r} was made for {made_for}, and {other} is asked for{where}; leave that out,"
                        " or make the binary again for the other chip"
                    )
            if first is not None and made_for not in ("", first[1]):
                raise BadBinary(
                    f"{str(path)!r} was made for {made_for}, and {str(first[0])!r} for {first[1]}; export all"
                    " parts for one chip"
                )
            self._check_context(binary)
        return soc or (first[1] if first is not None else named or DEFAULT_SOC)

    def _extensions_chip(self) -> str | None:
        """The chip that the file of extensions names, which Genie makes its device for."""
        backend = self.dialog["engine"].get("backend")
        name = backend.get("extensions") if isinstance(backend, dict) else None
        if name is None:
            return None
        try:
            content = json.loads(read_file(Path(name), most=_MOST_CONFIG, what="extensions", error=BadModel))
            device = content["devices"][0]
            number = whole_number(device.get("soc_model", device.get("soc_id")))
        except (ValueError, RecursionError, LookupError, TypeError, AttributeError):
            return None  # Genie reads it itself, and says so
        known = next((soc.name for soc in catalog().values() if soc.soc_model == number), None)
        return known if number else None

    def _check_context(self, binary: ContextBinary) -> None:
        for name in binary.graph_names:
            inputs = {spec.name: spec for spec in binary.graph_info(name).inputs}
            mask = inputs.get("attention_mask")
            if mask is None:
                continue
            native = any(spec.data_format is DataFormat.HMX_WEIGHT_LAYOUT for spec in inputs.values())
            places = mask.shape[-1]
            most = longest_dialog(places, native=native)
            context = self.dialog.get("context")
            size = whole_number(context.get("size")) if isinstance(context, dict) else None
            if size is not None and size > places:
                raise InvalidArgument(
                    f"context.size of {str(self.source)!r} is {size}, and graph {name!r} has {places} places;"
                    f" expected at most {most}"
                )
            if size is not None and size > most:
                # Such configurations are shipped; only a dialog that fills the cache fails.
                log.warning(
                    "context.size is %d of %d places, which leaves no room for the last pass: so long a dialog"
                    " fails in Genie, one of %d ends by itself",
                    size,
                    places,
                    most,
                )
                return

    def config(self, *, asynchronous: bool = False) -> str:
        """The JSON that Genie is given."""
        content = copy.deepcopy(dict(self.content))
        if asynchronous:
            backend = content["dialog"]["engine"].get("backend")
            options = backend.get("QnnHtp") if isinstance(backend, dict) else None
            if not isinstance(options, dict):
                raise BadModel(f"{str(self.source)!r} has no engine.backend.QnnHtp, so nothing to queue on")
            options["allow-async-enqueue"] = True
        return json.dumps(content)

    def with_parts(self, parts: list[Path]) -> GenieBundle:
        """These settings with other binaries."""
        content = copy.deepcopy(dict(self.content))
        content["dialog"]["engine"]["model"]["binary"]["ctx-bins"] = [str(path) for path in parts]
        return GenieBundle(self.source, content)


def _is_same_chip(made_for: str, other: str) -> bool:
    """Whether two names are one chip's: several names can have one number."""
    known, asked = catalog().get(made_for), find_soc(other)
    return asked.name == made_for or (known is not None and known.soc_model == asked.soc_model)


def _object(owner: Any, key: str, source: Path) -> Any:
    inner = owner.get(key) if isinstance(owner, dict) else None
    if not isinstance(inner, dict):
        raise BadModel(f"{str(source)!r} has {key} as {shown(inner)}; expected an object, as Genie's pages say")
    return inner


def _other_files(dialog: Any) -> Iterator[tuple[Any, Any]]:
    """Places of further file names: extensions, the table of an embedding, and sections of adapters."""
    embedding = dialog.get("embedding")
    if isinstance(embedding, dict) and "lut-path" in embedding:
        yield embedding, "lut-path"
    backend = dialog["engine"].get("backend")
    if isinstance(backend, dict) and "extensions" in backend:
        yield backend, "extensions"
    lora = dialog["engine"]["model"]["binary"].get("lora")
    adapters = lora.get("adapters") if isinstance(lora, dict) else None
    for adapter in adapters if isinstance(adapters, list) else ():
        sections = adapter.get("bin-sections") if isinstance(adapter, dict) else None
        for index in range(len(sections) if isinstance(sections, list) else 0):
            yield sections, index


def _file(folder: Path, name: Any, what: str, source: Path) -> str:
    path = folder / name if isinstance(name, str) else None
    if path is None or not os.path.isfile(path):  # unlike Path.is_file, it takes a name too long for none
        raise BadModel(
            f"{str(source)!r} names {what} as {shown(name)}, and there is no such file; expected one beside it, or"
            " an absolute name"
        )
    return str(path)
