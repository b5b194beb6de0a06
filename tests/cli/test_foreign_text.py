"""Names from files and of other clients: printed by every command, obeyed by no terminal, picture or page."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
import uuid
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

import openhtp as htp
from openhtp.cli._tool_options import logged
from openhtp.cli.main import app
from openhtp.core.foreign_text import PrintableFormatter, to_json
from tests.cli.foreign_names import (
    EVIL,
    FORGED,
    named,
    write_model,
    write_network,
    write_plain_model,
    write_scenario,
)
from tests.conftest import relu_graph
from tests.waiting import PATIENCE_S


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, shared_device: htp.Device) -> Path:
    """A model, scenarios, a context binary, a study and its store; all names are hostile."""
    place = tmp_path_factory.mktemp("foreign")
    write_model(place / "model.onnx")
    write_plain_model(place / "plain.onnx", 16)
    write_network(place / "network.onnx")
    write_scenario(place / "scenario.yaml")
    with shared_device.create_context() as context:
        relu_graph(context, named("graph"))
        (place / "context.bin").write_bytes(context.get_binary())
    contexts = {
        "contexts": [{"name": named(str(place)), "size": size} for place, size in enumerate(("3GB", "5GB"))]
    }
    (place / "contexts.yaml").write_text(json.dumps(contexts))
    study = {
        "name": named("study"),
        "measure": "plan",
        "axes": {"scenario": "scenario.yaml", "policy": ["strict", "fair"]},
    }
    (place / "study.yaml").write_text(json.dumps(study))
    return place


def run(*words: object, code: tuple[int, ...] = (0,)) -> str:
    """What a command prints, on both streams."""
    done = CliRunner().invoke(app, [str(word) for word in words], env={"COLUMNS": "2000"})
    assert done.exit_code in code, done.output + str(done.exception)
    return done.output


def assert_harmless(text: str, *, with_names: bool = True) -> None:
    letters = sorted({letter for letter in text if letter != "\n" and not letter.isprintable()})
    assert letters == []
    assert not [line for line in text.splitlines() if line.strip(" │").startswith(FORGED)]
    assert not with_names or "evil" in text, "the command shows no name at all, so this test shows nothing"


class Elements(HTMLParser):
    """The names of all elements that a page has."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.found.append(tag)


def assert_page(path: Path) -> None:
    """That no name became an element: scripts are those of the template, which close as often as they open."""
    text = path.read_text(encoding="utf-8")
    elements = Elements()
    elements.feed(text)
    assert "evil" in text
    assert "<script>&" not in text
    assert elements.found.count("script") == text.count("</script>")


COMMANDS = {
    "run": (
        ["run", "model.onnx", "--repeat", "1", "--check", "--check-range", "--profile"],
        (0, 1),
    ),
    "advise": (["advise", "network.onnx"], (0,)),
    "estimate": (["estimate", "plain.onnx", "--soc", "SM8650", "--top", "3"], (0,)),
    "profile": (["profile", "plain.onnx", "-o", "profiled"], (0,)),
    "profile linting": (["profile", "plain.onnx", "-o", "linted", "--level", "linting"], (0,)),
    "context-binary-utility": (["context-binary-utility", "--context_binary", "context.bin"], (0,)),
    "plan": (["plan", "scenario.yaml"], (0,)),
    "plan and search": (["plan", "scenario.yaml", "--optimize", "--policy", "strict,fair"], (1,)),
    "plan and check": (["plan", "scenario.yaml", "--check", "--max-miss-rate", "0"], (1,)),
    "quantize": (["quantize", "plain.onnx", "--random", "2", "--trace-accuracy", "-o", "q.onnx"], (0,)),
    "memory": (["memory", "plan", "contexts.yaml", "--optimize"], (0, 1)),
    "sweep": (["sweep", "run", "study.yaml", "--store", "points", "--workers", "1"], (0,)),
    "error": (["estimate", "model.onnx", "--soc", "SM8650"], (2,)),
}


@pytest.mark.parametrize("name", COMMANDS)
def test_names_of_a_file(folder: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(folder)
    words, code = COMMANDS[name]
    assert_harmless(run(*words, code=code))


def test_readers_of_a_profile(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    run("profile", "plain.onnx", "-o", "two")
    log, schematic = "two/profile.log", next(folder.glob("two/*_schematic.bin"))
    for reader in ("default", "htp", "json"):
        text = run("profile-viewer", "--input_log", log, "--reader", reader, "--schematic", schematic, code=(0, 2))
        assert_harmless(text, with_names=False)
    text = run("profile-viewer", "--input_log", log, "--reader", "json")
    assert_harmless(text)
    assert named("graph") in _texts(json.loads(text)), "JSON keeps the name, escaped by its own rules"
    assert_harmless(run("profile-diff", schematic, schematic, code=(0, 1, 2)), with_names=False)
    for page in folder.glob("two/*.html"):
        assert_page(page)


def test_pictures_and_pages_of_a_plan(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    files = ["--svg", "plan.svg", "--timeline", "plan.html", "--trace", "plan.json"]
    assert_harmless(run("plan", "scenario.yaml", *files))
    assert "evil" in "".join(ElementTree.parse(folder / "plan.svg").getroot().itertext())
    assert_page(folder / "plan.html")
    assert named("camera") in _texts(json.loads((folder / "plan.json").read_text()))
    run("plan", "scenario.yaml", "--svg", "plan.png")
    assert (folder / "plan.png").read_bytes().startswith(b"\x89PNG")


def test_other_pages(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)
    run("memory", "plan", "contexts.yaml", "--html", "memory.html", code=(0, 1))
    run("estimate", "plain.onnx", "--soc", "SM8650", "--html", "estimate.html")
    run("sweep", "run", "study.yaml", "--store", "paged", "--workers", "1", "--html", "sweep.html")
    for name in ("memory", "estimate", "sweep"):
        assert_page(folder / f"{name}.html")


def test_a_file_whose_name_is_no_text(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A byte that is no UTF-8 is a lone surrogate in Python, which neither XML nor a page can hold."""
    monkeypatch.chdir(folder)
    name = os.fsdecode(b"\xff\x1b[2J") + ".yaml"
    scenario = json.loads((folder / "scenario.yaml").read_text())
    del scenario["name"]  # then it is that of the file
    Path(name).write_text(json.dumps(scenario))
    files = ["--svg", "odd.svg", "--timeline", "odd.html", "--trace", "odd.json", "--json", "odd-result.json"]
    assert_harmless(run("plan", name, *files))
    ElementTree.parse(folder / "odd.svg")
    assert_page(folder / "odd.html")
    json.loads((folder / "odd-result.json").read_text())
    assert_harmless(run("plan", f"missing{name}", code=(2,)), with_names=False)
    assert_harmless(run("plan", "scenario.yaml", name, code=(2,)), with_names=False)


def test_graphs_of_another_client(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: htp.Backend) -> None:
    monkeypatch.setenv("OPENHTP_RUNTIME_DIR", str(tmp_path / "run"))
    device = backend.create_device(name=f"shared-{uuid.uuid4().hex[:8]}")
    context = device.create_context()
    relu_graph(context, named("graph"))
    context.create_app(named("app"), hvx=1)
    assert_harmless(run("device", "list"))
    assert_harmless(run("device", "status"))


def test_a_traceback_and_a_log_line_command_no_terminal() -> None:
    script = f"""if True:
        import logging
        from openhtp.cli._terminal import settle_streams
        settle_streams()
        logging.getLogger("openhtp.anything").warning("graph %s", {EVIL!r})
        raise ValueError({EVIL!r})
    """
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=PATIENCE_S, check=False
    )
    assert "Traceback" in done.stderr
    assert r"graph \u001b]0;evil\u0007" in done.stderr
    found = {letter for letter in done.stderr if letter != "\n" and not letter.isprintable()}
    assert not found


def test_logs_of_tools_devices_and_clients(backend: htp.Backend, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[str] = []
    log = backend.create_log("warn", lambda level, at, text: seen.append(text))
    with logged("warn"):
        logging.getLogger("openhtp.anything").warning("graph %s", EVIL)
    log.free()
    assert_harmless(seen[0])
    assert_harmless(capsys.readouterr().err)
    record = logging.LogRecord("n", logging.ERROR, "f", 1, "graph %s", (EVIL,), None)
    assert_harmless(PrintableFormatter("%(message)s").format(record))


def _texts(value: object) -> list[str]:
    if isinstance(value, dict):
        return [text for each in value.values() for text in _texts(each)]
    if isinstance(value, list):
        return [text for each in value for text in _texts(each)]
    return [value] if isinstance(value, str) else []


def test_json_has_nothing_that_a_terminal_obeys() -> None:
    """Some of it is text to JSON: the second set of controls, overrides of direction, line breaks of Unicode."""
    name = "é\x1b\x9b\u202e\u2028\u2066"
    text = to_json({name: name}).decode()
    assert text.isprintable()
    assert json.loads(text) == {name: name}
    assert "é" in text
