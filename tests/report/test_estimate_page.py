"""The page of an estimate, in a browser: tables to sort and filter, charts that follow the chosen chip."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.browser import settle
from typer.testing import CliRunner

from openhtp.cli.main import app
from openhtp.report.page import estimate_to_html

CHART = "id => echarts.getInstanceByDom(document.getElementById(id)).getOption()"


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, dict[str, Any]]:
    """The page and the document of one call."""
    folder: Path = tmp_path_factory.mktemp("page")
    page, document = folder / "out.html", folder / "out.json"
    args = ["estimate", "zoo:small_cnn", "--soc", "SM8650,QCS6490", "--precision", "w8a8"]
    done = CliRunner().invoke(app, [*args, "--html", str(page), "--json", str(document)])
    assert done.exit_code == 0, done.output
    return page.read_text(encoding="utf-8"), json.loads(document.read_text())


def column(page: Any, field: str) -> list[str]:
    found: list[str] = page.eval_on_selector_all(
        f'#table .tabulator-row .tabulator-cell[tabulator-field="{field}"]', "cells => cells.map(c => c.innerText)"
    )
    return found


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_shows_chips_charts_and_kernels(
    open_page: Callable[..., Any],
    written: tuple[str, dict[str, Any]],
    scheme: str,
) -> None:
    html, document = written
    page = open_page(html, 1280, 1000, scheme)
    settle(page)
    first = document["estimates"][0]
    assert page.locator("#cards .card").first.inner_text().startswith(f"{first['total_us']:.1f} us")
    assert page.locator("#cards .card").last.inner_text().startswith(f"{first['macs'] / 1e6:.2f} M\n")
    assert "all times modelled" in page.inner_text("header")
    assert page.locator("#chips .tabulator-row").count() == 2
    dearest = max(first["ops"], key=lambda op: op["us"])
    assert column(page, "name")[0] == dearest["name"]
    bars = page.evaluate(CHART, "kernels")
    assert bars["yAxis"][0]["data"][-1] == dearest["name"]
    assert [series["name"] for series in bars["series"]] == ["HMX", "HVX", "memory", "overhead"]


@pytest.mark.slow
def test_kernels_are_sorted_and_filtered(
    open_page: Callable[..., Any],
    written: tuple[str, dict[str, Any]],
) -> None:
    html, document = written
    page = open_page(html, 1280, 1000)
    page.click('#table .tabulator-col[tabulator-field="place"] .tabulator-col-title')
    settle(page)
    assert column(page, "name") == [op["name"] for op in document["estimates"][0]["ops"]]
    page.locator('#table .tabulator-col[tabulator-field="op"] input').press_sequentially("Pool")
    page.wait_for_function("document.querySelectorAll('#table .tabulator-row').length < 4")
    assert all("Pool" in op for op in column(page, "op"))


@pytest.mark.slow
def test_another_chip_is_chosen(
    open_page: Callable[..., Any],
    written: tuple[str, dict[str, Any]],
) -> None:
    html, document = written
    page = open_page(html, 1280, 1000)
    page.select_option("#soc", "1")
    settle(page)
    second = document["estimates"][1]
    assert f"{second['inferences_per_second']:,.0f}" in page.inner_text("#cards")
    pie = page.evaluate(CHART, "ops")["series"][0]["data"]
    assert sum(part["value"] for part in pie) == pytest.approx(second["total_us"], abs=0.1)


def test_names_cannot_break_out_of_the_script(written: tuple[str, dict[str, Any]]) -> None:
    _, document = written
    html = estimate_to_html({**document, "model": "</script><b>"}, "<b>", ["</script>"])
    assert "</script><b>" not in html


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390])
def test_names_of_ops_are_in_a_legend_that_wraps(
    written: tuple[str, dict[str, Any]], open_page: Callable[..., Any], width: int
) -> None:
    page = open_page(written[0], width, 1000)
    settle(page)
    option = page.evaluate("echarts.getInstanceByDom(document.getElementById('ops')).getOption()")
    assert option["series"][0]["label"]["show"] is False
    assert option["legend"][0].get("type", "plain") == "plain"
    assert sum(part["value"] for part in option["series"][0]["data"]) > 0
