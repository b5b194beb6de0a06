"""Process domains as a picture: one bar each, as long as its address space, with what lies in it."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from openhtp.core.units import bytes_in_words
from openhtp.memory.planning import Act, DomainPlan, Hold, LetGo, Load, MemoryPlan, Outcome
from openhtp.report.gantt import PALETTE

_LEFT, _WIDTH, _ROW, _BAR, _TOP = 60, 760, 64, 34, 16
_OPACITY = {"weights": 1.0, "spill_fill": 0.65, "io": 0.4, "reserve": 0.2}
_LETTER = 7
_FONTS = "system-ui, DejaVu Sans, Liberation Sans, Noto Sans, Arial, sans-serif"


def act_in_words(act: Act) -> str:
    """What is done, in words."""
    if isinstance(act, LetGo):
        return "free the dummy buffers"
    if isinstance(act, Hold):
        return f"hold a dummy buffer in {act.context}"
    return f"load {act.context}" if isinstance(act, Load) else f"map I/O of {act.context}"


def domains_to_svg(plan: MemoryPlan) -> str:
    """The picture. Weights, spill-fill and I/O of a context have one colour, the latter two paler."""
    colours = {context.name: PALETTE[index % len(PALETTE)] for index, context in enumerate(plan.contexts)}
    height = _TOP + _ROW * len(plan.domains)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDTH + 20} {height}"'
        f' font-family="{_FONTS}" font-size="12">'
    ]
    for index, domain in enumerate(plan.domains):
        parts += _bar(domain, _TOP + index * _ROW, colours)
    return "".join([*parts, "</svg>"])


def _bar(domain: DomainPlan, y: int, colours: dict[str, str]) -> list[str]:
    free = f"{bytes_in_words(domain.left)} of {bytes_in_words(domain.limit)} left"
    parts = [
        f'<text x="{_LEFT - 8}" y="{y + 21}" text-anchor="end">PD {domain.number}</text>',
        f'<rect x="{_LEFT}" y="{y}" width="{_WIDTH}" height="{_BAR}" fill="#f1f1f1" stroke="#bbb"/>',
        f'<text x="{_LEFT + _WIDTH}" y="{y + _BAR + 14}" text-anchor="end" fill="#666">{free}</text>',
    ]
    x = float(_LEFT)
    for holding in domain.holdings:
        width = _WIDTH * holding.nbytes / domain.limit
        fill = colours.get(holding.owner, "#999")
        words = f"{holding.owner}: {holding.use.replace('_', '-')} {bytes_in_words(holding.nbytes)}"
        parts.append(
            f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_BAR}" fill="{fill}" stroke="#fff"'
            f' fill-opacity="{_OPACITY[holding.use]}"><title>{escape(words)}</title></rect>'
        )
        letters = int(width / _LETTER) - 1
        if letters >= 2:
            label = holding.owner if len(holding.owner) <= letters else f"{holding.owner[: letters - 1]}…"
            dark = _OPACITY[holding.use] < 0.5
            parts.append(
                f'<text x="{x + width / 2:.1f}" y="{y + 21}" text-anchor="middle"'
                f' fill="{"#333" if dark else "#fff"}">{escape(label)}</text>'
            )
        x += width
    return parts


_STYLE = (
    f"body{{font:15px/1.4 {_FONTS};max-width:900px;margin:2em auto;padding:0 1em}}"
    "td{padding:2px 12px 2px 0;vertical-align:top}.n{text-align:right;white-space:nowrap}.bad{color:#c62828}"
)


def plan_to_html(plan: MemoryPlan, *, title: str, words: Sequence[str] = ()) -> str:
    """A page with the picture, what was done in which order, and advice."""
    advice = "".join(f"<li>{escape(line)}</li>" for line in words)
    verdict = "Everything fits." if plan.fits else "Not everything fits."
    return (
        "<!doctype html><meta charset=utf-8><meta name=viewport content='width=device-width'>"
        f"<title>{escape(title)}</title><style>{_STYLE}</style><h1>{escape(title)}</h1><p>{verdict} Sizes are"
        " counted, not measured; weights are full, spill-fill, I/O and reserves paler.</p>"
        f"{domains_to_svg(plan)}<ul>{advice}</ul><table>{''.join(map(_row, plan.outcomes))}</table>\n"
    )


def _row(outcome: Outcome) -> str:
    nbytes = bytes_in_words(outcome.nbytes) if outcome.nbytes else ""
    where = outcome.error or ("" if outcome.domain is None else f"PD {outcome.domain}")
    return (
        f"<tr{' class=bad' if outcome.error else ''}><td>{escape(act_in_words(outcome.act))}</td>"
        f"<td class=n>{nbytes}</td><td>{escape(where)}</td></tr>"
    )
