"""The result of an export: a context binary for each part, with all AR graphs, and a file that describes them."""

from __future__ import annotations

import functools
import itertools
import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec

from openhtp.core.checks import shown
from openhtp.core.errors import BadModel, InvalidArgument, error_context
from openhtp.core.files import read_file, write_file
from openhtp.core.hmx_layout import BLOCK
from openhtp.llm.adapter import check_name
from openhtp.llm.checkpoint import folder_of
from openhtp.llm.config import LlamaConfig
from openhtp.llm.genie_config import GENIE_CONFIG, genie_config

BUNDLE_FILE = "bundle.json"
_TOKENIZER = "tokenizer.json"
_FORMATS = "data_format_config.json"
_NATIVE = "QNN_TENSOR_DATA_FORMAT_HMX_WEIGHT_LAYOUT"
_TABLE = "embedding.raw"
_MOST_ABOUT = 1 << 20
_MOST_PART = 8 << 30
_VERSION = 1


class EmbeddingEncoding(msgspec.Struct, frozen=True, kw_only=True):
    """How the rows of an embedding are stored that the client looks up."""

    dtype: str
    scale: float
    offset: int


class About(msgspec.Struct, frozen=True, kw_only=True):
    """The content of ``bundle.json``."""

    version: int = _VERSION
    model: LlamaConfig
    contexts: list[int]
    ar: list[int]
    parts: list[list[int]]
    precision: str
    # Kinds of weights that are stored as two matrices.
    wide: list[str] = []
    native_kv: bool
    native_out: bool
    masked_softmax: str
    concat_kv: bool = False
    adapters: list[str] = []
    # If graphs take embedded tokens in place of their numbers.
    embedding: EmbeddingEncoding | None = None

    def check_parts(self) -> None:
        """Refuse parts that do not have every layer, one part after the other."""
        layer = 0
        for part in self.parts:
            if len(part) != 2 or part[0] != layer or part[1] <= layer:
                break
            layer = part[1]
        else:
            if layer == self.model.layers:
                return
        raise BadModel(
            f"{BUNDLE_FILE} has parts {shown(self.parts)}; expected them from layer 0 to {self.model.layers}"
        )


@dataclass(frozen=True, slots=True, eq=False)
class Bundle:
    """An exported model. ``binaries`` has one context binary per part; graphs are named as Genie names them."""

    about: About
    binaries: Sequence[bytes]
    tokenizer: Path | None = None
    # For each adapter and part a binary section, made for the part's first graph; the others take the same data.
    adapters: Mapping[str, Sequence[bytes]] = field(default_factory=dict)
    # A row for each token, as graphs take it; None if they take token numbers.
    table: bytes | None = None

    @property
    def config(self) -> LlamaConfig:
        """Sizes of the model."""
        return self.about.model

    @property
    def context(self) -> int:
        """Tokens that the cache holds at most."""
        return self.about.contexts[-1]

    @property
    def contexts(self) -> tuple[int, ...]:
        """Sizes of the cache that there are graphs for, the smallest first."""
        return tuple(self.about.contexts)

    @property
    def ar(self) -> tuple[int, ...]:
        """Tokens that its graphs take at a time, the most first."""
        return tuple(self.about.ar)

    @property
    def parts(self) -> int:
        """Number of parts."""
        return len(self.binaries)

    def graph_name(self, ar: int, part: int, context: int | None = None) -> str:
        """Name of the graph of one part, from 1 on, for passes of ``ar`` tokens."""
        return graph_name(ar, self.context if context is None else context, part, self.parts)

    def data_formats(self) -> dict[str, Any]:
        """Which tensors are native, as ``--data_format_config`` of the vendor's tools and ours takes it."""
        graphs = []
        for number, (begin, end) in enumerate(self.about.parts, 1):
            past = [f"past_{side}_{layer}" for layer in range(begin, end) for side in ("key", "value")]
            for context, ar in itertools.product(self.contexts, self.ar):
                tiled = self.about.native_out and ar % BLOCK == 0
                names = [f"{name}_in" for name in past] + ([f"{name}_out" for name in past] if tiled else [])
                tensors = [{"tensor_name": name, "dataFormat": _NATIVE} for name in names if self.about.native_kv]
                graphs.append({"graph_name": self.graph_name(ar, number, context), "tensors": tensors})
        return {"graphs": graphs}

    def genie_config(self) -> dict[str, Any]:
        """The configuration with which Genie runs the bundle; files are named as ``save`` names them."""
        numbers = range(1, self.parts + 1)
        return genie_config(
            self.config,
            [part_name(number, self.parts) for number in numbers],
            _TOKENIZER,
            context=self.context,
            native=self.about.native_kv,
            adapters={
                name: [adapter_part_name(name, number, self.parts) for number in numbers] for name in self.adapters
            },
            embedding=self._lookup(),
        )

    def _lookup(self) -> dict[str, Any] | None:
        """How Genie finds the rows of the embedding; with this encoding it hands them on as they lie."""
        encoding = self.about.embedding
        if encoding is None:
            return None
        return {
            "version": 1,
            "type": "lut",
            "lut-path": _TABLE,
            "size": self.config.hidden,
            "datatype": encoding.dtype,
            "quant-param": {"scale": encoding.scale, "offset": encoding.offset},
        }

    def save(self, folder: str | os.PathLike[str]) -> Path:
        """Write the bundle into a folder, which is made if there is none."""
        path = folder_of(folder)
        if os.path.exists(path) and not path.is_dir():
            raise InvalidArgument(f"cannot save to {str(path)!r}: it is no folder")
        try:
            path.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InvalidArgument(f"cannot save to {str(path)!r}: {error.strerror}") from error
        files = self.files()
        # A folder that has this file is complete, so one of another bundle goes first, and ours comes last.
        (path / BUNDLE_FILE).unlink(missing_ok=True)
        for name in (name for name in files if name != BUNDLE_FILE):
            write_file(path / name, files[name])
        if self.tokenizer is not None and self.tokenizer.is_file() and self.tokenizer != path / _TOKENIZER:
            text = read_file(self.tokenizer, most=_MOST_PART, what="a tokenizer (tokenizer.json)", error=BadModel)
            write_file(path / _TOKENIZER, text)
        write_file(path / GENIE_CONFIG, json.dumps(self.genie_config(), indent=1).encode())
        if self.about.native_kv:
            write_file(path / _FORMATS, json.dumps(self.data_formats(), indent=1).encode())
        write_file(path / BUNDLE_FILE, files[BUNDLE_FILE])
        return path

    def files(self) -> dict[str, bytes]:
        """The files of the model by name: its description, its parts and its adapters."""
        files = {BUNDLE_FILE: json.dumps(msgspec.to_builtins(self.about), indent=1).encode()}
        numbers = range(1, self.parts + 1)
        for number, binary in zip(numbers, self.binaries, strict=True):
            files[part_name(number, self.parts)] = binary
        if self.table is not None:
            files[_TABLE] = self.table
        for name, sections in self.adapters.items():
            for number, section in zip(numbers, sections, strict=True):
                files[adapter_part_name(name, number, self.parts)] = section
        return files

    @classmethod
    def at(cls, folder: str | os.PathLike[str]) -> Bundle:
        """Read a bundle that ``save`` wrote."""
        path = folder_of(folder)
        with error_context(bundle=str(path)):
            return cls.from_files(functools.partial(_read, path), path / _TOKENIZER)

    @classmethod
    def from_files(cls, read: Callable[[str, int], bytes], tokenizer: Path | None) -> Bundle:
        """The bundle whose files ``read(name, most)`` reads."""
        text = read(BUNDLE_FILE, _MOST_ABOUT)
        try:
            about = msgspec.json.decode(text, type=About)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise BadModel(f"{BUNDLE_FILE} cannot be read: {error}") from error
        if about.version != _VERSION:
            raise BadModel(f"{BUNDLE_FILE} is of version {about.version}; expected {_VERSION}")
        about.check_parts()
        count = len(about.parts)
        binaries = [read(part_name(n, count), _MOST_PART) for n in range(1, count + 1)]
        if not about.ar or not about.contexts:
            raise BadModel(f"{BUNDLE_FILE} lists no AR graphs or no contexts")
        adapters = {}
        for name in about.adapters:
            check_name(name)
            adapters[name] = [read(adapter_part_name(name, n, count), _MOST_PART) for n in range(1, count + 1)]
        table = None if about.embedding is None else read(_TABLE, _MOST_PART)
        return cls(about, binaries, tokenizer, adapters, table)


def graph_name(ar: int, context: int, part: int, parts: int) -> str:
    """A name by which Genie distinguishes prompt graphs from token graphs."""
    return f"{'token' if ar == 1 else 'prompt'}_ar{ar}_cl{context}_{part}_of_{parts}"


def part_name(part: int, parts: int) -> str:
    """File of one part."""
    return f"part_{part}_of_{parts}.bin"


def adapter_part_name(adapter: str, part: int, parts: int) -> str:
    """File of an adapter's binary section for one part."""
    return f"adapter_{adapter}_{part}_of_{parts}.bin"


def _read(folder: Path, name: str, most: int) -> bytes:
    what = "a bundle's description" if name == BUNDLE_FILE else "a part of a bundle"
    return read_file(folder / name, most=most, what=what, error=BadModel)
