"""Tables that fit: one that is wider than the terminal goes on below, with its first column again."""

from __future__ import annotations

from collections.abc import Sequence

from rich import box
from rich.console import Console, Group
from rich.table import Table
from rich.text import Text

from openhtp.core.foreign_text import printable

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
        """What these columns need; words can be folded."""
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
    """A sheet without headings: what, and how much."""
    return TextTable(title, ("", ""))
