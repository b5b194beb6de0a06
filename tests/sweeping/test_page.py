"""The report: its data here, its behaviour in a real browser (slow)."""

from __future__ import annotations

import json
import re

import pytest

import openhtp
from openhtp.sweeping import results as results_module
from openhtp.sweeping.results import result_to_html
from tests.browser import inked, settle
from tests.sweeping.studies import estimates
from tests.sweeping.test_run import Here


@pytest.fixture(scope="module")
def result():
    axes = estimates()["axes"] | {
        "model": "zoo:small_cnn",
        "hvx_threads": [2, 4],
        "ddr_gbs": {"from": 4, "to": 30},
    }
    return openhtp.sweep(
        estimates(name="</script><b>", axes=axes | {"soc": ["SM8350", "SM8650"]}, constraints=["latency_us < 70"]),
        on=Here(),
    )


def data_of(html):
    return json.loads(re.search(r"^const DATA = (.*);$", html, re.MULTILINE).group(1))


def test_data(result):
    html = result_to_html(result)
    assert html.count("</script>") == 2
    data = data_of(html)
    assert data["study"] == "</script><b>"
    assert len(data["point"]) == len(result.measured)
    assert sum(data["front"]) == len(result.front)
    assert data["failedTotal"] == len(result.failed) > 0
    assert data["fixed"] == {"model": "zoo:small_cnn"}
    assert [axis["name"] for axis in data["axes"]] == ["soc", "precision", "vtcm_mb", "hvx_threads", "ddr_gbs"]


def test_a_large_study_keeps_its_front(result, monkeypatch):
    monkeypatch.setattr(results_module, "MOST_POINTS", 50)
    data = data_of(result_to_html(result))
    assert len(data["point"]) <= 60
    assert sum(data["front"]) == len(result.front)
    assert data["total"] == len(result.rows)


@pytest.fixture
def opened(open_page, result):
    return open_page(result_to_html(result), 1360, 1100)


@pytest.mark.slow
def test_browser_draws_both_charts_and_the_table(opened, result):
    settle(opened)
    assert opened.title() == "</script><b> – openhtp sweep"
    assert inked(opened, "pareto") > 1000
    assert inked(opened, "parallel") > 1000
    assert opened.locator("#times").inner_text() == "modelled, estimate"
    assert f"{len(result.failed)} failed" in opened.locator("#failed").inner_text()
    best = min(row.measured["latency_us"] for row in result.measured)
    cells = opened.locator("tbody tr").first.inner_text()
    assert str(float(f"{best:.6g}")) in cells
    assert opened.locator("tr.front").count() >= 1


@pytest.mark.slow
def test_browser_filters(opened, result):
    def count():
        return opened.evaluate("sweep.visible().length")

    assert count() == len(result.measured)
    opened.locator("select[data-axis=soc]").select_option(label="SM8650")
    assert count() == sum(row.point.values["soc"] == "SM8650" for row in result.measured)
    opened.locator("#feasible").check()
    feasible = [row for row in result.feasible if row.point.values["soc"] == "SM8650"]
    assert count() == len(feasible) < len(result.measured)
    assert f"{count()} of" in opened.locator("#count").inner_text()
    opened.locator("#front").check()
    assert count() == sum(row.point.values["soc"] == "SM8650" for row in result.front)
    opened.get_by_role("button", name="Reset").click()
    assert count() == len(result.measured)


@pytest.mark.slow
def test_browser_selects_along_an_axis(opened, result):
    settle(opened)
    box = opened.locator("#parallel").bounding_box()
    # The first of the axes is the SoC; its upper half is one of two.
    x = box["x"] + 60
    opened.mouse.move(x, box["y"] + 50)
    opened.mouse.down()
    opened.mouse.move(x, box["y"] + 170, steps=6)
    opened.mouse.up()
    settle(opened)
    opened.wait_for_function("sweep.state.brushed !== null")
    assert {opened.evaluate("sweep.visible().length")} == {
        sum(row.point.values["soc"] == "SM8650" for row in result.measured)
    }


@pytest.mark.slow
def test_browser_changes_what_is_plotted_and_sorted(opened, result):
    opened.locator("#x").select_option("ddr_gbs")
    names = opened.evaluate("sweep.pareto.getOption().xAxis.map(a => a.name)")
    assert names == ["ddr_gbs"]
    opened.locator("th", has_text="ddr_gbs").click()
    opened.locator("th", has_text="ddr_gbs").click()
    assert "30" in opened.locator("tbody tr").first.inner_text()


@pytest.mark.slow
def test_browser_on_a_phone_every_axis_has_room_for_its_names(open_page, result):
    page = open_page(result_to_html(result), 390, 800)
    settle(page)
    wide, axes = page.evaluate(
        "[document.getElementById('parallel').offsetWidth, sweep.parallel.getOption().parallelAxis.length]"
    )
    assert wide >= 150 * axes > 390
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
