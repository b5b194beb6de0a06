"""Input lists: which raw files each inference reads, one line each.

::

    #output_1 output_2          only these outputs are written (so does a line that begins with %)
    # anything else             a comment
    x:=a/x.raw mask:=a/m.raw    by name
    b/x.raw b/m.raw             in the order of the graph's inputs
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from openhtp.core.errors import InvalidArgument
from openhtp.core.files import read_file
from openhtp.core.tensor import TensorSpec
from openhtp.core.units import MIB
from openhtp.core.validating import did_you_mean
from openhtp.tools.raw import Array, RawForm, read_piece

_MOST_BYTES = 64 << 20
NO_RUN = "__"
"""Stands for the list of a graph that is not to be run."""


@dataclass(frozen=True, slots=True)
class InputLine:
    """One inference: the raw file of each input, and the line that names them (``list.txt:3``)."""

    where: str
    files: dict[str, Path]


@dataclass(slots=True)
class InputList:
    """The lines of a list, and the outputs that it names, if any."""

    lines: list[InputLine] = field(default_factory=list)
    outputs: list[str] = field(default_factory=list)


def split_lists(text: str) -> list[Path | None]:
    """Lists of several graphs, separated by commas; None for a graph that is not to be run."""
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise InvalidArgument(
            f"--input_list {text!r} has an empty place; expected one list for each graph, or {NO_RUN}"
        )
    return [None if word == NO_RUN else Path(word) for word in words]


def read_input_list(path: Path, inputs: Sequence[str], outputs: Sequence[str]) -> InputList:
    """Read a list for a graph with these inputs and outputs. Errors name the line."""
    data = read_file(path, most=_MOST_BYTES, what="an input list", error=InvalidArgument)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        at = data.count(b"\n", 0, error.start) + 1
        raise InvalidArgument(
            f"{path}:{at}: byte {error.start} is no UTF-8; expected paths of raw files"
        ) from error
    listed = InputList()
    for number, line in enumerate(text.splitlines(), 1):
        where, words = f"{path}:{number}", line.split()
        if not words:
            continue
        if words[0][0] in "#%":
            listed.outputs += _outputs_of(where, line.strip(), outputs)
        else:
            listed.lines.append(InputLine(where, _files(where, words, inputs, path.parent)))
    if not listed.lines:
        raise InvalidArgument(f"{path}: names no files; expected a line for each inference")
    return listed


def _outputs_of(where: str, line: str, outputs: Sequence[str]) -> list[str]:
    """The outputs that a line names; a line with ``#`` that names no outputs is a comment."""
    words = line[1:].split()
    unknown = [word for word in words if word not in outputs]
    if line[0] == "#" and unknown:
        return []
    if unknown:
        raise InvalidArgument(f"{where}: {unknown[0]!r} is no output; the graph has {', '.join(outputs)}")
    return words


def _files(where: str, words: Sequence[str], inputs: Sequence[str], folder: Path) -> dict[str, Path]:
    pairs = [word.partition(":=") for word in words]
    named = [bool(mark) for _, mark, _ in pairs]
    if any(named) and not all(named):
        plain = next(word for word, has_name in zip(words, named, strict=True) if not has_name)
        raise InvalidArgument(f"{where}: {plain!r} has no name beside entries that have one; write name:={plain}")
    if not any(named):
        if len(words) != len(inputs):
            raise InvalidArgument(
                f"{where}: {len(words)} files; the graph has {len(inputs)} inputs ({', '.join(inputs)}): give a"
                " file for each, in this order, or name:=file"
            )
        return {name: _path_of(where, word, folder) for name, word in zip(inputs, words, strict=True)}
    files: dict[str, Path] = {}
    for name, _, file in pairs:
        if name not in inputs:
            hint = did_you_mean(name, inputs, form=repr) or f"the graph has {', '.join(inputs)}"
            raise InvalidArgument(f"{where}: {name!r} is no input; {hint}")
        if name in files:
            raise InvalidArgument(f"{where}: input {name!r} comes twice")
        files[name] = _path_of(where, file, folder)
    missing = [name for name in inputs if name not in files]
    if missing:
        raise InvalidArgument(f"{where}: there is no file for input {missing[0]!r}; each line needs all inputs")
    return files


def _path_of(where: str, file: str, folder: Path) -> Path:
    """A path counts from the working folder, or from the folder of the list: lists are moved with their files."""
    if not file:
        raise InvalidArgument(f"{where}: a name without a file; expected name:=file")
    for path in (Path(file), folder / file):
        if path.exists():
            return path
    raise InvalidArgument(f"{where}: there is no file {file!r}, neither here nor in {str(folder)!r}")


# The inputs of executions: lines of an input list, read and put together, as often as they are asked for.

log = logging.getLogger(__name__)

Feeds = dict[str, Array]
_DEFAULT_MB = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Repetition:
    """How often lists are run: once, or until a number of inferences or seconds is done."""

    inferences: int | None = None
    duration_s: float | None = None


class InputCache:
    """Inputs that were read and are kept for the next time, up to a number of sets or bytes."""

    def __init__(self, sets: int | None, megabytes: int | None) -> None:
        self._sets = sets if sets is None or sets >= 0 else None
        self._left = (_DEFAULT_MB if megabytes is None else megabytes) * MIB
        self._held: dict[str, tuple[Feeds, int]] = {}

    def get(self, key: str) -> tuple[Feeds, int] | None:
        """The inputs that were kept for a line."""
        return self._held.get(key)

    def put(self, key: str, value: tuple[Feeds, int]) -> None:
        """Keep the inputs of a line, if there is room."""
        nbytes = sum(array.nbytes for array in value[0].values())
        if nbytes <= self._left and (self._sets is None or len(self._held) < self._sets):
            self._held[key] = value
            self._left -= nbytes


class InputFeed:
    """A list for one graph."""

    def __init__(
        self,
        lines: Sequence[InputLine],
        inputs: Mapping[str, TensorSpec],
        forms: Mapping[str, RawForm],
        *,
        batch: int,
        cache: InputCache,
    ) -> None:
        self._lines = lines
        self._inputs = inputs
        self._forms = forms
        self._batch = batch
        self._cache = cache

    def sets(self, wanted: Repetition, begin: float) -> Iterator[Feeds]:
        """Inputs of one execution after the other, until enough is done since ``begin`` (time.monotonic)."""
        count = 0
        while True:
            for feeds in self._once():
                if wanted.inferences is not None and count >= wanted.inferences:
                    return
                if wanted.duration_s is not None and time.monotonic() - begin >= wanted.duration_s:
                    return
                yield feeds
                count += 1
            if wanted.inferences is None and wanted.duration_s is None:
                return

    def _once(self) -> Iterator[Feeds]:
        """The list once: a line is an execution, or one element of its batch."""
        lines = iter(self._lines)
        for line in lines:
            feeds, parts = self._read(line)
            whole = self._parts()
            if parts == whole:
                yield feeds
                continue
            several = [feeds, *(self._element(other) for other in itertools.islice(lines, whole - 1))]
            if len(several) < whole:
                log.warning(
                    "%s: the last batch has %d of %d elements; the rest is zeros", line.where, len(several), whole
                )
            yield {
                name: self._joined(spec, [each[name] for each in several]) for name, spec in self._inputs.items()
            }

    def _parts(self) -> int:
        batches = {spec.shape[0] for spec in self._inputs.values() if spec.shape}
        return (batches.pop() if len(batches) == 1 else 1) * self._batch

    def _element(self, line: InputLine) -> Feeds:
        feeds, parts = self._read(line)
        if parts != 1:
            raise InvalidArgument(f"{line.where}: holds a whole batch; the lines before hold one element each")
        return feeds

    def _joined(self, spec: TensorSpec, arrays: Sequence[Array]) -> Array:
        whole = np.zeros((self._parts(), *spec.shape[1:]), spec.dtype.numpy)
        joined = np.concatenate(arrays)
        whole[: len(joined)] = joined
        return whole

    def _read(self, line: InputLine) -> tuple[Feeds, int]:
        known = self._cache.get(line.where)
        if known is not None:
            return known
        feeds, parts = {}, set()
        for name, spec in self._inputs.items():
            tensor_file = read_piece(line.files[name], line.where, spec, self._forms[name], self._batch)
            feeds[name] = tensor_file.array
            parts.add(tensor_file.parts)
        if len(parts) > 1:
            raise InvalidArgument(f"{line.where}: some files hold a whole batch and some one element of it")
        count = parts.pop() if parts else 1
        self._cache.put(line.where, (feeds, count))
        return feeds, count
