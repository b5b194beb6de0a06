"""The page of ``openhtp memory plan --html`` in a real browser (slow)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from openhtp.core.limits import SESSION_LIMIT_BYTES
from openhtp.core.units import MIB
from openhtp.memory.advice import advise
from openhtp.memory.needs import ContextNeeds, GraphNeeds
from openhtp.memory.planning import ContextPlan, plan_memory
from openhtp.report.domains import plan_to_html

NAMES = ("vision", "a name that is far too long for the box that it is in, and for its column", "<b>c</b>", "d")


def page() -> str:
    contexts = [
        ContextPlan(
            name=name,
            needs=ContextNeeds(graphs=(GraphNeeds(name="g", own_bytes=1200 * MIB, io_bytes=200 * MIB),)),
        )
        for name in NAMES
    ]
    advice = advise(contexts, most=2, limit=SESSION_LIMIT_BYTES)
    before = plan_memory(contexts, most=2, limit=SESSION_LIMIT_BYTES)
    assert (before.fits, advice.fits) == (False, True)
    return plan_to_html(advice.plan, title="Memory of it", words=advice.words, before=before)


def test_remedies_are_said_once() -> None:
    assert page().count("What helps:") == 1
    assert "<b>c</b>" not in page()


def test_what_is_pale_has_an_outline_and_bars_say_that_they_go_on() -> None:
    text = page()
    swatch = text[text.index(".swatch{") :].partition("}")[0]
    assert "border:1px solid" in swatch
    assert "opacity" not in text[text.index("<p class=note>") :].partition("</p>")[0], "it would fade the outline"
    bars = [rect for rect in text.split("<rect ")[1:] if "<title>" in rect]
    assert bars
    assert all('stroke="#' in rect for rect in bars)
    assert "scroll sideways" in text


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize(("width", "height"), [(1280, 900), (800, 600), (390, 844)])
def test_the_page_fits_its_window_in_either_scheme(
    open_page: Callable[..., Any], scheme: str, width: int, height: int
) -> None:
    opened = open_page(page(), width, height, scheme)
    assert opened.evaluate("document.documentElement.scrollWidth") <= width
    assert opened.locator("svg").count() == 2
    # What is said of a step that fails has room, in a narrow window too.
    assert opened.locator("tr.bad td:last-child").first.bounding_box()["width"] > 300
    assert opened.get_by_role("heading", level=2).all_inner_texts() == ["As given", "What to change", "Then"]
    ink = opened.evaluate("getComputedStyle(document.body).color")
    assert ink == ("rgb(0, 0, 0)" if scheme == "light" else "rgb(255, 255, 255)")
    # Words in pale boxes have the page's ink, and so can be read on either.
    pale = opened.locator("svg text[fill=currentColor]").first
    assert pale.evaluate("node => getComputedStyle(node).fill") == ink
