"""docs/onnx.md lists every provider option with its default, and every operator of the provider's table."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from openhtp import InferenceSession
from openhtp.cli.main import app
from openhtp.frontend.rules import plain_rules, rules
from openhtp.options import PROVIDER
from openhtp.session.options import CONFIG_KEYS

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/onnx.md").read_text()
OPERATORS = (ROOT / "tests/conformance/operators.txt").read_text().split()


@pytest.mark.parametrize("name", PROVIDER.defaults())
def test_provider_option_is_listed_with_its_default(name: str) -> None:
    (row,) = re.findall(rf"^\| `{name}` \|(.*?)\|", PAGE, re.MULTILINE)
    assert row.strip() == PROVIDER.option(name).default


@pytest.mark.parametrize("key", CONFIG_KEYS)
def test_session_key_is_listed(key: str) -> None:
    assert f"| `{key}` |" in PAGE


def test_f_every_method_of_a_session_is_on_the_page() -> None:
    section = PAGE[PAGE.index("## The session") :]
    methods = [name for name in vars(InferenceSession) if not name.startswith("_") and name != "executable"]
    assert [name for name in methods if f"`{name}" not in section] == []
    assert "not offered" not in section.partition("Session options")[0]


@pytest.mark.parametrize("operator", OPERATORS)
def test_operator_is_listed_and_has_a_rule(operator: str) -> None:
    table = PAGE[PAGE.index("| operator |") : PAGE.index("Beyond the provider's table")]
    assert re.search(rf"\b{operator}\b", table)
    assert operator in rules() or operator in plain_rules() or operator in ("QuantizeLinear", "DequantizeLinear")


def test_further_operators_have_rules() -> None:
    text = re.search(r"Beyond the provider's table: (.*?)\. An", PAGE, re.DOTALL)
    assert text is not None
    for operator in text[1].replace("\n", " ").split(", "):
        assert operator.strip() in rules() or operator.strip() in plain_rules(), operator


def test_operators_written_as_others_have_node_tests() -> None:
    text = re.search(r"Written as others: (.*?)\. So", PAGE, re.DOTALL)
    assert text is not None
    tested = (ROOT / "tests/conformance/beyond.txt").read_text().split()
    for operator in text[1].replace("\n", " ").split(", "):
        assert operator in tested, operator
        assert operator not in rules(), operator


def test_quantize_page_has_the_command_s_options() -> None:
    page = (ROOT / "docs/quantization.md").read_text()
    shown = CliRunner().invoke(app, ["quantize", "--help"], env={"COLUMNS": "200"}).output
    for option in re.findall(r"`(--[a-z-]+)", page):
        assert option in shown, option
