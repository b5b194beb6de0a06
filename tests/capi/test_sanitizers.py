"""The C part of the library, and C programs on it, under the sanitizers for addresses and for threads."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.capi.c_programs import HOSTS, can_load_python, compile_program, host_environment
from tests.capi.conftest import ROOT, build_script

FLAGS = ("-g", "-fno-omit-frame-pointer")
TESTS = ("plain", "async", "memory", "shared_buffer", "power", "binaries", "callback", "sections", "threads")
# Threads get larger stacks from the sanitizer than they ask for, so that none is small.
NOT_UNDER = {"thread": {"small_stacks"}, "address": set[str]()}
# Python keeps what it allocated until the process ends; our stub allocates nothing.
OPTIONS = {"ASAN_OPTIONS": "detect_leaks=0"}
# ONNX Runtime is not instrumented: the sanitizer sees what it copies and allocates, and not the atomics by which
# its threads agree on that. Races of all other code are told, although Python is not instrumented either.
SUPPRESSIONS = "race:onnxruntime_pybind11_state\n"


@pytest.fixture(scope="module", params=["address", "thread"])
def sanitized(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[str, Path]:
    """The kind of sanitizer, and a folder with everything built for it."""
    kind = str(request.param)
    folder, script = tmp_path_factory.mktemp(kind), build_script()
    compiler = script.compiler()
    if compiler is None or not can_load_python():
        pytest.skip("there is no C compiler, or no shared library of Python")
    flags = (*FLAGS, f"-fsanitize={kind}")
    try:
        for source in ("client.c", "hosts.c"):
            compile_program(source, folder, compiler, flags)
    except subprocess.CalledProcessError:
        pytest.skip(f"the compiler has no sanitizer for {kind}")
    (folder / "suppressions").write_text(SUPPRESSIONS)
    script.FLAGS = (*script.FLAGS, *flags)
    assert script.compile_libraries(ROOT, folder)
    return kind, folder


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [*(("client", name) for name in TESTS), *(("hosts", name, "3") for name in HOSTS)]
)
def test_nothing_is_found(sanitized: tuple[str, Path], words: tuple[str, ...]) -> None:
    kind, folder = sanitized
    if words[1] in NOT_UNDER[kind]:
        pytest.skip("does not apply to this sanitizer")
    done = subprocess.run(
        [str(folder / words[0]), str(folder / "libQnnHtp.so"), *words[1:]],
        env={**host_environment(), **OPTIONS, "TSAN_OPTIONS": f"suppressions={folder / 'suppressions'}"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert "Sanitizer" not in done.stderr, done.stderr[-6000:]
    assert done.returncode == 0, done.stderr[-6000:]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "code"),
    [
        ("address", "int main(void) { char *p = malloc(4); free(p); return p[0]; }"),
        ("thread", "int n; void *f(void *p) { return n++, p; }"
         " int main(void) { pthread_t t; pthread_create(&t, 0, f, 0); n++; pthread_join(t, 0); }"),
    ],
)  # fmt: skip
def test_the_sanitizers_find_something(tmp_path: Path, kind: str, code: str) -> None:
    source = tmp_path / "faulty.c"
    source.write_text(f"#include <pthread.h>\n#include <stdlib.h>\n{code}\n")
    compiler = build_script().compiler()
    if compiler is None:
        pytest.skip("there is no C compiler")
    program = compile_program(str(source), tmp_path, compiler, (*FLAGS, f"-fsanitize={kind}"))
    done = subprocess.run([str(program)], env={**host_environment(), **OPTIONS}, capture_output=True, check=False)
    assert b"Sanitizer" in done.stderr
