"""The timeline page: its data here, its behaviour in a real browser (slow)."""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from tests.browser import settle

from openhtp.core.units import MIB, SECOND
from openhtp.planning import load_scenario, parse_scenario, plan
from openhtp.planning.result import side_by_side
from openhtp.report.lanes import TimelineSpan
from openhtp.report.timeline import marks_to_html
from openhtp.sched.policy import policy_named

EXAMPLES = Path(__file__).parents[2] / "examples"


def page_of(name, **window):
    result = plan(EXAMPLES / f"{name}.yaml", **window)
    scenario = result.scenario
    return marks_to_html(
        result.marks(),
        title=scenario.name,
        unit=scenario.unit,
        unit_ns=scenario.unit_ns,
        vtcm_bytes=scenario.device.vtcm_bytes,
        lanes=result.lanes(),
    )


def data_of(page):
    return json.loads(re.search(r"^const DATA = (.*);$", page, re.MULTILINE).group(1))


def test_lanes_and_spans():
    data = data_of(page_of("same-pd"))
    names = [lane["name"] for lane in data["lanes"]]
    assert names == ["HMX0", "HVX0", "HVX1", "VTCM", "Graph 1", "App", "Graph 2"]
    hmx = data["lanes"][0]
    assert hmx["s"] == [0, 30_000, 50_000, 70_000]
    assert [data["names"][index] for index in hmx["i"]] == ["Graph 1", "Graph 2", "Graph 1", "Graph 2"]
    vtcm = data["lanes"][3]
    assert vtcm["map"]
    assert vtcm["a"][:2] == [1 * MIB, 0]
    assert data["times"] == "modelled"
    assert [lane["yields"] for lane in data["lanes"]] == [[], [], [], [], [], [], [40_000]]
    assert data["flows"] == [[6, 50_000, 4, 50_000, "makes way for"]]


BUSY = """
unit: ms
duration: {duration}
device: {{hvx: 1, hmx: 1, vtcm_mb: 8, eviction: 1}}
clients:
  - {{name: a camera whose name is long, priority: low, deadline: 33, run: 12}}
  - {{name: llm, priority: high, run: 28}}
events:
  - {{client: a camera whose name is long, every: 50}}
  - {{client: llm, closed: 1, think: 40}}
"""


def page_of_misses(duration=400, policies=("strict",)):
    results = [
        plan(replace(parse_scenario(BUSY.format(duration=duration)), policy=policy_named(policy)))
        for policy in policies
    ]
    marks, lanes = side_by_side(results)
    return results, marks_to_html(marks, title="busy", unit="ms", unit_ns=10**6, vtcm_bytes=8 * MIB, lanes=lanes)


def test_deadlines_and_misses_are_columns_of_their_lane():
    (result,), page = page_of_misses()
    camera = next(lane for lane in data_of(page)["lanes"] if lane["client"])
    assert len(camera["missed"]) == len(camera["late"]) == result.missed > 0
    assert len(camera["missed"]) + len(camera["due"]) == result["a camera whose name is long"].runs
    assert all(late > 0 for late in camera["late"])
    assert all((at - 33 * 10**6) % (50 * 10**6) == 0 for at in camera["due"] + camera["missed"])


def test_policies_in_one_page_have_groups_of_their_own_in_the_order_given():
    _, page = page_of_misses(policies=("strict", "fair"))
    lanes = data_of(page)["lanes"]
    assert list(dict.fromkeys(lane["group"] for lane in lanes)) == ["strict.Clients", "fair.Clients"]
    assert len(lanes) == 4
    assert all(lane["client"] and lane["s"] for lane in lanes)


def test_idle_units_have_lanes_too():
    lanes = [lane["name"] for lane in data_of(page_of("vtcm-sharing-same-pd"))["lanes"]]
    assert {"HVX0", "HVX1", "HVX2", "HVX3"} <= set(lanes)


def test_the_page_needs_nothing_from_elsewhere():
    page = page_of("same-pd")
    assert not re.search(r"https?://|<link|src=|@import|fetch\(", page)


def test_names_cannot_break_out_of_the_script():
    span = TimelineSpan(
        group="Clients", lane="</script><b>", name="x", start_ns=0, duration_ns=5, category="running"
    )
    page = marks_to_html([span], title="</title><script>alert(1)</script>")
    assert page.count("</script>") == 1
    assert data_of(page)["lanes"][0]["name"] == "</script><b>"


def view(page):
    start, end = page.evaluate("[timeline.view.start, timeline.view.end]")
    return start, end


@pytest.mark.slow
def test_browser_draws_every_lane_in_its_colour(open_page):
    page = open_page(page_of("same-pd"))
    assert page.title() == "same-pd – openhtp timeline"
    assert page.locator("#times").inner_text() == "modelled times"
    assert [chip.inner_text().split() for chip in page.locator(".chip").all()] == [
        ["Graph", "1", "55.6%"],
        ["App", "55.6%"],
        ["Graph", "2", "44.4%"],
    ]
    # The middle of each of the first four bars of HMX0 has the colour of its holder.
    colours = page.evaluate(
        """() => [15e3, 40e3, 60e3, 80e3].map(t => {
            const row = timeline.rows[0], canvas = document.getElementById("plot"), ratio = devicePixelRatio;
            const x = 150 + (t / 90e3) * (canvas.clientWidth - 166);
            const p = canvas.getContext("2d").getImageData(x * ratio, (row.y + 7) * ratio, 1, 1).data;
            return [p[0], p[1], p[2]];
        })"""
    )
    assert colours[0] == colours[2]
    assert colours[1] == colours[3]
    assert colours[0] != colours[1]


@pytest.mark.slow
def test_browser_zooms_pans_and_fits(open_page):
    page = open_page(page_of("same-pd"))
    assert view(page) == (0, 90_000)
    page.mouse.move(640, 300)
    page.mouse.wheel(0, -400)
    settle(page)
    start, end = view(page)
    assert 0 < start < end < 90_000
    page.mouse.down()
    page.mouse.move(740, 300, steps=4)
    page.mouse.up()
    settle(page)
    moved_start, moved_end = view(page)
    assert moved_start < start
    assert moved_end - moved_start == pytest.approx(end - start)
    page.get_by_role("button", name="Fit").click()
    assert view(page) == (0, 90_000)
    page.keyboard.press("+")
    assert view(page)[1] - view(page)[0] == pytest.approx(45_000)
    page.keyboard.press("0")
    assert view(page) == (0, 90_000)


@pytest.mark.slow
def test_browser_hover_tells_who_when_and_where(open_page):
    page = open_page(page_of("same-pd"))
    box = page.locator("#plot").bounding_box()
    place = page.evaluate("(() => { const r = timeline.rows[3]; return r.y + r.h - 4; })()")
    x = 150 + 0.3 * (box["width"] - 166)
    page.mouse.move(box["x"] + x, box["y"] + place)
    settle(page)
    tip = page.locator("#tip")
    assert tip.is_visible()
    words = tip.inner_text()
    for expected in ("App", "holds VTCM", "10 us – 60 us", "50 us (modelled)", "1 MB at 0 MB"):
        assert expected in words
    page.mouse.move(box["x"] + 5, box["y"] + 5)
    settle(page)
    assert not tip.is_visible()


@pytest.mark.slow
def test_browser_stays_fast_with_fifty_thousand_spans(open_page):
    scenario = replace(load_scenario(EXAMPLES / "three-cameras-one-llm.yaml"), duration_ns=60 * SECOND)
    result = plan(scenario)
    marks = result.marks()
    assert sum(isinstance(mark, TimelineSpan) for mark in marks) >= 50_000
    html = marks_to_html(
        marks, title="big", unit="ms", unit_ns=scenario.unit_ns, vtcm_bytes=8 * MIB, lanes=result.lanes()
    )
    page = open_page(html)
    times = page.evaluate(
        """() => [1, .5, .2, .05, .01, .001].map(part => {
            timeline.view.start = 0; timeline.view.end = 60e9 * part; timeline.draw();
            return timeline.drawMs; })"""
    )
    assert max(times) < 500, times  # about 50 ms on a quiet machine


LIGHT = """
unit: ms
duration: 20000
device: {soc: SM8550}
clients:
  - {name: camera, priority: high, deadline: 33, run: 2.6}
  - {name: wake word, deadline: 20, run: 0.5}
events:
  - {client: camera, every: 33}
  - {client: wake word, every: 16}
"""


def inked_shares(page):
    """Of each row but the maps, the part of its bar that is painted: 1 where a pixel is unlike the lane."""
    settle(page)
    return page.evaluate(
        """() => Object.fromEntries(timeline.rows.filter(row => !row.lane.map).map(row => {
            const canvas = document.getElementById("plot"), ctx = canvas.getContext("2d"), bar = timeline.bar;
            const left = timeline.left, wide = canvas.clientWidth - left - 16, top = row.y + (row.h - bar) / 2;
            const parse = d => [d[0], d[1], d[2]];
            const lane = parse(ctx.getImageData(left + 3, row.y + row.h - 2, 1, 1).data);
            const probe = document.createElement("i"); document.body.append(probe);
            const data = ctx.getImageData(left, top, wide, bar).data; let sum = 0;
            const own = timeline.colour(row.lane.client ? row.lane.name : "camera");
            probe.style.color = own;
            const full = getComputedStyle(probe).color.match(/\\d+/g).map(Number); probe.remove();
            const distance = (a, b) => Math.hypot(a[0] - b[0], a[1] - b[1], a[2] - b[2]);
            for (let k = 0; k < data.length; k += 4)
                sum += Math.min(1, distance([data[k], data[k + 1], data[k + 2]], lane) / distance(full, lane));
            return [row.lane.name, sum / (wide * bar)];
        }))"""
    )


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_browser_a_lane_looks_as_busy_as_it_is(open_page, width, scheme):
    result = plan(parse_scenario(LIGHT))
    page = open_page(
        marks_to_html(
            result.marks(),
            title="light",
            unit="ms",
            unit_ns=10**6,
            vtcm_bytes=8 * MIB,
            lanes=result.lanes(),
            verdict=result.verdict,
        ),
        width,
        640,
        scheme,
    )
    shares = inked_shares(page)
    # The lines of the axis and the hatching of short waits are ink, too.
    for lane, busy in {"HMX0": 0.11, "HVX3": 0.11, "camera": 0.079, "wake word": 0.031}.items():
        assert busy - 0.02 < shares[lane] < busy + 0.04, (lane, shares[lane])
    assert page.locator("#verdict").inner_text() == "all deadlines hold, worst 16 % of its deadline (wake word)"


@pytest.mark.slow
def test_browser_follows_a_change_of_the_colour_scheme(open_page):
    page = open_page(page_of("same-pd"))
    place = """() => { const canvas = document.getElementById("plot"), row = timeline.rows[0];
        return canvas.getContext("2d").getImageData(timeline.left + 300, row.y + 1, 1, 1).data[0]; }"""
    light = page.evaluate(place)
    page.emulate_media(color_scheme="dark")
    settle(page)
    assert page.evaluate(place) < light


@pytest.mark.slow
def test_browser_singles_out_a_client(open_page):
    page = open_page(page_of("same-pd"))
    chip = page.locator(".chip", has_text="App")
    chip.click()
    assert chip.get_attribute("aria-pressed") == "true"
    chip.click()
    assert chip.get_attribute("aria-pressed") == "false"


def pixels(page, place, colour):
    """How many columns have a pixel of a CSS colour at a row's place."""
    settle(page)
    return page.evaluate(
        """([index, offset, name]) => {
            const probe = document.createElement("i"); document.body.append(probe);
            probe.style.color = `var(${name})`;
            const [r, g, b] = getComputedStyle(probe).color.match(/\\d+/g).map(Number); probe.remove();
            const canvas = document.getElementById("plot"), row = timeline.rows[index], ratio = devicePixelRatio;
            const data = canvas.getContext("2d").getImageData(0, (row.y + offset) * ratio, canvas.width, 1).data;
            let found = 0;
            for (let k = 150 * ratio * 4; k < data.length; k += 4)
                if (data[k] === r && data[k + 1] === g && data[k + 2] === b) found++;
            return found;
        }""",
        [*place, colour],
    )


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [(800, 600), (1280, 720)], ids=str)
def test_browser_shows_deadlines_misses_and_what_they_are(open_page, size, scheme):
    _, html = page_of_misses()
    page = open_page(html, *size, scheme)
    assert page.locator("#signs").inner_text().split("\n") == [
        "running", "waiting", "paused", "asked to yield", "deadline", "missed deadline",
    ]  # fmt: skip
    client = page.evaluate("timeline.rows.findIndex(row => row.lane.client)")
    assert pixels(page, (client, 0), "--bad") >= 4
    assert pixels(page, (client + 1, 0), "--bad") == 0


@pytest.mark.slow
def test_browser_hover_over_a_miss_says_by_how_much(open_page):
    _, html = page_of_misses()
    page = open_page(html)
    x, y, late = page.evaluate(
        """() => {
            const row = timeline.rows.find(row => row.lane.client), { start, end } = timeline.view;
            const box = document.getElementById("plot").getBoundingClientRect();
            const x = 150 + (row.lane.missed[0] - start) / (end - start) * (box.width - 166);
            return [box.x + x, box.y + row.y + 5, row.lane.late[0]];
        }"""
    )
    page.mouse.move(x, y)
    settle(page)
    assert f"missed its deadline by {late / 1e6:g} ms" in page.locator("#tip").inner_text()


@pytest.mark.slow
def test_browser_thins_marks_out_when_zoomed_out(open_page):
    _, html = page_of_misses(duration=100_000)
    page = open_page(html)
    assert page.evaluate("timeline.rows.find(row => row.lane.client).lane.yields.length") > 300
    room = page.evaluate("document.getElementById('plot').clientWidth - 166")
    places = page.evaluate("timeline.thinned(timeline.rows.find(row => row.lane.client).lane.yields, 12)")
    assert 10 < len(places) <= room / 12 + 1
    assert min(b - a for a, b in itertools.pairwise(places)) >= 12


@pytest.mark.slow
@pytest.mark.parametrize("name", ["two-pds", "vtcm-sharing-same-pd", "starvation", "pipeline"])
def test_browser_hides_nothing_behind_the_overview(open_page, name):
    page = open_page(page_of(name), 800, 600)
    found = page.evaluate(
        """() => {
            const top = document.getElementById("main").getBoundingClientRect().top, last = timeline.rows.at(-1);
            const over = document.getElementById("overview").getBoundingClientRect();
            const ends = timeline.rows.map(row => row.y + row.h);
            return { end: top + last.y + last.h, top: over.top, bottom: over.bottom,
                     high: timeline.rows.every(row => row.h >= 24),
                     overlap: timeline.rows.some((row, k) => k && row.y < ends[k - 1]) };
        }"""
    )
    assert found["end"] <= found["top"]
    assert found["high"] or found["top"] - found["end"] < 40  # and no room is given away for that
    assert found["bottom"] <= 600
    assert not found["overlap"]


@pytest.mark.slow
def test_browser_scrolls_what_is_too_high_with_the_wheel_over_the_names(open_page):
    spans = [
        TimelineSpan(
            group="Clients", lane=f"client {n}", name="running", start_ns=n, duration_ns=5, category="running"
        )
        for n in range(60)
    ]
    page = open_page(marks_to_html(spans, title="many"), 800, 600)
    before = view(page)
    page.mouse.move(60, 400)
    page.mouse.wheel(0, 5000)
    page.wait_for_function(
        """() => {
            const main = document.getElementById("main"), end = main.scrollTop + main.clientHeight;
            return main.scrollTop > 0 && end >= main.scrollHeight - 1;
        }"""
    )
    assert view(page) == before
    assert page.evaluate(
        """() => {
            const last = timeline.rows.at(-1), main = document.getElementById("main");
            return last.y + last.h - main.scrollTop <= main.clientHeight;
        }"""
    )
