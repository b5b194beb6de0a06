"""The analysis summary: its arithmetic, and the page in a browser (slow)."""

from __future__ import annotations

import json
import re

import jsonschema
import pytest
from hypothesis import given, strategies as st
from tests.browser import inked, settle
from tests.report.schematics import NODES, SMALL, op, schematic

from openhtp.records.profile import RunTimes
from openhtp.records.schematic import QnnOp
from openhtp.report.qhas import IDLE, qhas_schema, qhas_to_html, schematic_to_qhas

RUN = RunTimes(received_ns=0, started_ns=5_000, finished_ns=400_000)


def rows(document, section):
    return document["data"][section]["data"]


def test_overall():
    document = schematic_to_qhas(SMALL, [RUN])
    (row,) = rows(document, "htp_overall_summary")
    assert (row["timeline_cycles"], row["percent_idle"], row["percent_utilization"]) == (250, 4.0, 96.0)
    assert (row["total_dram_read"], row["total_dram_write"], row["total_dram"]) == (900, 100, 1000)
    assert row["peak_vtcm_alloc"] == 600
    assert (row["qnn_nodes"], row["htp_nodes"]) == (2, 6)
    assert row["measured_us"] == 400
    used = {(each["type"], each["tid"]): each for each in row["htp_resources"]["data"]}
    assert used["HVX", 1]["cycles_used"] == 40
    assert used["HVX", 1]["utilization"] == 16.0  # of the core's timeline
    jsonschema.validate(document, qhas_schema())


def test_sections_are_sorted_and_shared_out():
    document = schematic_to_qhas(SMALL, [])
    types = rows(document, "qnn_op_types")
    assert [row["op"] for row in types] == ["Conv2d", "ElementWiseSubtract", "Output"]
    assert [row["cycles"] for row in types] == [150, 140, 30]
    assert types[0]["percent_active_cycles"] == pytest.approx(100 * 150 / 320)
    assert sum(row["num_dominant_path_cycles_htp_0"] for row in types) == 240
    assert sum(row["percent_dominant_path_cycles_htp_0"] for row in types) == pytest.approx(100)
    nodes = rows(document, "qnn_op_instances_nodes")
    assert nodes[0]["framework_ops"] == ["/conv"]
    path = rows(document, "dominant_path_htp_0")
    assert [(row["htp_op"], row["dp_cycles"], row["partial"]) for row in path] == [
        ("DramToTcm", 50, False),
        ("op2", 100, False),
        (IDLE, 10, False),
        ("op4", 60, False),
        ("TcmToDram", 30, False),
    ]


OPS = st.lists(
    st.tuples(st.integers(4, 6), st.sampled_from(["HMX", "HVX", "DMA"]), st.integers(0, 60), st.integers(0, 30)),
    max_size=12,
)


@given(OPS)
def test_arithmetic_holds_for_any_schedule(drawn):
    whole = schematic(*(op(serial, *each) for serial, each in enumerate(drawn, start=1)))
    document = schematic_to_qhas(whole, [])
    jsonschema.validate(document, qhas_schema())
    for row in rows(document, "htp_overall_summary"):
        path = rows(document, "dominant_path_htp_0")
        idle = sum(each["dp_cycles"] for each in path if each["htp_op"] == IDLE)
        for section in ("qnn_op_types", "qnn_op_instances_nodes", "htp_op_types"):
            found = rows(document, section)
            said = sum(each["num_dominant_path_cycles_htp_0"] for each in found)
            assert said == row["timeline_cycles"] - idle
            assert sum(each["cycles"] for each in found) == sum(each.cycles for each in whole.executed)
            assert [each["cycles"] for each in found] == sorted((each["cycles"] for each in found), reverse=True)


def page_of(made=SMALL):
    return qhas_to_html(schematic_to_qhas(made, [RUN]), made)


def test_names_cannot_break_out_of_the_script():
    nodes = (*NODES[:3], QnnOp(4, "</script><b>", "Conv2d"))
    page = page_of(schematic(op(1, 4, "HMX", 0, 5), nodes=nodes))
    assert page.count("</script>") == 3
    data = json.loads(re.search(r"^const DATA = (.*);$", page, re.MULTILINE).group(1))
    assert data["timeline"]["ops"][0][5] == "</script><b>"


def many():
    kinds = ("Conv2d", "Relu", "BatchNorm", "PoolMax2d")
    nodes = (*NODES[:3], *(QnnOp(4 + n, f"node_{n}", kinds[n % 4]) for n in range(40)))
    ops = [
        op(n + 1, 4 + n, "HMX" if n % 2 else "HVX", 100 * n, 50 + n, name=kinds[n % 4], vtcm_read=n)
        for n in range(40)
    ]
    return schematic(*ops, nodes=nodes, regions=SMALL.regions)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_browser_shows_overview_timeline_and_vtcm(open_page, scheme):
    page = open_page(page_of(), 1360, 1100, scheme)
    settle(page)
    assert page.title() == "g – openhtp profile"
    assert "modelled" in page.locator("#cycles").inner_text()
    assert inked(page, "timeline") > 1000
    assert inked(page, "vtcm") > 1000
    background = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert background == ("rgb(251, 251, 250)" if scheme == "light" else "rgb(20, 23, 26)")
    assert page.locator("#htp_overall_summary .tabulator-row").count() == 1
    opened = page.evaluate("[...document.querySelectorAll('#sections details')].map(each => each.open)")
    assert opened == [True] + [False] * (len(opened) - 1)
    assert len(opened) > 1


@pytest.mark.slow
def test_browser_sorts_and_filters(open_page):
    page = open_page(page_of(many()), 1360, 1100)
    page.locator("#htp_op_instances summary").click()
    page.wait_for_function("qhas.tables.htp_op_instances?.initialized")
    page.locator("#htp_op_instances .tabulator-col[tabulator-field=cycles] .tabulator-col-sorter").click()
    first = "qhas.tables.htp_op_instances.getData('active')[0].cycles"
    page.wait_for_function(f"{first} === 50")
    page.locator("#htp_op_instances .tabulator-col[tabulator-field=cycles] .tabulator-col-sorter").click()
    page.wait_for_function(f"{first} === 89")
    page.locator("#htp_op_instances .tabulator-col[tabulator-field=htp_op] input").press_sequentially("conv")
    page.locator("#htp_op_instances .tabulator-col[tabulator-field=qnn_op] input").press_sequentially("_1")
    page.wait_for_function("qhas.tables.htp_op_instances.getDataCount('active') === 2")  # node_12, node_16
    assert page.locator("#htp_op_instances .matched").inner_text() == "2 of 40"
    page.locator("#htp_op_instances button", has_text="Clear filters").click()
    page.wait_for_function("qhas.tables.htp_op_instances.getDataCount('active') === 40")


@pytest.mark.slow
def test_browser_draws_a_pie_of_a_column(open_page):
    page = open_page(page_of(many()), 1360, 1100)
    page.locator("#qnn_op_types summary").click()
    page.locator("#qnn_op_types .pieicon[data-key=cycles]").click()
    page.wait_for_function("qhas.pies.qnn_op_types")
    data = page.evaluate("qhas.pies.qnn_op_types.chart.getOption().series[0].data")
    assert [part["name"] for part in data] == ["PoolMax2d", "BatchNorm", "Relu", "Conv2d"]
    assert sum(part["value"] for part in data) == sum(50 + n for n in range(40))
    page.locator("#qnn_op_types .tabulator-col[tabulator-field=op] input").press_sequentially("conv")
    page.wait_for_function("qhas.pies.qnn_op_types.chart.getOption().series[0].data.length === 1")


@pytest.mark.slow
def test_browser_zooms_timeline_and_vtcm_together(open_page):
    page = open_page(page_of(many()), 1360, 1100)
    settle(page)
    box = page.locator("#timeline").bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + box["height"] / 2)
    page.mouse.wheel(0, -600)
    spans = "[qhas.timeline, qhas.vtcm].map(c => c.getOption().dataZoom[0]).map(z => z.end - z.start)"
    page.wait_for_function(f"{spans}.every(width => width < 99)")
    timeline, vtcm = page.evaluate(spans)
    assert timeline == pytest.approx(vtcm)
