"""Process domains as a picture: one bar each, as long as its address space, with what lies in it."""

from __future__ import annotations

from collections.abc import Sequence

from openhtp.core.units import bytes_in_words
from openhtp.memory.planning import Act, ActOutcome, DomainPlan, Hold, LetGo, Load, MemoryPlan
from openhtp.report.gantt import FONTS, PALETTE, cut_to_fit
from openhtp.report.page import escaped

_LEFT, _WIDTH, _ROW, _BAR, _TOP = 60, 760, 64, 34, 16
_OPACITY = {"weights": 1.0, "spill_fill": 0.75, "vtcm_backup": 0.55, "io": 0.4, "reserve": 0.2}
_WORDS = {
    "weights": "weights",
    "spill_fill": "spill-fill",
    "vtcm_backup": "VTCM backup",
    "io": "inputs and outputs",
    "reserve": "kept free",
}


def act_in_words(act: Act) -> str:
    """An act in words."""
    if isinstance(act, LetGo):
        return "free the dummy buffers"
    if isinstance(act, Hold):
        return f"hold a dummy buffer in {act.context}"
    return f"load {act.context}" if isinstance(act, Load) else f"map I/O of {act.context}"


def what_failed(outcome: ActOutcome) -> str:
    """The problem that an error names, without the remedy; empty if nothing failed."""
    return outcome.error.partition("; ")[0]


def remedies(plan: MemoryPlan) -> list[str]:
    """The remedies that errors name, once each."""
    advice = (outcome.error.partition("; ")[2] for outcome in plan.failures)
    return [remedy for remedy in dict.fromkeys(advice) if remedy]


def domains_to_svg(plan: MemoryPlan) -> str:
    """The picture. Weights, buffers and I/O of a context have one colour, the latter paler."""
    colours = {context.name: PALETTE[index % len(PALETTE)] for index, context in enumerate(plan.contexts)}
    height = _TOP + _ROW * len(plan.domains)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_LEFT + _WIDTH + 20} {height}"'
        f' font-family="{FONTS}" font-size="12">'
    ]
    for index, domain in enumerate(plan.domains):
        parts += _bar(domain, _TOP + index * _ROW, colours)
    return "".join([*parts, "</svg>"])


def _bar(domain: DomainPlan, y: int, colours: dict[str, str]) -> list[str]:
    free = f"{bytes_in_words(domain.left)} of {bytes_in_words(domain.limit)} left"
    parts = [
        f'<text x="{_LEFT - 8}" y="{y + 21}" text-anchor="end" fill="currentColor">PD {domain.number}</text>',
        f'<rect x="{_LEFT}" y="{y}" width="{_WIDTH}" height="{_BAR}" fill="#888"'
        ' fill-opacity="0.12" stroke="#888" stroke-opacity="0.6"/>',
        f'<text x="{_LEFT + _WIDTH}" y="{y + _BAR + 14}" text-anchor="end" fill="currentColor"'
        f' fill-opacity="0.7">{free}</text>',
    ]
    x = float(_LEFT)
    for holding in domain.holdings:
        width = _WIDTH * holding.nbytes / domain.limit
        fill = colours.get(holding.owner, "#999")
        words = f"{holding.owner}: {_WORDS[holding.use]} {bytes_in_words(holding.nbytes)}"
        parts.append(
            f'<rect x="{x:.1f}" y="{y}" width="{max(width - 1, 0.5):.1f}" height="{_BAR}" fill="{fill}"'
            f' fill-opacity="{_OPACITY[holding.use]}" stroke="{fill}"><title>{escaped(words)}</title></rect>'
        )
        label = cut_to_fit(holding.owner, width - 7)
        if label:
            pale = _OPACITY[holding.use] < 0.5
            parts.append(
                f'<text x="{x + width / 2:.1f}" y="{y + 21}" text-anchor="middle"'
                f' fill="{"currentColor" if pale else "#fff"}">{escaped(label)}</text>'
            )
        x += width
    return parts


_STYLE = (
    ":root{color-scheme:light dark}"
    f"body{{font:15px/1.5 {FONTS};max-width:900px;margin:1.5em auto;padding:0 1em}}"
    "h1{font-size:1.5em;margin:0 0 .2em}h2{font-size:1.1em;margin:1.6em 0 .4em}p{margin:.4em 0}"
    ".fits{color:light-dark(#1b5e20,#8bd18f)}.bad{color:light-dark(#b71c1c,#ff9a90)}.note{opacity:.75;font-size:.9em}"
    "svg{display:block;width:100%}table{border-collapse:collapse;width:100%;table-layout:fixed}"
    "th:first-child{width:12em}th.n{width:6em}"
    "th{text-align:left;font-weight:600}td,th{padding:3px 14px 3px 0;vertical-align:top;"
    "border-bottom:1px solid color-mix(in srgb,currentColor 15%,transparent)}"
    "td,p,li{overflow-wrap:anywhere}td.n,th.n{text-align:right;white-space:nowrap}"
    # The outline shows what is pale on a dark page, too.
    ".key{white-space:nowrap}.swatch{display:inline-block;width:1em;height:1em;border:1px solid #3a7fc4;"
    "vertical-align:-3px;margin:0 .3em 0 .8em}"
    # On a phone: the picture keeps letters that can be read, and what is said of a step has a line of its own.
    ".bars{overflow-x:auto}@media(max-width:600px){.bars svg{min-width:600px}th{display:none}"
    ".bars::before{content:'Bars go on to the right: scroll sideways.';position:sticky;left:0;"
    "font-size:.9em;opacity:.75}"
    "tr{display:flex;flex-wrap:wrap;justify-content:space-between;padding:3px 0;"
    "border-bottom:1px solid color-mix(in srgb,currentColor 15%,transparent)}"
    "td{border:0;padding:0}td:last-child{flex-basis:100%}}"
)


def plan_to_html(
    plan: MemoryPlan, *, title: str, words: Sequence[str] = (), before: MemoryPlan | None = None
) -> str:
    """A page with the picture and what was done in which order. With advice, ``before`` is the plan without it."""
    parts = [
        "<!doctype html><html lang=en><meta charset=utf-8>"
        "<meta name=viewport content='width=device-width'>"
        f"<title>{escaped(title)}</title><style>{_STYLE}</style><h1>{escaped(title)}</h1>",
        _legend(),
    ]
    if before is not None and words:
        advice = "".join(f"<li>{escaped(line)}</li>" for line in words)
        parts += [
            _section("As given", before),
            f"<h2>What to change</h2><ul>{advice}</ul>",
            _section("Then", plan),
        ]
    else:
        parts.append(_section("", plan))
    return "".join(parts) + "\n"


def _legend() -> str:
    swatches = "".join(
        f'<span class=key><span class=swatch style="background:rgb(58 127 196/{opacity})"></span>'
        f"{_WORDS[use]}</span> "
        for use, opacity in _OPACITY.items()
    )
    return f"<p class=note>Sizes are counted, not measured. One colour per context: {swatches}</p>"


def _section(heading: str, plan: MemoryPlan) -> str:
    verdict = "Everything fits." if plan.fits else "Not everything fits."
    return (
        (f"<h2>{heading}</h2>" if heading else "")
        + f"<p class={'fits' if plan.fits else 'bad'}><strong>{verdict}</strong></p>"
        f"<div class=bars>{domains_to_svg(plan)}</div>"
        "<table><tr><th>Step<th class=n>Size<th>Goes to, or why it fails</tr>"
        f"{''.join(map(_row, plan.outcomes))}</table>"
        + "".join(f"<p class=bad>What helps: {escaped(remedy)}.</p>" for remedy in remedies(plan))
    )


def _row(outcome: ActOutcome) -> str:
    nbytes = bytes_in_words(outcome.nbytes) if outcome.nbytes else ""
    where = what_failed(outcome) or ("" if outcome.domain is None else f"PD {outcome.domain}")
    return (
        f"<tr{' class=bad' if outcome.error else ''}><td>{escaped(act_in_words(outcome.act))}</td>"
        f"<td class=n>{nbytes}</td><td>{escaped(where)}</td></tr>"
    )
