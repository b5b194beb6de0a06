"""``openhtp memory plan``: the document's examples from the command line, files of contexts, and binaries."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

import openhtp as htp
from openhtp.cli.main import app
from openhtp.program.binary import BinaryInfo, pack_graphs, read_binary
from tests.conftest import relu_graph

CROWD = [f"{number}=0.9GB,io=46MB" for number in range(1, 6)]


def plan(*arguments: str) -> tuple[int, str]:
    done = CliRunner(env={"COLUMNS": "80"}).invoke(app, ["memory", "plan", *arguments])
    return done.exit_code, done.output


def test_five_models_are_packed() -> None:
    status, text = plan("a=1.5GB", "b=1.5GB", "c=1GB", "d=1GB", "e=250MB", "--json", "-")
    assert status == 0
    document = json.loads(text)
    assert [context["domain"] for context in document["contexts"]] == [0, 0, 1, 1, 0]
    assert document["fits"] is True


def test_what_fails_is_shown_and_what_helps(tmp_path: Path) -> None:
    status, text = plan(*CROWD, "--domains", "2")
    assert status == 1
    assert "map I/O of 4 fails" in text
    assert all(len(line) <= 80 for line in text.splitlines())
    page = tmp_path / "page.html"
    status, text = plan(*CROWD, "--domains", "2", "--optimize", "--html", str(page))
    assert status == 0
    assert "io_memory_estimation=True" in text
    html = page.read_text()
    assert "Everything fits." in html
    svg = ElementTree.fromstring(html[html.index("<svg") : html.index("</svg>") + 6])
    titles = [element.text for element in svg.iter() if element.tag.endswith("title")]
    assert "4: weights 921.6 MiB" in titles


def test_files_of_contexts(tmp_path: Path) -> None:
    path = tmp_path / "contexts.yaml"
    path.write_text(
        "contexts:\n"
        "- {name: vision, size: 2GB, io: 30MB}\n"
        "- name: llm\n"
        "  shared: 1GB\n"
        "  graphs: [{name: prefill, size: 2GB}, {name: decode, size: 1.5GB}]\n"
        "  retained: [decode]\n"
    )
    status, text = plan(str(path), "--json", "-")
    llm = json.loads(text)["contexts"][1]
    assert status == 0
    assert (llm["domain"], llm["weights_bytes"]) == (1, 5 << 29)


def test_binaries_are_read_and_not_loaded(shared_device: htp.Device, tmp_path: Path) -> None:
    path = tmp_path / "net.bin"
    with shared_device.create_context() as context:
        relu_graph(context, "net")
        path.write_bytes(context.get_binary())
    status, text = plan(str(path), "--json", "-")
    assert status == 0
    (found,) = json.loads(text)["contexts"]
    assert (found["name"], found["graphs"], found["io_bytes"]) == ("net", ["net"], 64)
    assert found["vtcm_backup_bytes"] == 4096, "what is in VTCM at once: eight numbers"


def test_files_of_one_name_are_numbered(shared_device: htp.Device, tmp_path: Path) -> None:
    path = tmp_path / "net.bin"
    with shared_device.create_context() as context:
        relu_graph(context, "net")
        path.write_bytes(context.get_binary())
    status, text = plan(str(path), str(path), "other=1MB", str(path), "--json", "-")
    assert status == 0, text
    assert [each["name"] for each in json.loads(text)["contexts"]] == ["net", "net (2)", "other", "net (3)"]


def test_a_graph_that_no_device_compiled_may_have_all_vtcm(shared_device: htp.Device, tmp_path: Path) -> None:
    path = tmp_path / "net.bin"
    with shared_device.create_context() as context:
        relu_graph(context, "net")
        stored = read_binary(context.get_binary()).packed("net")
    unknown = dataclasses.replace(stored, vtcm_peak_bytes=None)
    path.write_bytes(b"".join(pack_graphs([unknown], BinaryInfo())))
    for soc, mib in (("SM8650", 8), ("SM7325", 4)):
        _, text = plan(str(path), "--soc", soc, "--json", "-")
        assert json.loads(text)["contexts"][0]["vtcm_backup_bytes"] == mib << 20, soc


def test_backup_buffers_of_contexts_that_run_at_the_same_time(tmp_path: Path) -> None:
    """One for the group, where contexts that run in turn have their own."""
    for concurrent, backups in (("true", 8), ("false", 24)):
        path = tmp_path / "contexts.yaml"
        path.write_text(
            "contexts:\n"
            f"- {{name: a, size: 1GB, group: x, concurrent: {concurrent}, backup: 8MB}}\n"
            f"- name: b\n  group: x\n  concurrent: {concurrent}\n"
            "  graphs: [{name: c, size: 1GB, backup: 8MB}, {name: d, size: 1GB, backup: 8MB}]\n"
        )
        status, text = plan(str(path), "--json", "-")
        assert status == 0
        holdings = json.loads(text)["domains"][0]["holdings"]
        assert sum(one["bytes"] for one in holdings if one["use"] == "vtcm_backup") == backups << 20


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["llm=large"], "llm=large: size: expected a size like 1.5GB, 250MB or 4096, found 'large'"),
        (["llm=1GB,weight=3"], "expected name=size"),
        (["a=1GB", "a=2GB"], "two contexts of one name"),
        (["missing.bin"], "missing.bin"),
        (["a=1GB", "--soc", "SM1"], "SoC 'SM1' is unknown"),
    ],
)
def test_mistakes_are_told(arguments: list[str], said: str) -> None:
    status, text = plan(*arguments)
    assert status == 2
    assert said in " ".join(text.split())


def test_a_config_says_how_contexts_are_loaded(tmp_path: Path) -> None:
    config = tmp_path / "htp.json"
    config.write_text('{"context": {"io_memory_estimation": true}}')
    assert plan(*CROWD, "--domains", "2")[0] == 1
    status, text = plan(*CROWD, "--domains", "2", "--config_file", str(config), "--json", "-")
    assert (status, [context["domain"] for context in json.loads(text)["contexts"]]) == (0, [0, 0, 0, 1, 1])


def test_a_config_says_which_graphs_are_loaded_and_when(tmp_path: Path) -> None:
    (tmp_path / "llm.yaml").write_text(
        "contexts: [{name: llm, graphs: [{name: a, size: 1GB}, {name: b, size: 1GB}, {name: c, size: 1GB}]}]"
    )
    switched: dict[str, object] = {"is_persistent_binary": True, "memory_limit_hint": 1}
    options: dict[str, object]
    for options, gib, retained in (
        ({}, 3, []),
        ({"enable_graphs": ["a", "c"]}, 2, []),
        (switched, 1, []),
        (
            {"is_persistent_binary": True, "memory_limit_hint": 1, "graph_retention_order": ["c", "b"]},
            2,
            ["c", "b"],
        ),
    ):
        config = tmp_path / "htp.json"
        config.write_text(json.dumps({"context_configs": options}))
        _, text = plan(str(tmp_path / "llm.yaml"), "--config_file", str(config), "--json", "-")
        (found,) = json.loads(text)["contexts"]
        assert (found["weights_bytes"] >> 30, found["retained"]) == (gib, retained), options


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            "{name: a, io: 1MB, graphs: [{name: g, size: 1GB}]}",
            "contexts[0].io: stands beside the graphs; give it",
        ),
        ("{name: a, graphs: []}", "contexts[0].graphs: expected at least one graph"),
        ("{name: a, graphs: [{name: g, size: 1}, {name: g, size: 1}]}", "two graphs of one name among g, g"),
        ("{name: a, size: 1GB, switching: 'yes'}", "contexts[0].switching: expected true or false, found 'yes'"),
        (
            "{name: a, size: 1GB, io_memory_estimation: 1}",
            "io_memory_estimation: expected true or false, found 1",
        ),
    ],
)
def test_what_a_file_says_in_vain_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "contexts.yaml"
    path.write_text(f"contexts: [{text}]")
    status, said = plan(str(path))
    assert status == 2
    assert words in " ".join(said.split())


def test_a_domain_of_no_bytes_is_refused() -> None:
    status, said = plan("a=1GB", "--limit", "0")
    assert (status, "expected a size above 0" in said) == (2, True)
