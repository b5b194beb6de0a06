"""Spans as a Gantt picture: SVG for documents, block characters for the terminal.

Both are functions of marks, so a saved trace draws the same picture as the run that made it.
"""

from __future__ import annotations

import logging
import math
from collections.abc import Iterable, Sequence

from openhtp.core.foreign_text import printable
from openhtp.core.units import MIB, number_in_words
from openhtp.report.lanes import CLIENTS, DEADLINE, MISSED, YIELD, Instant, Mark, TimelineSpan, kind_of
from openhtp.report.page import escaped

log = logging.getLogger(__name__)

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
# Renderers outside of browsers know no generic family; one of these is nearly everywhere.
FONTS = "system-ui, DejaVu Sans, Liberation Sans, Noto Sans, Arial, sans-serif"
_FENCE = 14
_NARROW = 2  # pixels
_LETTER = 7  # about what one takes, in pixels
_SIGNS = {
    YIELD: ("#7a5c00", 14, "-4,0 4,0 0,7", "asked to yield"),
    DEADLINE: ("#333", 4, "-.75,1 .75,1 .75,25 -.75,25", "deadline"),
    MISSED: ("#c62828", 4, "-1,-2 8,1 1,4 1,26 -1,26", "missed deadline"),
}
"""Of each kind of moment: colour, least distance of two in pixels, outline, words."""
_STYLE = (
    "<style>.lane{text-anchor:end;fill:#333}.rule{stroke:#e6e6e6}.tick{fill:#666;text-anchor:middle}"
    ".in{fill:#fff;text-anchor:middle;font-size:11px}</style>"
    '<defs><pattern id="wait" width="6" height="6" patternUnits="userSpaceOnUse" '
    'patternTransform="rotate(45)"><rect width="6" height="6" fill="#f1f1f1"/>'
    '<line x1="0" y1="0" x2="0" y2="6" stroke="#bbb" stroke-width="3"/></pattern></defs>'
)
_PHASES = ("running", "waiting", "paused")
_EIGHTHS = " ▁▂▃▄▅▆▇█"
_WAITS = {"waiting": "░", "paused": "▒"}
_SHORT_WAIT = "·"
_MISS = "!"
_LONGEST_NAME = 20


def colours_of(marks: Iterable[Mark]) -> dict[str, str]:
    """A colour for each client, by the order in which their lanes appear."""
    names = dict.fromkeys(m.lane for m in marks if isinstance(m, TimelineSpan) and kind_of(m.group) == CLIENTS)
    return {name: PALETTE[index % len(PALETTE)] for index, name in enumerate(names)}


def _lanes(spans: Sequence[TimelineSpan]) -> list[tuple[str, str]]:
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
    """Draw spans as an SVG picture. The VTCM lane is drawn as a map: address upwards, time to the right.

    Of spans narrower than two pixels, each column of pixels shows which share of its time they take, stacked.
    """
    spans = [mark for mark in marks if isinstance(mark, TimelineSpan)]
    first = min((span.start_ns for span in spans), default=0)
    last = max((span.end_ns for span in spans), default=1)
    scale = (width - _LEFT - 20) / max(1, last - first)
    colours = colours_of(marks)
    instants: dict[tuple[str, str], list[Instant]] = {}
    for mark in marks:
        if isinstance(mark, Instant):
            instants.setdefault((mark.group, mark.lane), []).append(mark)
    by_lane: dict[tuple[str, str], list[TimelineSpan]] = {}
    for span in spans:
        by_lane.setdefault((span.group, span.lane), []).append(span)
    parts: list[str] = []
    y = float(_TOP)
    for group, lane in _lanes(spans):
        mine = by_lane[group, lane]
        height = _ROW
        is_map = bool(vtcm_bytes) and mine[0].category == "vtcm"
        if is_map:
            height = max(_ROW, round(vtcm_bytes / MIB) * 12)
        parts.append(_label(lane, y + height / 2 + 4))
        parts.append(f'<line x1="{_LEFT}" x2="{width - 20}" y1="{y + height}" y2="{y + height}" class="rule"/>')
        map_bytes = vtcm_bytes if is_map else 0
        for span in mine:
            x, w = _LEFT + (span.start_ns - first) * scale, span.duration_ns * scale
            if w >= _NARROW:
                parts.append(_bar(span, lane, colours, x, w, y, height, map_bytes))
        narrow = [span for span in mine if span.duration_ns * scale < _NARROW]
        parts.extend(_shares(narrow, lane, colours, first, scale, y, height, map_bytes))
        parts.extend(_marks(instants.get((group, lane), []), first, last, scale, y))
        y += height + 4
    axis = _axis(first, last, scale, y, unit, unit_ns)
    legend = _legend({mark.category for mine in instants.values() for mark in mine}, y + 40)
    total = y + 52
    heading = escaped(f"{title} (modelled)" if title else "modelled")
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{total:.0f}" '
        f'viewBox="0 0 {width} {total:.0f}" font-family="{FONTS}" font-size="12">'
        + _STYLE
        + f'<rect width="100%" height="100%" fill="#fff"/><text x="{_LEFT}" y="24" font-size="15">{heading}</text>'
        + "".join(parts)
        + axis
        + legend
        + "</svg>\n"
    )


def svg_to_png(svg: str) -> bytes:
    """An SVG picture in pixels, for viewers without SVG."""
    import resvg_py

    def render(text: str) -> bytes:
        return bytes(resvg_py.svg_to_bytes(svg_string=text))

    letter = f'<svg xmlns="http://www.w3.org/2000/svg" width="9" height="9" font-family="{FONTS}">{{}}</svg>'
    if "<text" in svg and render(letter.format("")) == render(letter.format('<text y="9">x</text>')):
        log.warning("no font was found, so the picture has no words: install fonts-dejavu-core, or write SVG")
    return render(svg)


def _bar(
    span: TimelineSpan, lane: str, colours: dict[str, str], x: float, w: float, y: float, height: float, vtcm: int
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
    tip = escaped(f"{owner}: {span.category or span.name}")
    text = span.category if is_client else span.name
    box = f'x="{x:.2f}" y="{top:.1f}" width="{w:.2f}" height="{bar:.1f}"'
    rect = f'<rect {box} rx="2" fill="{fill}" opacity="{opacity}">'
    rect += f"<title>{tip}</title></rect>"
    text = cut_to_fit(text, w - 6)
    if text and span.category not in ("waiting", "paused"):
        rect += f'<text x="{x + w / 2:.1f}" y="{top + bar / 2 + 4:.1f}" class="in">{escaped(text)}</text>'
    return rect


def _shares(
    spans: Sequence[TimelineSpan],
    lane: str,
    colours: dict[str, str],
    first: int,
    scale: float,
    y: float,
    height: float,
    vtcm: int,
) -> list[str]:
    """What narrow spans take of each column of pixels: a lane must look as busy as it is."""
    columns: dict[int, dict[tuple[str, str], float]] = {}
    for span in spans:
        is_client = kind_of(span.group) == CLIENTS
        if is_client and span.category not in _PHASES:
            continue  # a step lies within a run, which counts already
        kind = (lane, span.category) if is_client else (span.name, "running")
        weight = float(span.args["bytes"]) / vtcm if vtcm and span.args else 1.0
        start, end = (span.start_ns - first) * scale, (span.end_ns - first) * scale
        for column in range(int(start), int(end) + 1):
            inside = min(end, column + 1) - max(start, column)
            if inside > 0:
                shares = columns.setdefault(column, {})
                shares[kind] = shares.get(kind, 0.0) + inside * weight
    full, base = (height, y + height) if vtcm else (float(_BAR), y + (height + _BAR) / 2)
    drawn = []
    for column, shares in sorted(columns.items()):
        bottom = base
        for (owner, phase), share in sorted(shares.items(), key=lambda item: _PHASES.index(item[0][1])):
            bar = full * min(1.0, share)
            fill = "url(#wait)" if phase == "waiting" else colours.get(owner, "#888")
            opacity = ' opacity="0.3"' if phase == "paused" else ""
            box = f'x="{_LEFT + column}" y="{bottom - bar:.2f}" width="1" height="{bar:.2f}"'
            drawn.append(f'<rect {box} fill="{fill}"{opacity}/>')
            bottom -= bar
    return drawn


def _label(lane: str, y: float) -> str:
    text = cut_to_fit(lane, _LEFT - 14)
    tip = "" if text == lane else f"<title>{escaped(lane)}</title>"
    return f'<text x="{_LEFT - 10}" y="{y:.1f}" class="lane">{escaped(text)}{tip}</text>'


def cut_to_fit(text: str, room: float) -> str:
    """As much of a text as there is room for, with an ellipsis; nothing if that would say nothing."""
    text = printable(text)
    letters = int(room / _LETTER)
    if len(text) <= letters:
        return text
    return text[: letters - 1].rstrip() + "…" if letters > 3 else ""


def _marks(instants: Sequence[Instant], first: int, last: int, scale: float, y: float) -> list[str]:
    """The signs in a lane; of signs that would touch each other only the first."""
    drawn = []
    for category, (colour, gap, outline, _) in _SIGNS.items():
        mine = sorted(
            (m for m in instants if m.category == category and first <= m.at_ns <= last), key=lambda m: m.at_ns
        )
        if category == DEADLINE and len(mine) * _FENCE > (last - first) * scale:
            continue  # a fence of kept deadlines would hide the lane
        last_x = -float(gap)
        for mark in mine:
            x = (mark.at_ns - first) * scale
            if x - last_x >= gap:
                last_x = x
                drawn.append(_sign(_LEFT + x, y, colour, outline, mark.name))
    return drawn


def _sign(x: float, y: float, colour: str, outline: str, name: str) -> str:
    shape = f'<polygon points="{outline}" transform="translate({x:.1f} {y:.1f})" fill="{colour}">'
    return f"{shape}<title>{escaped(name)}</title></polygon>"


def _legend(categories: Iterable[str], y: float) -> str:
    """The meaning of colours and signs, in one line."""
    parts, x = [], float(_LEFT)

    def entry(sign: str, words: str) -> None:
        nonlocal x
        parts.append(sign + f'<text x="{x + 22:.1f}" y="{y:.1f}" fill="#666" font-size="11">{words}</text>')
        x += 36 + 6.2 * len(words)

    for words, fill, opacity in (("running", "#888", 1), ("waiting", "url(#wait)", 1), ("paused", "#888", 0.3)):
        box = f'x="{x:.1f}" y="{y - 9:.1f}" width="16" height="10" rx="2"'
        entry(f'<rect {box} fill="{fill}" opacity="{opacity}"/>', words)
    for category, (colour, _, outline, words) in _SIGNS.items():
        if category in categories:
            scaled = f'transform="translate({x + 8:.1f} {y - 9:.1f}) scale({0.45 if category != YIELD else 1})"'
            entry(f'<polygon points="{outline}" {scaled} fill="{colour}"/>', words)
    return "".join(parts)


def _axis(first: int, last: int, scale: float, y: float, unit: str, unit_ns: int) -> str:
    parts = []
    for tick in ticks(first / unit_ns, last / unit_ns):
        x = _LEFT + (tick * unit_ns - first) * scale
        parts.append(f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{y}" stroke="#00000012"/>')
        parts.append(f'<text x="{x:.1f}" y="{y + 16}" class="tick">{number_in_words(tick)}</text>')
    parts.append(f'<text x="{_LEFT - 10}" y="{y + 16}" class="lane">{escaped(unit)}</text>')
    return "".join(parts)


def ticks(first: float, last: float, about: int = 10) -> list[float]:
    """Round numbers between two values; their count is near ``about``."""
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

    A block is as high as the client was busy in its part; it is hatched where it waited or was paused for at
    least half of it instead, and a dot where it only waited for less.
    Clients of further cores are named with their core; names take at most 20 characters and 3 for the frame.
    """
    spans = [m for m in marks if isinstance(m, TimelineSpan) and kind_of(m.group) == CLIENTS]
    first = min((span.start_ns for span in spans), default=0)
    last = max((span.end_ns for span in spans), default=1)
    column_ns = max(1e-9, (last - first) / width)
    rows: dict[tuple[str, str], list[dict[str, float]]] = {}
    for span in spans:
        cells = rows.setdefault((span.group, span.lane), [{} for _ in range(width)])
        _fill(cells, span, first, column_ns)
    misses = [m for m in marks if isinstance(m, Instant) and m.category == MISSED and first <= m.at_ns <= last]
    for miss in misses:
        if (miss.group, miss.lane) in rows:
            rows[miss.group, miss.lane][min(width - 1, int((miss.at_ns - first) / column_ns))][MISSED] = 1.0
    names = {lane: cut_to_fit(lane[0].replace(CLIENTS, lane[1]), _LONGEST_NAME * _LETTER) for lane in rows}
    margin = max((len(name) for name in names.values()), default=0)
    pictures = {lane: "".join(map(_character, cells)) for lane, cells in rows.items()}
    lines = [f"{names[lane]:>{margin}} │{picture}│" for lane, picture in pictures.items()]
    left, right = number_in_words(first / unit_ns), f"{number_in_words(last / unit_ns)} {unit} (modelled)"
    lines.append(f"{'':>{margin}}  {left}{right:>{max(1, width - len(left))}}")
    has_short = any(_SHORT_WAIT in picture for picture in pictures.values())
    short = f"  {_SHORT_WAIT} less than half of it" if has_short else ""
    missed = f"  {_MISS} missed" if misses else ""
    lines.append(f"█ running  ▁ partly  ░ waiting  ▒ paused{short}{missed}")
    return "\n".join(lines)


def _character(cell: dict[str, float]) -> str:
    """The character of one column: a miss first, then what took most of its time."""
    if MISSED in cell:
        return _MISS
    running = cell.get("running", 0.0)
    wait = max(_WAITS, key=lambda phase: cell.get(phase, 0.0))
    share = cell.get(wait, 0.0)
    if share > running and share >= 1 / 2 - 1e-6:
        return _WAITS[wait]
    if not running and share:
        return _SHORT_WAIT
    return _EIGHTHS[math.ceil(min(1.0, running) * 8 - 1e-6)]


def _fill(cells: list[dict[str, float]], span: TimelineSpan, first: int, column_ns: float) -> None:
    start = (span.start_ns - first) / column_ns
    end = (span.end_ns - first) / column_ns
    for column in range(int(start), min(len(cells), int(end) + 1)):
        inside = min(end, column + 1) - max(start, column)
        if inside > 1e-9:
            cells[column][span.category] = cells[column].get(span.category, 0.0) + inside
