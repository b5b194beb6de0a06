"""Spans as a Gantt picture: SVG for documents, block characters for the terminal.

Both are functions of marks, so a saved trace draws the same picture as the run that made it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from openhtp.core.units import MIB
from openhtp.report.lanes import CLIENTS, kind_of
from openhtp.report.marks import Instant, Mark, Span

PALETTE = (
    "#3b82c4",
    "#e0803a",
    "#4aa564",
    "#c4527a",
    "#8b6fc0",
    "#b8952f",
    "#3aa6a6",
    "#8a6d5b",
    "#6b7f3a",
    "#c05656",
)
"""Colours of clients, in order of appearance; the timeline uses the same."""

_ROW = 26
_BAR = 18
_LEFT = 130
_TOP = 46
_MAX_SPANS = 20_000
_STYLE = (
    "<style>.lane{text-anchor:end;fill:#333}.rule{stroke:#e6e6e6}.tick{fill:#666;text-anchor:middle}"
    ".in{fill:#fff;text-anchor:middle;font-size:11px}</style>"
    '<defs><pattern id="wait" width="6" height="6" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><rect width="6" height="6" fill="#f1f1f1"/>'
    '<line x1="0" y1="0" x2="0" y2="6" stroke="#bbb" stroke-width="3"/></pattern></defs>'
)
_CELL_CHARACTERS = {"running": "█", "waiting": "░", "paused": "▒"}


def colours_of(marks: Iterable[Mark]) -> dict[str, str]:
    """A colour for each client, by the order in which their lanes appear."""
    names = dict.fromkeys(m.lane for m in marks if isinstance(m, Span) and kind_of(m.group) == CLIENTS)
    return {name: PALETTE[index % len(PALETTE)] for index, name in enumerate(names)}


def _lanes(spans: Sequence[Span]) -> list[tuple[str, str]]:
    """(group, lane) pairs: groups in order of appearance, lanes sorted inside unit groups."""
    groups: dict[str, dict[str, None]] = {}
    for span in spans:
        groups.setdefault(span.group, {}).setdefault(span.lane)
    lanes: list[tuple[str, str]] = []
    for group, names in groups.items():
        ordered = list(names) if kind_of(group) == CLIENTS else sorted(names, key=lambda name: (len(name), name))
        lanes.extend((group, name) for name in ordered)
    return lanes


def marks_to_svg(
    marks: Sequence[Mark],
    *,
    title: str = "",
    unit: str = "us",
    unit_ns: int = 1_000,
    vtcm_bytes: int = 0,
    width: int = 1000,
) -> str:
    """Draw spans as an SVG picture. The VTCM lane is drawn as a map: address upwards, time to the right."""
    spans = [mark for mark in marks if isinstance(mark, Span)][:_MAX_SPANS]
    first = min((span.start_ns for span in spans), default=0)
    last = max((span.end_ns for span in spans), default=1)
    scale = (width - _LEFT - 20) / max(1, last - first)
    colours = colours_of(marks)
    parts: list[str] = []
    y = float(_TOP)
    for group, lane in _lanes(spans):
        mine = [span for span in spans if (span.group, span.lane) == (group, lane)]
        height = _ROW
        is_map = bool(vtcm_bytes) and mine[0].category == "vtcm"
        if is_map:
            height = max(_ROW, round(vtcm_bytes / MIB) * 12)
        parts.append(f'<text x="{_LEFT - 10}" y="{y + height / 2 + 4:.1f}" class="lane">{escape(lane)}</text>')
        parts.append(f'<line x1="{_LEFT}" x2="{width - 20}" y1="{y + height}" y2="{y + height}" class="rule"/>')
        for span in mine:
            x = _LEFT + (span.start_ns - first) * scale
            w = max(0.5, span.duration_ns * scale)
            parts.append(_bar(span, lane, colours, x, w, y, height, vtcm_bytes if is_map else 0))
        parts.extend(_marks(marks, group, lane, first, scale, y))
        y += height + 4
    axis = _axis(first, last, scale, y, unit, unit_ns)
    total = y + 34
    heading = escape(f"{title} (modelled)" if title else "modelled")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{total:.0f}" '
        f'viewBox="0 0 {width} {total:.0f}" font-family="system-ui, sans-serif" font-size="12">'
        + _STYLE
        + f'<rect width="100%" height="100%" fill="#fff"/><text x="{_LEFT}" y="24" font-size="15">{heading}</text>'
        + "".join(parts)
        + axis
        + "</svg>\n"
    )


def svg_to_png(svg: str) -> bytes:
    """The same picture in pixels, for whoever cannot show SVG."""
    import resvg_py

    return bytes(resvg_py.svg_to_bytes(svg_string=svg))


def _bar(
    span: Span, lane: str, colours: dict[str, str], x: float, w: float, y: float, height: float, vtcm: int
) -> str:
    is_client = kind_of(span.group) == CLIENTS
    owner = lane if is_client else span.name
    fill = colours.get(owner, "#888")
    top, bar, opacity = y + (height - _BAR) / 2, float(_BAR), 1.0
    if span.category == "waiting":
        fill = "url(#wait)"
    elif span.category == "paused":
        opacity = 0.3
    elif vtcm and span.args:
        share = float(span.args["bytes"]) / vtcm
        start = float(span.args["start_bytes"]) / vtcm
        bar = height * share
        top = y + height * (1 - start - share)
    tip = escape(f"{owner}: {span.category or span.name}")
    text = span.category if is_client else span.name
    box = f'x="{x:.2f}" y="{top:.1f}" width="{w:.2f}" height="{bar:.1f}"'
    rect = f'<rect {box} rx="2" fill="{fill}" opacity="{opacity}">'
    rect += f"<title>{tip}</title></rect>"
    if w > 7 * len(text) and span.category not in ("waiting", "paused"):
        rect += f'<text x="{x + w / 2:.1f}" y="{top + bar / 2 + 4:.1f}" class="in">{escape(text)}</text>'
    return rect


def _marks(marks: Sequence[Mark], group: str, lane: str, first: int, scale: float, y: float) -> list[str]:
    """A small wedge where a client was asked to yield."""
    wedges = []
    for mark in marks:
        if isinstance(mark, Instant) and (mark.group, mark.lane) == (group, lane):
            x = _LEFT + (mark.at_ns - first) * scale
            points = f"{x - 4:.1f},{y} {x + 4:.1f},{y} {x:.1f},{y + 7}"
            wedges.append(
                f'<polygon points="{points}" fill="#b3261e"><title>{escape(mark.name)}</title></polygon>'
            )
    return wedges


def _axis(first: int, last: int, scale: float, y: float, unit: str, unit_ns: int) -> str:
    parts = []
    for tick in ticks(first / unit_ns, last / unit_ns):
        x = _LEFT + (tick * unit_ns - first) * scale
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{y}" stroke="#00000012"/>')
        parts.append(f'<text x="{x:.1f}" y="{y + 16}" class="tick">{tick:g}</text>')
    parts.append(f'<text x="{_LEFT - 10}" y="{y + 16}" class="lane">{escape(unit)}</text>')
    return "".join(parts)


def ticks(first: float, last: float, about: int = 10) -> list[float]:
    """Round numbers between two values, about so many."""
    span = max(last - first, 1e-9)
    step = 10.0**-9
    for power in range(-9, 16):
        for digit in (1, 2, 5):
            step = digit * 10.0**power
            if span / step <= about:
                start = -(-first // step)
                return [round((start + i) * step, 9) for i in range(int((last - start * step) / step + 1e-9) + 1)]
    return [first, last]


def marks_to_text(marks: Sequence[Mark], *, unit: str = "us", unit_ns: int = 1_000, width: int = 72) -> str:
    """Draw client spans with block characters; each column is an equal part of the time.

    A column shows the phase that fills most of it. Clients of further cores are named with their core.
    """
    spans = [m for m in marks if isinstance(m, Span) and kind_of(m.group) == CLIENTS]
    first = min((span.start_ns for span in spans), default=0)
    last = max((span.end_ns for span in spans), default=1)
    column_ns = max(1e-9, (last - first) / width)
    lanes = {(span.group, span.lane): span.group.replace(CLIENTS, span.lane) for span in spans}
    margin = max((len(name) for name in lanes.values()), default=0)
    lines = []
    for lane, name in lanes.items():
        cells: list[dict[str, float]] = [{} for _ in range(width)]
        for span in spans:
            if (span.group, span.lane) == lane:
                _fill(cells, span, first, column_ns)
        row = "".join(_CELL_CHARACTERS.get(max(c, key=lambda k: c[k]), "?") if c else " " for c in cells)
        lines.append(f"{name:>{margin}} │{row}│")
    left, right = f"{first / unit_ns:g}", f"{last / unit_ns:g} {unit} (modelled)"
    lines.append(f"{'':>{margin}}  {left}{right:>{max(1, width - len(left))}}")
    lines.append(f"{'':>{margin}}  █ running  ░ waiting  ▒ paused")
    return "\n".join(lines)


def _fill(cells: list[dict[str, float]], span: Span, first: int, column_ns: float) -> None:
    start = (span.start_ns - first) / column_ns
    end = (span.end_ns - first) / column_ns
    for column in range(int(start), min(len(cells), int(end) + 1)):
        inside = min(end, column + 1) - max(start, column)
        if inside > 1e-9:
            cells[column][span.category] = cells[column].get(span.category, 0.0) + inside
