"""What all commands share: where text goes, how files are written, and how errors end a command.

All text that a command shows goes through the consoles here; a test looks for what does not. Names in it may be
anybody's: nothing in them reaches the terminal as more than characters (``core/foreign_text.py``).
"""

from __future__ import annotations

import codecs
import contextlib
import json
import logging
import os
import sys
import time
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from types import TracebackType
from typing import Annotated, Any, NoReturn

import typer
from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType
from rich.segment import Segment
from rich.table import Table
from rich.text import Text

from openhtp.core import files
from openhtp.core.errors import ExecutionError, QnnError
from openhtp.core.foreign_text import PrintableFormatter, printable

STANDARD_OUTPUT = Path("-")
BROKEN_PIPE, INTERRUPTED = 141, 130  # 128 and the number of the signal, as shells count

# One character each, so that tables and pictures keep their columns.
_PLAIN = str.maketrans("█▇▆▅▄▃▂▁░▒▓·│─━╸╺…→•–—", "#====___.~=.|----.>*--")


def _plainly(error: UnicodeError) -> tuple[str, int]:
    """Replacements for characters that the terminal's encoding does not have."""
    if not isinstance(error, UnicodeEncodeError):
        raise error
    text = error.object[error.start : error.end].translate(_PLAIN)
    return text.encode(error.encoding, "replace").decode(error.encoding), error.end


class _Console(Console):
    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Called by rich for everything it shows; only rich's own control codes remain control codes."""
        for segment in super().render(renderable, options):
            yield segment if segment.control else Segment(printable(segment.text, keep="\n"), segment.style)

    def on_broken_pipe(self) -> NoReturn:
        """Called by rich, which would end with status 1."""
        end_of_pipe()


console = _Console()
"""For results. Nothing is printed here if ``--json -`` has the standard output for itself."""

progress_console = _Console(stderr=True)
"""For errors, and for progress bars."""


def settle_streams() -> None:
    """Let any text be printed, whatever the encoding of the terminal or pipe, and let no text control it."""
    codecs.register_error("openhtp.plainly", _plainly)
    for stream in (sys.stdout, sys.stderr):
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="openhtp.plainly")
    if logging.lastResort is not None:
        logging.lastResort.setFormatter(PrintableFormatter())
    sys.excepthook = _show_traceback


def _show_traceback(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
    """A bug of ours; its message may contain a user's name all the same."""
    sys.stderr.write(printable("".join(traceback.format_exception(kind, error, trace)), keep="\n"))


_process_began_s: list[float] = []


def note_process_start() -> None:
    """From here on the process is one command: times of the command count from the start of the process."""
    _process_began_s[:] = [time.monotonic() - _process_age_s()]


def _process_age_s() -> float:
    """Time since the process was started, before Python was; 0 where the kernel does not say."""
    with contextlib.suppress(OSError, ValueError, IndexError):
        # After the name, which stands in parentheses and may hold anything, the 20th field is the start, in ticks.
        fields = Path("/proc/self/stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        began_s = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - began_s)
    return 0.0


def command_began_s() -> float:
    """When the command began, on the clock of ``time.monotonic``; now, if it is called within another program."""
    return _process_began_s[0] if _process_began_s else time.monotonic()


def end_of_pipe() -> NoReturn:
    """The reader of our output has closed it: end, and say nothing about the rest."""
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # the flush at exit goes there
    raise SystemExit(BROKEN_PIPE)


def _own_standard_output(path: Path | None) -> Path | None:
    console.quiet = path == STANDARD_OUTPUT
    return path


JsonFile = Annotated[
    Path | None,
    typer.Option(
        "--json",
        help="Also write the result to this file, as JSON (-: nothing but that).",
        callback=_own_standard_output,
    ),
]


@contextlib.contextmanager
def errors_reported(status_of: Callable[[QnnError | OSError], int] = lambda error: 2) -> Iterator[None]:
    """Turn an error into one red line and an exit code; anything else is a bug and keeps its traceback."""
    try:
        yield
    except BrokenPipeError:
        raise
    except (QnnError, OSError) as error:
        complain(f"error: {error}", "red")
        raise typer.Exit(status_of(error)) from error
    except Exception as error:
        # What runs on the CPU is refused by ONNX Runtime, whose errors have no common class.
        if not type(error).__module__.startswith("onnxruntime."):
            raise
        refusal = ExecutionError(f"ONNX Runtime cannot run the model: {error}")
        complain(f"error: {refusal}", "red")
        raise typer.Exit(status_of(refusal)) from error


def show(sheet: TextTable) -> None:
    """Print a table as wide as the terminal is."""
    console.print(sheet.fitted(console))


def say(text: str, style: str | None = None, *, folded: bool = True) -> None:
    """Print a sentence. It may hold names that users gave: nothing in it is markup, or another line.

    A sentence that is not ``folded`` stays on one line, to be copied. So does every one in a pipe or a file,
    which has no width unless ``COLUMNS`` says so.
    """
    whole = not folded or _has_no_width()
    console.print(printable(text), style=style, markup=False, highlight=False, soft_wrap=whole)


def say_lines(text: str, style: str | None = None) -> None:
    """Print a text whose line breaks are ours."""
    console.print(text, style=style, markup=False, highlight=False, soft_wrap=_has_no_width())


def _has_no_width() -> bool:
    """Whether results go to a pipe or a file, and nobody says how wide that is."""
    return not console.is_terminal and "COLUMNS" not in os.environ


def complain(text: str, style: str) -> None:
    """Print one line about what is wrong, beside the results."""
    # Other libraries report errors in several lines.
    line = printable(" ".join(text.splitlines()))
    progress_console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)


def write_file(path: Path, content: str | bytes) -> None:
    """Write a file and say so."""
    files.write_file(path, content.encode() if isinstance(content, str) else content)
    confirm_written(path)


def confirm_written(path: Path, detail: str = "") -> None:
    """Say that a file is there; the path in one piece, to be copied."""
    say(f"wrote {path} {detail}".rstrip(), "dim", folded=False)


def write_json(path: Path | None, value: dict[str, Any]) -> None:
    """Write a result if it was asked for."""
    if path is None:
        return
    text = json.dumps(value, indent=2) + "\n"
    if path == STANDARD_OUTPUT:
        sys.stdout.write(text)
        sys.stdout.flush()
    else:
        write_file(path, text)


# Tables that fit: one that is wider than the terminal goes on below, with its first column again.


_ANY_WIDTH = 10_000
_FOLDED = 24


class TextTable:
    """A title, columns, and rows of plain text; a column that holds words is on the left, numbers on the right.

    ``words`` names the columns with words; their cells may be folded, those of numbers never are.
    """

    def __init__(self, title: str, columns: Sequence[str], words: Sequence[str] = ()) -> None:
        self._title = title
        self._columns = list(columns)
        self._words = {columns[0], *words}
        self._rows: list[list[Text]] = []
        self.note = ""

    def add(self, *cells: str | Text) -> None:
        """One more row. Names that users gave are no markup, and have no lines of their own."""
        self._rows.append([cell if isinstance(cell, Text) else Text(printable(cell)) for cell in cells])

    def fitted(self, console: Console) -> Group:
        """The tables, as many columns in each as the terminal has room for."""
        parts: list[list[int]] = []
        for column in range(1, len(self._columns)):
            if parts and self._width(console, [0, *parts[-1], column]) <= console.width:
                parts[-1].append(column)
            else:
                parts.append([column])
        lines: list[Text | Table] = [Text(printable(self._title), style="bold")] if self._title else []
        for part in parts or [[]]:
            lines += [self._table([0, *part]), Text()]
        if self.note:
            lines[-1] = Text(printable(self.note) + "\n", style="dim")
        return Group(*lines)

    def _width(self, console: Console, columns: Sequence[int]) -> int:
        """The width that these columns need; words can be folded."""
        wide = console.options.update(width=_ANY_WIDTH)
        return console.measure(self._table(columns, words_at_most=_FOLDED), options=wide).maximum

    def _table(self, columns: Sequence[int], words_at_most: int | None = None) -> Table:
        table = Table(
            box=box.SIMPLE_HEAD,
            show_edge=False,
            pad_edge=False,
            collapse_padding=True,
            show_header=any(self._columns),
        )
        for column in columns:
            name = self._columns[column]
            if name in self._words:
                table.add_column(Text(name), overflow="fold", max_width=words_at_most)
            else:
                table.add_column(Text(name), justify="right", no_wrap=True)
        for row in self._rows:
            table.add_row(*(row[column] for column in columns))
        return table


def figures(title: str) -> TextTable:
    """A sheet without headings: names and values."""
    return TextTable(title, ("", ""))
