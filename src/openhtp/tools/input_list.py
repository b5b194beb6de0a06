"""Input lists: which raw files each inference reads, one line each.

::

    #output_1 output_2          only these outputs are written (so does a line that begins with %)
    # anything else             a comment
    x:=a/x.raw mask:=a/m.raw    by name
    b/x.raw b/m.raw             in the order of the graph's inputs
"""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from openhtp.core.errors import InvalidArgument
from openhtp.core.files import read_file

_MOST_BYTES = 64 << 20
NO_RUN = "__"
"""Stands for the list of a graph that is not to be run."""


@dataclass(frozen=True, slots=True)
class InputLine:
    """One inference: the raw file of each input, and where it says so (``list.txt:3``)."""

    where: str
    files: dict[str, Path]


@dataclass(slots=True)
class InputList:
    """The lines of a list, and the outputs that it names; none if it leaves them open."""

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
    """Read a list for a graph with these inputs and outputs. What is wrong is named with its line."""
    data = read_file(path, most=_MOST_BYTES, what="an input list", error=InvalidArgument)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        at = data.count(b"\n", 0, error.start) + 1
        raise InvalidArgument(
            f"{path}:{at}: byte {error.start} is no UTF-8; expected paths of raw files"
        ) from error
    found = InputList()
    for number, line in enumerate(text.splitlines(), 1):
        where, words = f"{path}:{number}", line.split()
        if not words:
            continue
        if words[0][0] in "#%":
            found.outputs += _outputs_of(where, line.strip(), outputs)
        else:
            found.lines.append(InputLine(where, _files(where, words, inputs, path.parent)))
    if not found.lines:
        raise InvalidArgument(f"{path}: names no files; expected a line for each inference")
    return found


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
        return {name: _place(where, word, folder) for name, word in zip(inputs, words, strict=True)}
    files: dict[str, Path] = {}
    for name, _, file in pairs:
        if name not in inputs:
            near = difflib.get_close_matches(name, inputs, 1)
            hint = f"did you mean {near[0]!r}?" if near else f"the graph has {', '.join(inputs)}"
            raise InvalidArgument(f"{where}: {name!r} is no input; {hint}")
        if name in files:
            raise InvalidArgument(f"{where}: input {name!r} comes twice")
        files[name] = _place(where, file, folder)
    missing = [name for name in inputs if name not in files]
    if missing:
        raise InvalidArgument(f"{where}: there is no file for input {missing[0]!r}; each line needs all inputs")
    return files


def _place(where: str, file: str, folder: Path) -> Path:
    """A file counts from where the command runs, or else from the list, as lists are moved with their files."""
    if not file:
        raise InvalidArgument(f"{where}: a name without a file; expected name:=file")
    for place in (Path(file), folder / file):
        if place.exists():
            return place
    raise InvalidArgument(f"{where}: there is no file {file!r}, neither here nor in {str(folder)!r}")
