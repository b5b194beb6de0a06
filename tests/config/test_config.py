"""Config files: what they may say, and what they come to."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from openhtp.config import GENERAL, HTP, BackendConfig, Section, as_config, parse_config, read_config
from openhtp.core import telling
from openhtp.core.errors import InvalidArgument
from openhtp.options import CONTEXT, DEVICE, GRAPH

WHOLE: dict[str, Any] = {
    "graphs": [
        {
            "graph_names": ["a", "b"],
            "vtcm_mb": 4,
            "hvx_threads": 3,
            "O": 3.0,
            "dlbc": 1,
            "dlbc_weights": 0,
            "weights_packing": False,
            "num_cores": 1,
            "short_depth_conv_on_hmx_off": True,
            "fold_relu_activation_into_conv_off": False,
            "slc_alloc_enable": 1,
        },
        {"graph_names": ["c"], "vtcm_size": 65536},
    ],
    "devices": [
        {
            "device_id": 0,
            "core_id": [0],
            "core_type": 0,
            "soc_id": 0,
            "soc_model": 57,
            "dsp_arch": "v73",
            "pd_session": "unsigned",
            "profiling_level": "linting",
            "use_client_context": False,
            "cores": [
                {
                    "perf_profile": "burst",
                    "rpc_control_latency": 100,
                    "rpc_polling_time": 5000,
                    "hmx_timeout_us": 300000,
                    "adaptive_polling_time": 1000,
                }
            ],
        }
    ],
    "context": {
        "weight_sharing_enabled": True,
        "max_spill_fill_buffer_for_group": 1048576,
        "group_id": 0,
        "file_read_memory_budget_in_mb": 10,
        "io_memory_estimation": True,
        "init_acceleration": False,
        "lora_weight_sharing": False,
    },
    "groupContext": {"share_resources": True},
    "memory": {"mem_type": "shared_buffer"},
}


def test_the_whole_document_is_understood() -> None:
    config = parse_config(WHOLE)
    assert config.device_options() == {"soc": "SM8650", "device_id": 0, "pd_session": "unsigned"}
    assert config.perf_profile == "burst"
    (core,) = config.cores
    assert (core.rpc_polling_us, core.rpc_control_latency_us) == (5000, 100)
    assert (core.hmx_timeout_us, core.adaptive_polling_us) == (300000, 1000)
    assert (config.profiling_level, config.mem_type) == ("linting", "shared_buffer")
    assert config.spill_fill_group_bytes == 1048576
    options = config.graph_options("b")
    assert {name: options[name] for name in ("vtcm_mb", "hvx_threads", "optimization_level", "core")} == {
        "vtcm_mb": 4,
        "hvx_threads": 3,
        "optimization_level": 3,
        "core": 0,
    }
    assert config.graph_options("c") == {"vtcm_bytes": 65536, "core": 0}
    assert config.graph_options("elsewhere") == {"core": 0}
    assert config.graph_names == ("a", "b", "c")
    context = config.context_options()
    assert context["weight_sharing_enabled"] is True
    assert context["file_read_memory_budget_in_mb"] == 10
    assert context["share_resources"] is True


@pytest.mark.parametrize(
    ("key", "value", "option", "becomes"),
    [
        ("vtcm_mb", 2, "vtcm_mb", 2),
        ("hvx_threads", 2, "hvx_threads", 2),
        ("O", 3, "optimization_level", 3),
        ("dlbc", 1, "dlbc", True),
        ("dlbc_weights", 1, "dlbc_weights", True),
        ("weights_packing", True, "weights_packing", True),
        ("num_cores", 2, "num_cores", 2),
        ("short_depth_conv_on_hmx_off", True, "short_depth_conv_on_hmx_off", True),
        ("fold_relu_activation_into_conv_off", True, "fold_relu_activation_into_conv_off", True),
        ("slc_alloc_enable", 1, "slc_alloc_enable", True),
    ],
)
def test_a_key_of_graphs_is_the_option_of_those_it_names(
    key: str, value: object, option: str, becomes: object
) -> None:
    config = parse_config({"graphs": [{"graph_names": ["a"], key: value}]})
    assert (config.graph_options("a"), config.graph_options("b")) == ({option: becomes}, {})
    assert str(GRAPH.read(config.graph_options("a"))) != str(GRAPH.read({})), "not the default"


@pytest.mark.parametrize(
    ("key", "value", "option"),
    [
        ("weight_sharing_enabled", True, "weight_sharing_enabled"),
        ("lora_weight_sharing", True, "lora_weight_sharing_enabled"),
        ("file_read_memory_budget_in_mb", 25, "file_read_memory_budget_in_mb"),
        ("io_memory_estimation", True, "io_memory_estimation"),
        ("init_acceleration", True, "init_acceleration"),
    ],
)
def test_a_key_of_the_context_is_its_option(key: str, value: object, option: str) -> None:
    config = parse_config({"context": {key: value}})
    assert config.context_options() == {option: value}
    assert CONTEXT.read({})[option] != value


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("is_persistent_binary", True),
        ("memory_limit_hint", 7),
        ("enable_graphs", ("b", "a")),
        ("graph_retention_order", ("a",)),
        ("spill_fill_buffer", -1),
        ("weights_buffer", 4096),
    ],
)
def test_a_key_of_context_configs_is_the_option_of_its_name(key: str, value: object) -> None:
    assert parse_config({"context_configs": {key: value}}).context_options() == {key: value}


def test_what_it_comes_to_are_options_of_the_tables() -> None:
    config = parse_config(WHOLE)
    assert all(name in GRAPH for name in config.graph_options("a"))
    assert all(name in CONTEXT for name in config.context_options())
    DEVICE.read(config.device_options())


def test_every_option_with_a_config_key_can_be_given() -> None:
    """A row of the tables that has a key in the documents is reached from here."""
    reached = {key.option for section in _sections(HTP, GENERAL) for key in section.keys}
    wanted = {
        f"{table.owner}.{row.name}" for table in (CONTEXT, DEVICE, GRAPH) for row in table.rows if row.config_key
    }
    assert wanted <= reached


def _sections(*roots: Section) -> list[Section]:
    found = list(roots)
    for root in roots:
        found += _sections(*root.sections)
    return found


def test_zero_vtcm_is_all_there_is() -> None:
    assert parse_config({"graphs": [{"graph_names": ["g"], "vtcm_mb": 0}]}).graph_options("g") == {}


def test_c13_of_two_wishes_for_vtcm_the_last_holds() -> None:
    for entries, options in (
        ([{"vtcm_mb": 1, "vtcm_size": 65536}], {"vtcm_bytes": 65536}),
        ([{"vtcm_size": 65536, "vtcm_mb": 1}], {"vtcm_mb": 1}),
        ([{"vtcm_size": 65536}, {"vtcm_mb": 0}], {}),
        ([{"vtcm_mb": 1}, {"vtcm_size": 65536}], {"vtcm_bytes": 65536}),
    ):
        graphs = [{"graph_names": ["g"], **entry} for entry in entries]
        assert parse_config({"graphs": graphs}).graph_options("g") == options


def test_numbers_of_one_and_more_turn_compression_on() -> None:
    for number, on in ((0, False), (1, True), (2.0, True)):
        for key, other in (("dlbc", "dlbc_weights"), ("dlbc_weights", "dlbc")):
            options = parse_config({"graphs": [{"graph_names": ["g"], key: number}]}).graph_options("g")
            assert options[key] is on
            assert other not in options


def test_the_older_name_of_a_chip() -> None:
    for devices, soc in (
        ({"soc_id": 43}, "SM8550"),
        ({"soc_id": 43, "soc_model": 57}, "SM8650"),
        ({"soc_model": 0, "dsp_arch": "v79"}, "SM8750"),
    ):
        assert parse_config({"devices": [devices]}).device_options() == {"soc": soc}


def test_another_type_of_core_is_refused() -> None:
    with pytest.raises(InvalidArgument, match="/devices/0/core_type is 1; expected 0, as 0 is the NSP"):
        parse_config({"devices": [{"core_type": 1}]})


def test_a_context_may_be_a_list_of_one() -> None:
    assert parse_config({"context": [{"init_acceleration": True}]}).context_options() == {
        "init_acceleration": True
    }


def test_the_file_that_names_the_other(tmp_path: Path) -> None:
    (tmp_path / "htp.json").write_text(json.dumps(WHOLE))
    outer = tmp_path / "net_run.json"
    outer.write_text(
        """{
        // as the document has it
        "backend_extensions": {"shared_library_path": "lib//Extensions.so", /* not needed */
                               "config_file_path": "htp.json"},
        "context_configs": {"context_priority": "high", "async_execute_queue_depth": 20},
        "graph_configs": [{"graph_name": "a", "graph_priority": "low"}]
        }"""
    )
    config = read_config(outer)
    assert config.device_options()["soc"] == "SM8650"
    assert config.context_options()["queue_depth"] == 20
    assert config.graph_options("a")["priority"] == "low"
    assert as_config(str(outer)) == config
    assert as_config(config) is config


@pytest.mark.parametrize("library", ["/sdk/lib/libQnnGpuNetRunExtensions.so", "QnnDspNetRunExtensions.dll", ""])
def test_options_of_another_backend_are_refused(tmp_path: Path, library: str) -> None:
    path = tmp_path / "net_run.json"
    path.write_text(json.dumps({"backend_extensions": {"shared_library_path": library}}))
    with pytest.raises(InvalidArgument, match=r"expected the path of libQnnHtpNetRunExtensions\.so"):
        read_config(path)
    path.write_text('{"backend_extensions": {"shared_library_path": "./libQnnHtpNetRunExtensions.so"}}')
    read_config(path)


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"graph": []}, "/graph is not known; did you mean graphs"),
        ({"graphs": {}}, "/graphs is .*; expected a list of objects"),
        ({"graphs": [3]}, "/graphs/0 is 3; expected an object"),
        ({"graphs": [{"vtcm": 4}]}, "/graphs/0/vtcm is not known; did you mean vtcm_mb"),
        ({"graphs": [{"vtcm_mb": "4"}]}, "/graphs/0/vtcm_mb is '4'; expected a whole number of MB from 0"),
        ({"graphs": [{"vtcm_mb": True}]}, "/graphs/0/vtcm_mb is True"),
        ({"graphs": [{"graph_names": "g"}]}, "/graphs/0/graph_names is 'g'; expected a list"),
        ({"graphs": [{"O": 2.5}]}, "/graphs/0/O is 2.5"),
        (
            {"devices": [{"use_client_context": True}]},
            "/use_client_context is True; expected false, as chips from v68",
        ),
        ({"graphs": [{"O": 4}]}, "/graphs/0/O is 4; expected a whole number from 1 to 3"),
        ({"graphs": [{"vtcm_size": 65537}]}, "a multiple of 65536"),
        ({"graphs": [{"weights_packing": 1}]}, "/graphs/0/weights_packing is 1; expected True or False"),
        ({"devices": [{"soc_model": 99999}]}, "/devices/0/soc_model is 99999; expected the model number"),
        ({"devices": [{"dsp_arch": "73"}]}, "/devices/0/dsp_arch is '73'; expected one of v68"),
        ({"devices": [{"device_id": 16}]}, "/devices/0/device_id is 16; expected a whole number from 0 to 15"),
        ({"devices": [{"cores": [{}, {"perf_profile": "brust"}]}]}, "/devices/0/cores/1/perf_profile is 'brust'"),
        ({"devices": [{"cores": [{"rpc_polling_time": 10000}]}]}, "rpc_polling_time is 10000; .* to 9999"),
        ({"devices": [{"pd_session": "none"}]}, "expected one of unsigned, signed"),
        ({"context": {"max_spill_fill_buffer_for_group": 1}}, 'without "group_id": 0'),
        ({"context": [{}, {}]}, "/context is .*; expected an object"),
        ({"context": {"weight_sharing": True}}, "did you mean .*weight_sharing_enabled"),
        ({"memory": {"mem_type": "ion"}}, "/memory/mem_type is 'ion'; expected one of shared_buffer"),
        ({"backend_extensions": {"config_path": "x"}}, "did you mean config_file_path"),
        ({"backend_extensions": {}, "graphs": []}, "/graphs is not known"),
        ({"backend_extensions": {"config_file_path": "none.json"}}, "'none.json', which is no file"),
        ({"graph_configs": [{"graph_priority": "low"}]}, "/graph_configs/0 has no graph_name"),
        ({"a/b~": 1}, "/a~1b~0 is not known"),
    ],
)
def test_what_is_wrong_is_named_with_its_place(given: dict[str, Any], words: str) -> None:
    for form in (given, json.dumps(given)):
        with pytest.raises(InvalidArgument, match=words) as caught:
            parse_config(form, "c.json")
        assert str(caught.value).startswith("c.json: ")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "line 1, column 1"),
        ('{"graphs": [}', "line 1, column 13: .* expected JSON"),
        ("{\n// x\n  oops}", "line 3, column 3"),
        ("[]", r"is \[\]; expected an object"),
        ('{"graphs": [], "graphs": []}', "the key 'graphs' comes twice"),
        ('{"devices": [{"cores": [{"rpc_polling_time": NaN}]}]}', "NaN is no JSON"),
        ("[" * 100_000, "expected JSON"),
        ('{"x": ' + "9" * 5000 + "}", "expected JSON"),
    ],
)
def test_broken_files_are_told(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "broken.json"
    path.write_text(text)
    with pytest.raises(InvalidArgument, match=words) as caught:
        read_config(path)
    assert "broken.json" in str(caught.value)


def test_what_is_no_file_or_no_text_is_told(tmp_path: Path) -> None:
    with pytest.raises(InvalidArgument, match="nowhere"):
        read_config(tmp_path / "nowhere.json")
    with pytest.raises(InvalidArgument, match="folder"):
        read_config(tmp_path)
    path = tmp_path / "latin.json"
    path.write_bytes(b'{"\xff": 1}')
    with pytest.raises(InvalidArgument, match="byte 2 is no UTF-8"):
        read_config(path)
    with pytest.raises(InvalidArgument, match="expected a path, or a mapping"):
        as_config(3)  # type: ignore[arg-type]


class _Voter:
    def __init__(self) -> None:
        self.votes: list[tuple[int, str, dict[str, int | None]]] = []

    def set_perf_profile(self, name: str, **times: int | None) -> None:
        self.votes.append((0, name, times))

    def create_power_config(self, core: int = 0) -> _CoreVoter:
        return _CoreVoter(self, core)


class _CoreVoter:
    def __init__(self, voter: _Voter, core: int) -> None:
        self.voter, self.core = voter, core

    def set_perf_profile(self, name: str, **times: int | None) -> None:
        self.voter.votes.append((self.core, name, times))


def test_votes() -> None:
    voter = _Voter()
    parse_config({}).vote(voter)
    assert voter.votes == []
    config = parse_config({"devices": [{"cores": [{"rpc_polling_time": 10}]}]})
    config.vote(voter)
    config.with_perf_profile("power_saver").vote(voter)
    parse_config({}).with_perf_profile("burst").vote(voter)
    assert [name for _, name, _ in voter.votes] == ["high_performance", "power_saver", "burst"]
    assert [times["rpc_polling_us"] for *_, times in voter.votes] == [10, 10, None]
    with pytest.raises(InvalidArgument, match="perf profile"):
        config.with_perf_profile("fast")


@pytest.mark.parametrize(
    ("content", "profile"),
    [
        ({"graphs": [{"graph_names": ["g"], "vtcm_mb": 4}]}, "high_performance"),
        ({"devices": [{"soc_model": 43}]}, "high_performance"),
        ({"devices": [{"soc_model": 43}, {"cores": [{"perf_profile": "burst"}]}]}, "burst"),
        ({"context_configs": {"async_execute_queue_depth": 3}}, None),
    ],
    ids=str,
)
def test_c8_a_file_of_the_backend_votes_also_without_cores(content: dict[str, Any], profile: str | None) -> None:
    voter = _Voter()
    config = parse_config(content)
    config.vote(voter)
    assert [name for _, name, _ in voter.votes] == ([profile] if profile else [])
    assert config.perf_profile == profile


@pytest.mark.parametrize(
    ("section", "key", "value", "default"),
    [
        ("graphs", "fp16_relaxed_precision", 1, 0),
        ("graphs", "share_io_buffer", True, False),
        ("cores", "ddr_perf_mode", True, False),
    ],
)
def test_c10_a_key_without_effect_is_told_of_once(
    section: str,
    key: str,
    value: object,
    default: object,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    monkeypatch.setattr(telling, "told", set())

    def read(chosen: object) -> None:
        entry = {key: chosen}
        parse_config({"devices": [{"cores": [entry]}]} if section == "cores" else {section: [entry]}, "c.json")

    read(default)
    assert not caplog.records
    read(value)
    read(value)
    (record,) = caplog.records
    assert record.levelname == "WARNING"
    assert f"c.json: {key} is " in record.message
    assert "no effect" in record.message


def test_each_core_has_votes_of_its_own() -> None:
    voter = _Voter()
    cores = [{"core_id": 1, "perf_profile": "burst"}, {"core_id": 1, "perf_profile": "balanced"}, {}]
    parse_config({"devices": [{"cores": cores}]}).vote(voter)
    assert [(core, name) for core, name, _ in voter.votes] == [(1, "balanced"), (0, "high_performance")]


def test_an_empty_config_says_nothing() -> None:
    config: BackendConfig = parse_config({})
    assert (config.device_options(), config.context_options(), config.graph_options("g")) == ({}, {}, {})
    assert (config.perf_profile, config.profiling_level, config.mem_type) == (None, None, None)


def test_the_reference_page_is_up_to_date() -> None:
    tool = Path(__file__).parents[2] / "tools" / "gen_config_doc.py"
    done = subprocess.run([sys.executable, str(tool), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout


@pytest.mark.parametrize("unit", ["/*", "/*\n", '"', '"\\', "//", '"a\n'])
def test_beginnings_without_end_are_read_once(unit: str) -> None:
    """Each would otherwise be looked for an end in all that follows."""
    with pytest.raises(InvalidArgument):
        parse_config(unit * 500_000)


def test_a_comment_that_does_not_end_is_none() -> None:
    assert parse_config('{"graphs": []} /* all of them */').graph_names == ()
    for text in ("/* none", "/*", "/*/"):
        with pytest.raises(InvalidArgument, match="expected JSON"):
            parse_config('{"graphs": []} ' + text)
