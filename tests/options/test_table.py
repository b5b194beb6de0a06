"""The option tables: rows that can be trusted, and arguments that are checked against them."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from openhtp import options
from openhtp.core import status as st
from openhtp.core.enumerations import Priority
from openhtp.core.errors import InvalidArgument, UnsupportedFeature
from openhtp.options import CONTEXT, GRAPH, PROVIDER, TABLES, Flag, Number, Option, PreparedWhere, Table, Whole

_ROOT = Path(__file__).parents[2]
_ROWS = [pytest.param(table, row, id=f"{table.owner}.{row.name}") for table in TABLES for row in table.rows]


@pytest.mark.parametrize(("table", "row"), _ROWS)
def test_a_row_is_sound(table: Table, row: Option) -> None:
    assert row.about.endswith("."), "a sentence"
    if row.default is not None:
        assert row.read(row.default, table.owner, table.status) == row.default
    for other in row.excludes:
        assert row.name in table.option(other).excludes, "both rows say so"
    if row.same_as is not None:
        assert table.option(row.same_as).same_as is None
        assert not row.in_binary, "a binary has one unit"
    if row.sets is not None:
        owner, _, name = row.sets.partition(".")
        assert name in next(table for table in TABLES if table.owner == owner)


@pytest.mark.parametrize("table", TABLES, ids=lambda table: table.owner)
def test_names_and_numbers_are_unique(table: Table) -> None:
    names = [row.name for row in table.rows]
    numbers = [(row.number.htp, row.number.value, row.number.kind) for row in table.rows if row.number]
    keys = [row.config_key for row in table.rows if row.config_key]
    for column in (names, numbers, keys):
        assert len(set(column)) == len(column)


def test_what_is_not_given_has_its_default() -> None:
    values = GRAPH.read({"hvx_threads": 2, "priority": None})
    assert (values.hvx_threads, values.priority, values.precision, values["num_cores"]) == (2, None, "float16", 1)
    assert values != GRAPH.defaults()
    assert GRAPH.read({}) == GRAPH.defaults()


def test_vtcm_comes_in_steps_of_64_kib_or_all_of_it() -> None:
    assert GRAPH.read({"vtcm_bytes": 8323072}).vtcm_bytes == 127 * 65536
    assert GRAPH.read({"vtcm_bytes": "max"}).vtcm_bytes == GRAPH.read({"vtcm_bytes": 0}).vtcm_bytes == 0


def test_another_unit_of_an_option_is_the_same_option() -> None:
    assert GRAPH.read({"vtcm_mb": 4}) == GRAPH.read({"vtcm_bytes": 4 << 20})
    assert "vtcm_mb" not in GRAPH.read({"vtcm_mb": 4})
    assert GRAPH.read({"vtcm_mb": 4, "vtcm_bytes": 65536}) == GRAPH.read({"vtcm_bytes": 65536})
    assert GRAPH.read({"vtcm_bytes": 65536, "vtcm_mb": 4}) == GRAPH.read({"vtcm_mb": 4})


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"hvx_thread": 2}, "graph option 'hvx_thread' does not exist; did you mean hvx_threads"),
        ({"frequency": 2}, "expected one of priority, vtcm_mb"),
        ({"hvx_threads": "2"}, "graph option hvx_threads is '2'; expected a whole number from 1 to 64"),
        ({"hvx_threads": True}, "is True"),
        ({"hvx_threads": 65}, "is 65"),
        ({"hvx_threads": 2.0}, "is 2.0"),
        ({"vtcm_bytes": 65537}, 'expected a multiple of 65536 from 65536 to 1073741824, or "max"'),
        ({"vtcm_bytes": 4096}, "is 4096"),
        ({"precision": "float64"}, "expected one of float16, float32"),
        ({"priority": "urgent"}, "expected one of low, normal_low"),
        ({"core": "x" * 5000}, "..."),
    ],
)
def test_bad_arguments_say_what_is_expected(given: dict[str, object], said: str) -> None:
    with pytest.raises(InvalidArgument) as caught:
        GRAPH.read(given)
    assert said in caught.value.message
    assert len(caught.value.message) < 400
    assert caught.value.status is st.QNN_GRAPH_ERROR_INVALID_ARGUMENT


def test_numbers_and_flags_of_numpy_are_taken() -> None:
    assert GRAPH.read({"hvx_threads": np.int64(3)}).hvx_threads == 3
    assert Flag().read(np.True_) is True


def test_names_are_a_list_of_names() -> None:
    assert CONTEXT.read({"enable_graphs": ["a", "b"]}).enable_graphs == ("a", "b")
    for wrong in ("ab", [1], [""], 5):
        with pytest.raises(InvalidArgument, match="a list of graph names"):
            CONTEXT.read({"enable_graphs": wrong})


def test_a_chip_that_is_too_old_refuses_an_option() -> None:
    table = Table(
        owner="context",
        about="",
        status=st.QNN_CONTEXT_ERROR_INVALID_CONFIG,
        rows=(Option(name="sharing", kind=Flag(), default=False, about="Share.", since_arch=73),),
    )
    assert table.read({"sharing": True}, arch=73).sharing is True
    assert table.read({}, arch=68).sharing is False
    with pytest.raises(UnsupportedFeature, match=r"sharing needs a Hexagon v73 or newer; this one is v68"):
        table.read({"sharing": True}, arch=68)


def test_values_can_be_replaced_but_not_changed() -> None:
    values = GRAPH.read({"priority": "high"})
    assert values.replace(priority="low").priority is Priority.LOW
    assert values.priority is Priority.HIGH
    with pytest.raises(InvalidArgument):
        values.replace(priority="no")
    with pytest.raises(AttributeError, match="graph has no option 'frequency'"):
        _ = values.frequency
    with pytest.raises(AttributeError):
        values.priority = Priority.LOW


def test_values_survive_storing_and_pickling() -> None:
    values = GRAPH.read({"priority": "high", "vtcm_mb": 8, "core": 1})
    assert GRAPH.read_stored(values.stored()) == values
    assert all(type(value) in (int, str, bool, type(None)) for value in values.stored().values())
    assert pickle.loads(pickle.dumps(values)) == values


def test_a_binary_cannot_smuggle_in_an_option() -> None:
    with pytest.raises(InvalidArgument, match="does not belong in a context binary"):
        CONTEXT.read_stored({"queue_depth": 5})
    with pytest.raises(InvalidArgument, match="hvx_threads is -1"):
        GRAPH.read_stored({"hvx_threads": -1})


def test_provider_options_are_text_whatever_they_were() -> None:
    values = PROVIDER.read({"vtcm_mb": 4, "enable_htp_fp16_precision": 1})
    assert (values["vtcm_mb"], values["enable_htp_fp16_precision"]) == ("4", "1")
    for wrong in ({"vtcm_mb": "-1"}, {"vtcm_mb": "٣"}, {"vtcm_mb": True}, {"device_id": "1"}):
        with pytest.raises(InvalidArgument):
            PROVIDER.read(wrong)


def test_an_offline_option_says_so_on_the_page() -> None:
    row = Option(
        name="x",
        kind=Whole(0, 1),
        about="X.",
        prepared=PreparedWhere.OFFLINE,
        number=Number(name="QNN_X", value=7, htp=True),
    )
    sys.path.insert(0, str(_ROOT / "tools"))
    try:
        import gen_options_doc
    finally:
        sys.path.pop(0)
    assert gen_options_doc._facts(row) == ["X.", "Offline only: on linux.", "Number 7 (HTP): `QNN_X`."]


def test_the_reference_page_is_up_to_date() -> None:
    command = [sys.executable, str(_ROOT / "tools" / "gen_options_doc.py"), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_names_of_the_last_release_answer_with_a_warning():
    with pytest.warns(DeprecationWarning, match=r"options\.Origin is now openhtp\.options\.ContextOrigin"):
        assert options.Origin is options.ContextOrigin
    with pytest.raises(AttributeError, match="no attribute 'Colour'"):
        options.Colour
