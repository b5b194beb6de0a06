"""A client written in C, in a process that has no Python of its own."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.capi.c_programs import HERE, HOSTS, can_load_python, compile_program, host_environment
from tests.capi.conftest import ROOT, build_script
from tests.waiting import PATIENCE_S


def built(source: str, folder: Path, compiler: list[str] | None) -> Path:
    if not can_load_python():
        pytest.skip("this Python has no shared library that a C program could load")
    if compiler is None:
        pytest.skip(f"there is no compiler for {source}")
    return compile_program(source, folder, compiler)


@pytest.fixture(scope="session")
def client(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("client.c", tmp_path_factory.mktemp("client"), build_script().compiler())


@pytest.fixture(scope="session")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built("hosts.c", tmp_path_factory.mktemp("hosts"), build_script().compiler())


def run(client: Path, lib_dir: Path, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(client), str(lib_dir / "libQnnHtp.so"), *words],
        env={**host_environment(), **environment},
        capture_output=True,
        text=True,
        timeout=PATIENCE_S,
        check=False,
    )


@pytest.mark.hostile
@pytest.mark.parametrize("host", HOSTS)
def test_a_host_that_is_rough(hosts: Path, lib_dir: Path, host: str) -> None:
    done = run(hosts, lib_dir, host, "1")
    assert done.returncode == 0, done.stderr + done.stdout


TESTS = ["plain", "async", "memory", "shared_buffer", "power", "binaries", "callback", "sections", "threads"]


@pytest.mark.parametrize("test", [*TESTS, "fork", "early_fork", "exit"])
def test_a_c_program(client: Path, lib_dir: Path, test: str) -> None:
    done = run(client, lib_dir, test)
    assert done.returncode == 0, done.stderr + done.stdout


def test_the_child_of_a_fork_is_refused_in_words(client: Path, lib_dir: Path) -> None:
    done = run(client, lib_dir, "fork")
    assert done.returncode == 0, done.stderr + done.stdout
    assert done.stderr.count("forked after it had used this library") == 1, done.stderr


def test_a_thread_with_too_little_stack_is_refused(client: Path, lib_dir: Path) -> None:
    done = run(client, lib_dir, "small_stacks")
    assert done.returncode == 0, done.stderr + done.stdout
    assert "KiB of stack left" in done.stderr
    assert "pthread_attr_setstacksize" in done.stderr


def test_little_stack_is_refused_whatever_the_compiler_joins(client: Path, tmp_path: Path) -> None:
    """Clang puts a function that is called once into its caller, with its room on the stack; gcc is made to."""
    script = build_script()
    joined = ("large-stack-frame=100000", "large-stack-frame-growth=100000")
    script.FLAGS = (*script.FLAGS, *(word for limit in joined for word in ("--param", limit)))
    try:
        assert script.compile_libraries(ROOT, tmp_path)
    except subprocess.CalledProcessError:
        pytest.skip("the compiler has no such limits")
    done = run(client, tmp_path, "small_stacks")
    assert done.returncode == 0, done.stderr + done.stdout


@pytest.mark.parametrize("test", ["plain", "memory", "shared_buffer", "power", "callback", "fork", "exit"])
def test_a_c_program_with_a_device_process(client: Path, lib_dir: Path, test: str) -> None:
    done = run(client, lib_dir, test, OPENHTP_TRANSPORT="rpc")
    assert done.returncode == 0, done.stderr + done.stdout


@pytest.mark.parametrize(
    ("order", "code"),
    [
        ("ssr@graphExecute:1", 1007),
        ("oom@contextCreate", 1002),
        ("ssr@graphExecut:1", 4004),  # no order: the backend is refused
    ],
)
def test_a_c_program_meets_faults(client: Path, lib_dir: Path, order: str, code: int) -> None:
    done = run(client, lib_dir, "plain", OPENHTP_FAULTS=order)
    assert done.returncode == 1
    assert f"= {code}" in done.stderr


def test_an_openhtp_without_its_dependencies_on_the_path_does_no_harm(client: Path, lib_dir: Path) -> None:
    done = run(client, lib_dir, "plain", PYTHONPATH=str(HERE.parents[1] / "src"))
    assert done.returncode == 0, done.stderr + done.stdout


def test_a_c_plus_plus_program(lib_dir: Path, tmp_path: Path) -> None:
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    host = built("host.cpp", tmp_path, None if compiler is None else [compiler])
    done = run(host, lib_dir)
    assert done.returncode == 0, done.stderr + done.stdout
    assert "ends well" in done.stdout


def test_contexts_come_and_go_for_a_while_and_leave_nothing(client: Path, lib_dir: Path) -> None:
    done = run(client, lib_dir, "stress", "4")
    assert done.returncode == 0, done.stderr + done.stdout


def test_without_a_python_that_can_be_loaded_the_client_is_told(client: Path, lib_dir: Path) -> None:
    done = run(client, lib_dir, "plain", OPENHTP_LIBPYTHON="/nowhere/libpython.so")
    assert done.returncode == 1
    assert "OPENHTP_LIBPYTHON" in done.stderr


def test_the_python_of_a_virtual_environment_is_looked_for(client: Path, lib_dir: Path, tmp_path: Path) -> None:
    """Its settings name a folder beside which that Python's library is, as with those that uv installs."""
    home = tmp_path / "python"
    library = home / "lib" / "libpython3.99.so.1.0"
    folder = tmp_path / "venv" / "lib" / "python3.99" / "site-packages" / "openhtp" / "capi" / "lib"
    for new in (folder, library.parent, home / "bin"):
        new.mkdir(parents=True)
    shutil.copy2(lib_dir / "libQnnHtp.so", folder)
    (tmp_path / "venv" / "pyvenv.cfg").write_text(f"include = false\nhome = {home / 'bin'}\n", encoding="utf-8")
    library.write_text("this is no library", encoding="utf-8")
    done = run(client, folder, "plain", OPENHTP_LIBPYTHON="")
    assert done.returncode == 1
    assert "libpython3.99.so.1.0: " in done.stderr
    assert f"{home / 'bin'}/../lib/" in done.stderr


def test_versions_are_told_as_the_environment_says(client: Path, lib_dir: Path) -> None:
    done = run(client, lib_dir, "plain", OPENHTP_CORE_API="2.x")
    assert done.returncode == 1
    assert "OPENHTP_CORE_API is '2.x'; expected a version such as 2.40.0" in done.stderr
