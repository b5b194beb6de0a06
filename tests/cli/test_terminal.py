"""What users have instead of our terminal: narrow ones, pipes, other encodings, no colours, impatient readers."""

from __future__ import annotations

import json
import os
import pty
import re
import select
import shutil
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from openhtp import zoo
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
COMMAND = Path(sys.executable).parent / "openhtp"
SCENARIO = "examples/pipeline.yaml"
COLOURS = re.compile(r"\x1b\[[0-9;]*(3[0-9]|4[0-9]|9[0-7])[;m]")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A model with long names, and a scenario with one too."""
    made = tmp_path_factory.mktemp("terminal")
    (made / "small.onnx").write_bytes(zoo.small_cnn())
    (made / "late.yaml").write_text(
        "unit: ms\nduration: 400\ndevice: {soc: SM8650}\nclients:\n"
        "  - {name: 'a camera: front, wide angle [left]', priority: low, deadline: 33, run: 12}\n"
        "  - {name: λ model, priority: high, run: 28}\n"
        "events:\n  - {client: 'a camera: front, wide angle [left]', every: 50}\n"
        "  - {client: λ model, closed: 1, think: 40}\n",
        encoding="utf-8",
    )
    return made


def commands(folder: Path) -> dict[str, list[object]]:
    """Every command that ends by itself, in its quickest form."""
    late, model = folder / "late.yaml", folder / "small.onnx"
    return {
        "help": ["--help"],
        "plan": ["plan", SCENARIO],
        "plan late": ["plan", late, "--max-miss-rate", "1", "--policy", "strict,fair"],
        "optimize": ["plan", late, "--optimize"],
        "estimate": ["estimate", "zoo:mobilenet_v2", "--soc", "SM8650,SM8845,SM8550", "--top", "3"],
        "run": ["run", model, "--repeat", "2", "--check", "--check-range", "--profile"],
        # So slow that a busy machine keeps the order.
        "run-scenario": ["run-scenario", "examples/same-pd.yaml", "--stretch", "20000"],
        "quantize": ["quantize", model, "--random", "2", "--trace-accuracy", "-o", folder / "q.onnx"],
        "doctor": ["doctor"],
        "device": ["device", "list"],
        "demo": ["demo", "--turns", "1", "--out", folder / "out"],
        "bench async": ["bench", "async", "--network", "trivial", "--rounds", "1"],
        "bench load": ["bench", "load", "--network", "tiny_mlp", "--rounds", "1", "--no-large"],
        "bench networks": ["bench", "networks", "--network", "tiny_mlp", "--rounds", "1"],
        "bench plan": ["bench", "plan", "--rounds", "1"],
        "bench preempt": ["bench", "preempt", "--network", "small_cnn", "--samples", "10", "--rounds", "1"],
    }


LONG = ("bench async", "bench load", "bench networks", "bench preempt", "demo")
QUICK = [name for name in commands(Path()) if name not in LONG]
NAMES = [*QUICK, *(pytest.param(name, marks=pytest.mark.slow) for name in LONG)]


def environment(folder: Path, **extra: str) -> dict[str, str]:
    kept = {key: value for key, value in os.environ.items() if key not in ("NO_COLOR", "FORCE_COLOR", "COLUMNS")}
    return {**kept, "OPENHTP_RUNTIME_DIR": str(folder / "run"), **extra}


def call(folder: Path, words: list[object], **extra: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        [COMMAND, *map(str, words)],
        cwd=ROOT,
        env=environment(folder, **extra),
        capture_output=True,
        timeout=PATIENCE_S,
        check=False,
    )


@pytest.mark.parametrize("columns", [80, 60])
@pytest.mark.parametrize("name", NAMES)
def test_everything_fits(folder, name, columns) -> None:
    if name == "help" and columns < 80:
        pytest.skip("the names of options are laid out by typer")
    done = call(folder, commands(folder)[name], COLUMNS=str(columns))
    assert done.returncode == 0, done.stderr.decode()
    text = done.stdout.decode()
    # A path stays in one piece, so that it can be copied.
    lines = [line for line in text.splitlines() if not line.startswith("wrote ")]
    assert max(map(len, lines)) <= columns
    # Only the picture's margin, where names have a room of their own, shortens anything.
    assert not [line for line in lines if "…" in line and "… │" not in line]
    assert "\x1b" not in text


@pytest.mark.parametrize(
    ("name", "encoding"), [*((name, "ascii") for name in QUICK), ("plan late", "latin-1"), ("doctor", "latin-1")]
)
def test_any_encoding_will_do(folder, name, encoding) -> None:
    done = call(folder, commands(folder)[name], PYTHONIOENCODING=encoding, COLUMNS="80")
    assert done.returncode == 0, done.stderr.decode()
    text = done.stdout.decode(encoding)
    assert max(len(line) for line in text.splitlines() if not line.startswith("wrote ")) <= 80


def test_stand_ins_keep_the_picture_readable(folder) -> None:
    text = call(folder, ["plan", "examples/same-pd.yaml"], PYTHONIOENCODING="ascii", COLUMNS="80").stdout.decode()
    assert "# running" in text
    assert re.search(r"Graph 1 \|#+", text)


@pytest.mark.parametrize("name", NAMES)
def test_json_on_standard_output_is_alone_there(folder, name) -> None:
    if name == "help":
        pytest.skip("has no result")
    done = call(folder, [*commands(folder)[name], "--json", "-"])
    assert done.returncode == 0, done.stderr.decode()
    assert isinstance(json.loads(done.stdout), dict)


def test_python_m_openhtp(folder) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "openhtp", "--version"],
        capture_output=True,
        text=True,
        check=True,
        timeout=PATIENCE_S,
    )
    assert done.stdout.startswith("openhtp ")


def in_terminal(folder: Path, words: list[object], **extra: str) -> str:
    """What a command writes to a terminal of 80 columns."""
    leader, follower = pty.openpty()
    extra.setdefault("TERM", "xterm-256color")
    process = subprocess.Popen(
        [COMMAND, *map(str, words)],
        cwd=ROOT,
        env=environment(folder, COLUMNS="80", **extra),
        stdin=follower,
        stdout=follower,
        stderr=follower,
    )
    os.close(follower)
    written = b""
    try:
        while select.select([leader], [], [], PATIENCE_S)[0]:
            chunk = os.read(leader, 65536)
            if not chunk:
                break
            written += chunk
    except OSError:  # the other end was closed
        pass
    finally:
        os.close(leader)
    assert process.wait(PATIENCE_S) == 0
    return written.decode()


def test_colours_are_for_terminals_that_want_them(folder) -> None:
    words = commands(folder)["plan late"]
    assert COLOURS.search(in_terminal(folder, words))
    assert not COLOURS.search(in_terminal(folder, words, NO_COLOR="1"))
    assert "\x1b" not in in_terminal(folder, words, TERM="dumb")


@pytest.mark.parametrize("words", [["--top", "3"], ["--json", "-"]], ids=["table", "json"])
def test_a_reader_that_has_seen_enough_ends_it_quietly(folder, words) -> None:
    """As ``| head`` does; here the reader has gone before anything is written, so that it makes no difference
    how much a pipe holds."""
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [COMMAND, "estimate", "zoo:mobilenet_v2", "--soc", "SM8650", *words],
        cwd=ROOT,
        env=environment(folder),
        stdout=writer,
        stderr=subprocess.PIPE,
        timeout=PATIENCE_S,
        check=False,
    )
    os.close(writer)
    assert (done.returncode, done.stderr) == (141, b"")


def test_ctrl_c_ends_it_quietly(folder) -> None:
    """Typed while a command works: here by the command itself, so that it comes neither too early nor too late."""
    script = """
        import os, signal, sys, time
        import openhtp.cli.plan as command
        from openhtp.cli.main import main

        def interrupted(path):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(60)

        command.load_scenario = interrupted
        sys.argv = ["openhtp", "plan", "scenario.yaml"]
        sys.exit(main())
    """
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, env=environment(folder), capture_output=True, timeout=PATIENCE_S, check=False)
    assert done.returncode == 130
    assert (done.stdout, done.stderr) == (b"", b"")


SHELLS = {
    "bash": """
        source "$HOME/.bashrc"
        COMP_WORDS=(openhtp {words}); COMP_CWORD={last}
        _openhtp_completion openhtp; printf '%s\\n' "${{COMPREPLY[@]}}"
    """,
    # The function that zsh was given needs a line to edit: it is loaded, and then asked for as it asks.
    "zsh": """
        source "$HOME/.zshrc"; autoload -U +X _openhtp
        _TYPER_COMPLETE_ARGS="openhtp {words}" _OPENHTP_COMPLETE=complete_zsh openhtp
    """,
    "fish": """
        source ~/.config/fish/completions/openhtp.fish
        complete -C "openhtp {words}"
    """,
}


@pytest.mark.parametrize("shell", SHELLS)
def test_completion_installs_and_works(shell, tmp_path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"no {shell} here")
    extra = {"HOME": str(tmp_path), "PATH": f"{COMMAND.parent}:{os.environ['PATH']}", "SHELL": shell}
    kept = {key: value for key, value in os.environ.items() if not key.startswith(("XDG_", "ZDOTDIR"))}

    def run(script: str) -> str:
        done = subprocess.run(
            [shell, "-c", script],
            env={**kept, **extra},
            capture_output=True,
            text=True,
            timeout=PATIENCE_S,
            check=True,
        )
        return done.stdout

    # Which shell asks is found by looking at the processes above.
    assert f"{shell} completion installed" in run("openhtp --install-completion; true")
    for words, expected in (("pl", "plan"), ("plan --max", "--max-p99"), ("device st", "stop")):
        found = run(SHELLS[shell].format(words=words, last=len(words.split())))
        assert expected in re.split(r"[\s\"':]+", found)
