"""Wheels are tagged by what the compiler made; libraries for another machine are refused in words."""

from __future__ import annotations

import os
import shutil
import sys
import zipfile
from pathlib import Path

import pytest
from tests.capi.conftest import ROOT, build_script

import wheels
from openhtp.capi import identity
from openhtp.core.errors import FormatError
from openhtp.core.shared_library import check_file, loading_failure
from openhtp.engine import native

OUR_LIBRARIES = (
    "capi/lib/libQnnHtp.so",
    "engine/lib/libopenhtp_sessions.so",
    "planning/lib/libopenhtp_plan.so",
)
X86_64, AARCH64 = 62, 183
FOREIGN = AARCH64 if os.uname().machine != "aarch64" else X86_64


def elf(machine: int) -> bytes:
    return b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\x00" + machine.to_bytes(2, "little") + bytes(44)


@pytest.fixture
def library(tmp_path: Path) -> Path:
    path = tmp_path / "libQnnHtp.so"
    path.write_bytes(elf(FOREIGN))
    return path


@pytest.mark.parametrize(("number", "platform"), [(X86_64, "linux_x86_64"), (AARCH64, "linux_aarch64")])
def test_the_tag_is_read_from_the_library(
    number: int, platform: str, library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = build_script()
    library.write_bytes(elf(number))
    monkeypatch.delenv(script.TARGET_VARIABLE, raising=False)
    assert script.target_platform(library) == platform
    monkeypatch.setenv(script.TARGET_VARIABLE, platform.replace("_", "-", 1))
    assert script.target_platform(library) == platform
    monkeypatch.setenv(script.TARGET_VARIABLE, "linux-riscv64")
    with pytest.raises(RuntimeError, match=r"is 'linux-riscv64', and CC made libraries for linux-.*ziglang"):
        script.target_platform(library)


def test_what_is_no_library_for_linux_is_refused(library: Path) -> None:
    library.write_bytes(b"\xcf\xfa\xed\xfe" + bytes(30))
    with pytest.raises(RuntimeError, match="made no library for Linux"):
        build_script().machine_of(library)


def test_a_compiler_that_is_named_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """Another one in its place would compile for another machine."""
    monkeypatch.setenv("CC", "no-such-compiler -target aarch64-linux-gnu")
    with pytest.raises(RuntimeError, match="no such program: unset CC"):
        build_script().compiler()


def test_a_wheel_of_a_cross_compiler_is_for_its_target(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        pytest.skip("there is no C compiler")
    builders = pytest.importorskip("hatchling.builders.wheel")
    # Compiles as the machine's own, then writes another machine into the result: what a tag is made of.
    cross = tmp_path / "cross.py"
    cross.write_text(
        "import subprocess, sys\n"
        f"subprocess.run([{compiler!r}, *sys.argv[1:]], check=True)\n"
        "with open(sys.argv[sys.argv.index('-o') + 1], 'r+b') as file:\n"
        "    file.seek(18)\n"
        f"    file.write(({FOREIGN}).to_bytes(2, 'little'))\n"
    )
    monkeypatch.setenv("CC", f"{sys.executable} {cross}")
    monkeypatch.delenv("_PYTHON_HOST_PLATFORM", raising=False)
    own = {path: path.read_bytes() for path in ROOT.glob("src/openhtp/*/lib/**/*") if path.is_file()}
    (path,) = builders.WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    machine = {AARCH64: "aarch64", X86_64: "x86_64"}[FOREIGN]
    assert path.endswith(f"-py3-none-linux_{machine}.whl")
    assert Path(path).stat().st_size <= wheels.MOST_BYTES
    with zipfile.ZipFile(path) as archive:
        libraries = wheels.libraries_of(Path(path))
        assert {f"openhtp/{name}" for name in OUR_LIBRARIES} <= set(libraries)
        machines = {int.from_bytes(archive.read(name)[18:20], "little") for name in libraries}
        assert "openhtp/capi/lib/python.cfg" not in archive.namelist()
    assert machines == {FOREIGN}
    assert own == {path: path.read_bytes() for path in own}  # an editable installation goes on working


def test_our_libraries_for_another_machine_are_refused_with_the_cure(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(identity, "FOLDER", library.parent)
    with pytest.raises(FormatError, match=r"built for .* runs on .* wheel for another machine; pip install"):
        identity.lib_dir()
    library.rename(library.with_name(native.LIBRARY))
    monkeypatch.setattr(native, "FOLDER", library.parent)
    monkeypatch.setattr(native, "native", lambda: None)
    monkeypatch.delenv(native.SWITCH, raising=False)
    assert "wheel for another machine; pip install" in native.absence()


def test_a_library_of_the_dsp_is_called_so(library: Path) -> None:
    library.write_bytes(elf(164))
    with pytest.raises(FormatError, match="built for Hexagon"):
        check_file(library)


def test_an_old_glibc_is_named() -> None:
    error = OSError("/lib/libc.so.6: version `GLIBC_2.99' not found (required by /x/libQnnHtp.so)")
    assert "needs glibc 2.99 or later, and this system has" in str(loading_failure(Path("/x/libQnnHtp.so"), error))


def test_what_is_missing_for_qemu_is_said(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheels.shutil, "which", lambda name: None)
    assert "apt-get install qemu-user-static" in wheels.missing_for_qemu("")
    monkeypatch.setattr(wheels.shutil, "which", lambda name: f"/usr/bin/{name}")
    assert wheels.ROOT_VARIABLE in wheels.missing_for_qemu("")
    assert "has no /venv" in wheels.missing_for_qemu(str(tmp_path))


def test_the_example_must_end_well() -> None:
    assert "execute_async" in wheels.readme_example()
    wheels.check_example("0 done\nTrue\n")
    with pytest.raises(SystemExit, match="should end with True"):
        wheels.check_example("False\n")
