"""Qualcomm's own tests of ExecuTorch's delegate, as the wheel carries them, on a folder of QNN libraries.

``VENV/bin/python executorch_suite.py --libs FOLDER --out FOLDER [--suite ops|features] [-k WORDS] [--most N]``

``ops``: each operator in 8 bits, 16 bits and half precision, compiled, run and compared with eager execution (556
tests, an hour). ``features``: profiling, several contexts, partitioning and more. Results are one line a test in
``--out``; what is there already is not run again, so that a run can be stopped and gone on with. Tests are in an
order that meets every operator early. Verdicts of the vendor's library are in ``executorch_vendor.json``.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

HERE = Path(__file__).absolute().parent
SUITES = {
    "ops": ("executorch.backends.qualcomm.tests.rework.htp.op.v68.test", ""),
    "features": ("executorch.backends.qualcomm.tests.test_qnn_delegate", "Utils and not Script"),
}
_RUNNER = "build-x86/examples/qualcomm/executor_runner/qnn_executor_runner"
_PATIENCE_S = 120


def results(file: Path) -> dict[str, str]:
    """Verdicts by test: one that has a failed part has failed."""
    found: dict[str, str] = {}
    if file.exists():
        for line in file.read_text(encoding="utf-8").splitlines():
            one = json.loads(line)
            if one["part"] and one["outcome"] != "failed":
                continue
            if found.get(one["test"]) != "failed":
                found[one["test"]] = one["outcome"]
    return found


def spread(names: list[str]) -> list[str]:
    """First every operator in one of its forms, the forms in turns; then in the next, and in the third."""
    groups: dict[str, list[str]] = {}
    for name in names:
        groups.setdefault(re.sub(r"\[.*", "", name), []).append(name)
    turns: dict[int, list[str]] = {}
    for place, group in enumerate(groups.values()):
        for number in range(len(group)):
            turns.setdefault(number, []).append(group[(place + number) % len(group)])
    return [name for turn in sorted(turns) for name in turns[turn]]


def environment(work: Path, libraries: Path, suite: str) -> dict[str, str]:
    """What the tests look for: a folder like an SDK's, and a program that runs what was compiled."""
    folder = work / "sdk" / "lib" / "x86_64-linux-clang"
    runner = work / _RUNNER
    for made in (folder, runner.parent, work / "art"):
        made.mkdir(parents=True, exist_ok=True)
    for library in libraries.rglob("*.so"):
        if not (folder / library.name).exists():
            (folder / library.name).symlink_to(library)
    _write_program(runner, f'"{HERE / "executorch_runner.py"}"')
    tool = work / "sdk" / "bin" / "x86_64-linux-clang" / "qnn-context-binary-utility"
    tool.parent.mkdir(parents=True, exist_ok=True)
    _write_program(tool, '-c "from openhtp.cli.main import app; app()" context-binary-utility')
    return {
        **os.environ,
        "QNN_SDK_ROOT": str(work / "sdk"),
        "LD_LIBRARY_PATH": str(folder),
        "PYTHONPATH": ":".join(filter(None, (str(HERE), os.environ.get("PYTHONPATH")))),
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
        "QNN_DELEGATE_TEST": "0" if suite == "ops" else "1",
        "QNN_SOC_MODEL": "SM8650",
        "QNN_ENABLE_X86_64": "1",
        "QNN_EXECUTOR_RUNNER": str(runner),
        "QNN_ARTIFACT_DIR": str(work / "art"),
        "EXECUTORCH_ROOT": str(work),
        "OMP_NUM_THREADS": "1",
    }


def _write_program(file: Path, words: str) -> None:
    file.write_text(f'#!/bin/sh\nexec "{sys.executable}" {words} "$@"\n')
    file.chmod(0o755)


def pytest(suite: str, words: str, work: Path, variables: dict[str, str], *more: str) -> None:
    """Run the tests; what they print goes to a file."""
    module, always = SUITES[suite]
    chosen = " and ".join(f"({part})" for part in (always, words) if part)
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "executorch_plugin", "--timeout"]
    command += [
        "900",
        "-q",
        "--tb=short",
        "-p",
        "no:logging",
        "--pyargs",
        module,
        *(["-k", chosen] if chosen else []),
        *more,
    ]
    with open(work / "pytest.log", "a", encoding="utf-8") as log:
        subprocess.run(command, cwd=work, env=variables, stdout=log, stderr=subprocess.STDOUT, check=False)


def run(chosen: argparse.Namespace, work: Path) -> None:
    """Choose, start the process that programs are run by, and run."""
    variables = environment(work, chosen.libs.absolute(), chosen.suite)
    names = work / f"{chosen.suite}.names.json"
    pytest(chosen.suite, chosen.k, work, {**variables, "CLIENTS_RESULTS": str(names)}, "--collect-only")
    lines = work / f"{chosen.suite}.jsonl"
    done = results(lines)
    left = [name for name in spread(json.loads(names.read_text())) if name not in done][: chosen.most]
    wanted = work / "chosen.json"
    wanted.write_text(json.dumps(left), encoding="utf-8")
    print(f"{len(done)} tests done before, {len(left)} to do; log: {work / 'pytest.log'}", flush=True)
    path = tempfile.mkdtemp() + "/runner"  # a socket's path must be short
    variables |= {"CLIENTS_RUNNER_SOCKET": path, "CLIENTS_RESULTS": str(lines), "CLIENTS_CHOSEN": str(wanted)}
    command = [sys.executable, str(HERE / "executorch_runner.py"), "--serve", path]
    with open(work / "runner.log", "w", encoding="utf-8") as log:
        server = subprocess.Popen(command, env=variables, stdout=log, stderr=subprocess.STDOUT)
    try:
        end = time.monotonic() + _PATIENCE_S
        while not Path(path).exists() and time.monotonic() < end and server.poll() is None:
            time.sleep(0.2)
        pytest(chosen.suite, chosen.k, work, variables)
    finally:
        server.terminate()
        server.wait()


def report(found: dict[str, str], suite: str) -> int:
    """Counts, and what passes on the vendor's library and not here."""
    counts = Counter(found.values())
    print(", ".join(f"{counts[word]} {word}" for word in ("passed", "failed", "skipped", "xfailed")))
    vendor = json.loads((HERE / "executorch_vendor.json").read_text())[suite]
    lost = sorted(name for name, word in found.items() if word == "failed" and vendor.get(name) == "passed")
    both = [name for name in found if vendor.get(name) == "passed"]
    other = [name for name in found if vendor.get(name) == "failed"]
    won = sum(found[name] == "passed" for name in other)
    print(f"of {len(both)} that pass on the vendor's library {len(both) - len(lost)} pass here;", end=" ")
    print(f"of {len(other)} others {won}")
    for name in lost:
        print("  lost:", name)
    return 1 if lost else 0


def main() -> int:
    """Run a suite, or go on with it."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--libs", type=Path, required=True)
    words.add_argument("--out", type=Path, required=True)
    words.add_argument("--suite", choices=SUITES, default="ops")
    words.add_argument("-k", default="", help="as of pytest")
    words.add_argument("--most", type=int, default=None, help="run so many tests and stop")
    words.add_argument("--report", action="store_true", help="only say what was found so far")
    chosen = words.parse_args()
    work = chosen.out.absolute()
    work.mkdir(parents=True, exist_ok=True)
    if not chosen.report:
        run(chosen, work)
    return report(results(work / f"{chosen.suite}.jsonl"), chosen.suite)


if __name__ == "__main__":
    sys.exit(main())
