"""Runs QNN clients from PyPI, unmodified, on our libraries, each in a virtual environment of its own.

``python tools/clients/run.py [--only NAME] [--folder DIR] [--suite] [--python PATH] [--json FILE]``: makes the
environments below DIR (out/clients), installs the clients there, and prints a line for each; all that
a client said is in a file beside its environment. Needs a network, and 6 GB for ExecuTorch and Olive. ``--suite``
also runs ExecuTorch's own 556 operator tests, which takes an hour or more and can be gone on with. ``--python``
uses an environment that there is, with ``--only``.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
import tomllib
import venv
from dataclasses import asdict, dataclass, field
from pathlib import Path

from openhtp.capi.identity import lib_dir

HERE = Path(__file__).absolute().parent
ROOT = HERE.parents[1]
_CPU_TORCH = ("--extra-index-url", "https://download.pytorch.org/whl/cpu", "torch==2.13.0")
_TESTING = ("pytest", "pytest-subtests", "pytest-timeout", "transformers", "pydot", "graphviz", "openpyxl")


@dataclass(frozen=True, kw_only=True)
class Client:
    """What is installed, and the program of this folder that is then run."""

    packages: tuple[str, ...]
    program: str
    environment: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class Finding:
    """What came of a client. ``seconds`` is of the wall clock, measured, without the installation."""

    client: str
    passed: bool
    seconds: float
    said: str


CLIENTS = {
    **{
        f"onnxruntime-qnn-{release}": Client(packages=(f"onnxruntime-qnn=={release}",), program="ort_options.py")
        for release in ("2.4.0", "2.5.0", "2.6.0", "2.7.0")
    },
    "litert": Client(
        packages=("ai-edge-litert==2.3.0", "ai-edge-litert-sdk-qualcomm==2.3.0"),
        program="litert_compile.py",
        environment={"SKIP_SDK_DOWNLOAD": "1"},
    ),
    "executorch": Client(
        packages=(*_CPU_TORCH, "executorch==1.5.1", *_TESTING),
        program="executorch_compile.py",
        environment={"QNN_SDK_ROOT": "sdk"},
    ),
    "olive": Client(
        packages=(
            *_CPU_TORCH,
            "onnxruntime-qnn==2.7.0",
            "olive-ai==0.13.0",
            "onnxruntime-genai==0.13.2",
            "onnxscript",
            "requests",
        ),
        program="olive_quantize.py",
    ),
}


def installed(name: str, client: Client, folder: Path) -> Path:
    """The Python of a client's environment, made if there is none."""
    place = folder / name
    python = place / "bin" / "python"
    if not (place / ".installed").exists():
        print(f"      {name}: installing {' '.join(client.packages)}", flush=True)
        venv.create(place, with_pip=True)
        # Not openhtp itself, which is used from here: installing it would note that environment as its own.
        project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
        install = [str(python), "-m", "pip", "install", "--quiet", *client.packages, *project["dependencies"]]
        subprocess.run(install, check=True, env={**os.environ, **client.environment})
        (place / ".installed").touch()
    return python


def run(name: str, client: Client, python: Path, folder: Path, *more: str) -> Finding:
    """Run a client's program; its last line is what it says."""
    begin = time.monotonic()
    folder = folder.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    environment = {**os.environ, **client.environment, "LD_LIBRARY_PATH": f"{lib_dir()}:{lib_dir() / 'rpcmem'}"}
    environment["PYTHONPATH"] = str(ROOT / "src")
    if "QNN_SDK_ROOT" in client.environment:  # part of it looks there, and not where the loader does
        libraries = folder / client.environment["QNN_SDK_ROOT"] / "lib" / "x86_64-linux-clang"
        libraries.parent.mkdir(parents=True, exist_ok=True)
        if not libraries.is_symlink():
            libraries.symlink_to(lib_dir())
        environment["QNN_SDK_ROOT"] = str(libraries.parents[1])
    done = subprocess.run(
        [str(python), str(HERE / client.program), *more],
        env=environment,
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )
    (folder / f"{name}.log").write_text(done.stdout + done.stderr, encoding="utf-8")
    lines = (done.stdout if done.returncode == 0 else done.stdout + done.stderr).strip().splitlines()
    said = lines[-1] if lines else f"ended with {done.returncode}"
    return Finding(client=name, passed=done.returncode == 0, seconds=time.monotonic() - begin, said=said[:200])


def main() -> int:
    """Run all clients, or one."""
    words = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    words.add_argument("--only", choices=CLIENTS)
    words.add_argument("--folder", type=Path, default=ROOT / "out" / "clients")
    words.add_argument("--python", type=Path, help="an environment that has the client and what openhtp needs")
    words.add_argument("--suite", action="store_true", help="also ExecuTorch's own operator tests")
    words.add_argument("--json", dest="json_file", help="also write what was found; - for standard output")
    chosen = words.parse_args()
    if chosen.python and not chosen.only:
        words.error("--python is of one client: say which, with --only")
    findings: list[Finding] = []
    for name in [chosen.only] if chosen.only else CLIENTS:
        client = CLIENTS[name]
        try:
            python = chosen.python or installed(name, client, chosen.folder)
            findings.append(run(name, client, python, chosen.folder))
            if chosen.suite and name == "executorch":
                suite = Client(packages=(), program="executorch_suite.py", environment=client.environment)
                where = ("--libs", str(lib_dir()), "--out", str(chosen.folder / "executorch-tests"))
                show(findings[-1])
                findings.append(run("executorch-tests", suite, python, chosen.folder, *where))
        except (OSError, subprocess.CalledProcessError) as error:
            findings.append(Finding(client=name, passed=False, seconds=0.0, said=f"not installed: {error}"[:200]))
        show(findings[-1])
    passed = sum(one.passed for one in findings)
    print(f"{passed} of {len(findings)} clients pass; all they said is in {chosen.folder}")
    if chosen.json_file:
        text = json.dumps([asdict(one) for one in findings], indent=1)
        print(text) if chosen.json_file == "-" else Path(chosen.json_file).write_text(text, encoding="utf-8")
    return 0 if passed == len(findings) else 1


def show(one: Finding) -> None:
    """One line."""
    print(f"{'pass' if one.passed else 'FAIL'}  {one.client:24} {one.seconds:6.0f} s  {one.said}", flush=True)


if __name__ == "__main__":
    sys.exit(main())
