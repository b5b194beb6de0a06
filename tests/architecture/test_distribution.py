"""What is shipped is whole: the archives, and the package installed from the wheel in an empty place."""

from __future__ import annotations

import re
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())


def test_what_the_source_archive_names_exists() -> None:
    named = PROJECT["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    assert [name for name in named if not (ROOT / name).exists()] == []


def test_pythons_are_claimed_as_in_the_readme() -> None:
    claimed = [line.rpartition(" ")[2] for line in PROJECT["project"]["classifiers"] if ":: Python :: 3." in line]
    assert claimed[0] == PROJECT["project"]["requires-python"].removeprefix(">=")
    assert f"Python {claimed[0]} to {claimed[-1]}" in (ROOT / "README.md").read_text()


def run(*command: str | Path, cwd: Path) -> str:
    done = subprocess.run(
        [str(word) for word in command], cwd=cwd, capture_output=True, text=True, check=False, timeout=600
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("dist")
    run(sys.executable, "-m", "hatchling", "build", "-d", folder, cwd=ROOT)
    return {"wheel": next(folder.glob("*.whl")), "source": next(folder.glob("*.tar.gz"))}


@pytest.mark.slow
def test_archives_have_all_that_git_has(archives: dict[str, Path]) -> None:
    tracked = run("git", "ls-files", cwd=ROOT).split()
    with tarfile.open(archives["source"]) as archive:
        source = {name.partition("/")[2] for name in archive.getnames()}
    assert [name for name in tracked if name not in source] == []
    with zipfile.ZipFile(archives["wheel"]) as archive:
        wheel = set(archive.namelist())
    package = [name.removeprefix("src/") for name in tracked if name.startswith("src/openhtp/")]
    assert [name for name in package if name not in wheel] == []
    assert not [name for name in wheel if not re.match(r"openhtp(-[\w.]+\.dist-info)?/", name)]


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_the_wheel_works_in_an_empty_place(archives: dict[str, Path], tmp_path: Path) -> None:
    run(sys.executable, "-m", "venv", tmp_path / "venv", cwd=tmp_path)
    python = tmp_path / "venv" / "bin" / "python"
    run(python, "-m", "pip", "install", "--quiet", archives["wheel"], cwd=tmp_path)
    empty = tmp_path / "empty"
    empty.mkdir()
    example = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[0]
    assert run(python, "-c", example, cwd=empty).splitlines()[-1] == "True"
    openhtp = python.with_name("openhtp")
    assert "Usage" in run(openhtp, "demo", "--help", cwd=empty)
    run(openhtp, "doctor", cwd=empty)
    run(openhtp, "plan", ROOT / "examples" / "same-pd.yaml", cwd=empty)
    assert list(empty.iterdir()) == []
