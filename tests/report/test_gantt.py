from __future__ import annotations

import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from openhtp.core.units import MIB
from openhtp.planning import plan
from openhtp.report.gantt import marks_to_svg, marks_to_text, svg_to_png, ticks
from openhtp.report.lanes import Instant, TimelineSpan

SAME_PD = Path(__file__).parents[2] / "examples" / "same-pd.yaml"
SVG = "{http://www.w3.org/2000/svg}"


def test_text():
    text = marks_to_text(plan(SAME_PD).marks(), width=9)
    assert text.splitlines() == [
        "Graph 1 │███ ░██  │",
        "    App │ █████   │",
        "Graph 2 │ ░░██▒▒██│",
        "         090 us (modelled)",
        "█ running  ▁ partly  ░ waiting  ▒ paused",
    ]


def client_span(start, duration, category="running", lane="cam"):
    return TimelineSpan(
        group="Clients", lane=lane, name=category, start_ns=start, duration_ns=duration, category=category
    )


def test_a_client_that_is_hardly_busy_is_not_painted_solid():
    spans = [client_span(at, 3) for at in range(0, 1000, 100)] + [client_span(999, 1)]
    (row, *_) = marks_to_text(spans, width=10).splitlines()
    assert row == "cam │▁▁▁▁▁▁▁▁▁▁│"


def test_a_short_wait_does_not_fill_its_column():
    spans = [client_span(0, 5, "waiting"), client_span(100, 60, "waiting"), client_span(200, 20, "paused")]
    (row, *_, legend) = marks_to_text([*spans, client_span(299, 1)], width=3).splitlines()
    assert row == "cam │·░▁│"
    assert "· less than half of it" in legend


def inked_share(svg, lane_top, lane_pixels):
    """The part of a lane's area that rectangles in it cover."""
    boxes = [
        [float(rect.get(side)) for side in ("x", "y", "width", "height")]
        for rect in ET.fromstring(svg).iter(f"{SVG}rect")
        if rect.get("x") and float(rect.get("x")) >= 130
    ]
    covered = sum(w * h for _, y, w, h in boxes if lane_top <= y + h <= lane_top + 30)
    return covered / lane_pixels


@pytest.mark.parametrize("run", [3, 30, 100, 300])
def test_svg_a_lane_is_inked_as_much_as_it_was_busy(run):
    # 40,000 runs in 850 columns: narrower than a pixel, whether the lane is busy for 1 % or for 100 %.
    spans = [client_span(at * 300, run) for at in range(40_000)]
    assert inked_share(marks_to_svg(spans), 46, 850 * 18) == pytest.approx(run / 300, rel=0.02, abs=0.002)


def test_svg_a_map_of_short_spans_is_as_full_as_the_memory_was():
    spans = [
        TimelineSpan(
            group="VTCM",
            lane="VTCM",
            name="cam",
            start_ns=at * 100,
            duration_ns=20,
            category="vtcm",
            args={"start_bytes": 0, "bytes": 2 * MIB},
        )
        for at in range(10_000)
    ]
    boxes = ET.fromstring(marks_to_svg(spans, vtcm_bytes=4 * MIB)).iter(f"{SVG}rect")
    covered = sum(float(box.get("height")) for box in boxes if box.get("width") == "1")
    assert covered / (850 * 48) == pytest.approx(0.2 * 0.5, rel=0.02)


def test_blocks_are_as_high_as_the_share_that_ran():
    spans = [
        client_span(0, 50),
        client_span(50, 50, "waiting"),
        client_span(100, 100),
        client_span(200, 100, "paused"),
    ]
    (row, *_) = marks_to_text(spans, width=3).splitlines()
    assert row == "cam │▄█▒│"


def test_missed_deadlines_show_in_the_terminal_and_long_names_are_cut():
    name = "a camera with a very long name"
    spans = [client_span(0, 100, lane=name)]
    missed = Instant(group="Clients", lane=name, name="missed its deadline", at_ns=55, category="missed")
    row, *_, legend = marks_to_text([*spans, missed], width=10).splitlines()
    assert row == "a camera with a ver… │█████!████│"
    assert legend.endswith("! missed")


def instants(category, times):
    return [Instant(group="Clients", lane="cam", name=category, at_ns=at, category=category) for at in times]


def test_svg_has_deadlines_misses_and_a_legend_of_what_is_there():
    marks = [client_span(0, 1000), *instants("deadline", [300]), *instants("missed", [700])]
    root = ET.fromstring(marks_to_svg(marks))
    titles = [element.text for element in root.iter(f"{SVG}title")]
    assert (titles.count("deadline"), titles.count("missed")) == (1, 1)
    texts = [element.text for element in root.iter(f"{SVG}text")]
    assert texts[-5:] == ["running", "waiting", "paused", "deadline", "missed deadline"]


def test_svg_thins_marks_out_and_cuts_labels():
    name = "a camera with a very long name"
    marks = [client_span(0, 10_000), client_span(0, 10_000, lane=name), *instants("yield", range(0, 10_000, 2))]
    root = ET.fromstring(marks_to_svg(marks))
    titles = [element.text for element in root.iter(f"{SVG}title")]
    assert 20 < titles.count("yield") <= 850 / 14 + 1
    assert "a camera with a…" in [element.text for element in root.iter(f"{SVG}text")]
    assert name in titles


def test_svg_leaves_kept_deadlines_out_where_they_would_be_a_fence():
    marks = [client_span(0, 10_000), *instants("deadline", range(0, 10_000, 50)), *instants("missed", [5000])]
    titles = [element.text for element in ET.fromstring(marks_to_svg(marks)).iter(f"{SVG}title")]
    assert (titles.count("deadline"), titles.count("missed")) == (0, 1)


def test_png_has_words_if_there_is_a_font(caplog):
    marked = marks_to_svg([client_span(0, 1000)], title="words")
    bare = marked.replace("words", "")
    assert svg_to_png(marked) != svg_to_png(bare) or "no font" in caplog.text


def test_svg_is_well_formed_and_says_modelled():
    svg = marks_to_svg(plan(SAME_PD).marks(), title='a < "b"', vtcm_bytes=4 * MIB)
    root = ET.fromstring(svg)
    texts = [element.text for element in root.iter(f"{SVG}text")]
    assert 'a < "b" (modelled)' in texts
    assert {"HMX0", "HVX0", "HVX1", "VTCM", "Graph 1", "App", "Graph 2"} <= set(texts)
    titles = [element.text for element in root.iter(f"{SVG}title")]
    assert titles.count("Graph 2: paused") == 1
    assert titles.count("asked to yield") == 1


def test_the_vtcm_map_puts_the_overmap_at_the_top():
    svg = marks_to_svg(plan(SAME_PD).marks(), vtcm_bytes=4 * MIB)
    boxes = {}
    for rect in ET.fromstring(svg).iter(f"{SVG}rect"):
        title = rect.find(f"{SVG}title")
        if title is not None and title.text.endswith(": vtcm"):
            boxes.setdefault(title.text.split(":")[0], (float(rect.get("y")), float(rect.get("height"))))
    (graph_y, graph_height), (app_y, app_height) = boxes["Graph 1"], boxes["App"]
    assert graph_height == 3 * app_height
    assert graph_y + graph_height == app_y


def test_nothing_to_draw():
    assert "modelled" in marks_to_svg([])
    assert "running" in marks_to_text([])


def test_ticks_are_round():
    assert ticks(0, 90) == [0, 10, 20, 30, 40, 50, 60, 70, 80, 90]
    assert ticks(3, 3.7) == [3, 3.1, 3.2, 3.3, 3.4, 3.5, 3.6, 3.7]
    assert len(ticks(0, 1e12)) <= 11


def test_names_are_escaped():
    span = TimelineSpan(
        group="Clients", lane="<b>&", name="running", start_ns=0, duration_ns=10, category="running"
    )
    ET.fromstring(marks_to_svg([span]))


def test_png_is_the_same_picture_in_pixels() -> None:
    png = svg_to_png(
        '<svg xmlns="http://www.w3.org/2000/svg" width="40" height="20"><rect width="9" height="9"/></svg>'
    )
    assert png.startswith(b"\x89PNG\r\n\x1a\n")
    assert int.from_bytes(png[16:20], "big") == 40
