from __future__ import annotations

import importlib.metadata
import json
import platform
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import openhtp as htp
from openhtp.cli import doctor
from openhtp.cli.main import app
from openhtp.core.shared_library import OUTDATED
from openhtp.engine import native
from openhtp.vendor.backend import beginning
from openhtp.vendor.library import LIBRARY_VARIABLE, failure, find_library


def run_doctor(tmp_path: Path) -> tuple[int, str, dict[str, Any]]:
    path = tmp_path / "doctor.json"
    result = CliRunner().invoke(app, ["doctor", "--json", str(path)], env={"COLUMNS": "200"})
    return result.exit_code, result.output, json.loads(path.read_text())


def checks(report: dict[str, Any]) -> dict[str, Any]:
    return {check["what"]: check for check in report["checks"]}


@pytest.fixture
def no_library(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(doctor, "find_library", lambda: None)


@pytest.mark.usefixtures("no_library")
def test_a_machine_without_the_vendors_library_is_healthy(tmp_path: Path) -> None:
    code, output, report = run_doctor(tmp_path)
    assert code == 0
    assert report["devices"] == {"emulator": True, "vendor": False}
    lines = checks(report)
    assert lines["openhtp"]["detail"] == htp.__version__
    assert lines["onnxruntime"]["detail"] == importlib.metadata.version("onnxruntime")
    assert lines["telemetry"]["detail"].startswith("off")
    assert "a graph ran in" in lines["emulator"]["detail"]
    assert "multiplied correctly" in lines["products"]["detail"]
    assert lines["vendor"]["health"] == "missing"
    assert "openhtp[vendor]" in lines["vendor"]["advice"]
    assert lines["shared memory"]["health"] == lines["runtime directory"]["health"] == "ok"
    for what, check in lines.items():
        assert what in output
        assert (check["health"] == "ok") == (not check["advice"])


def test_how_sessions_are_made_is_told(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(native, "native", object)
    assert doctor.sessions() == "made by ONNX Runtime's C interface"
    monkeypatch.setattr(native, "native", lambda: None)
    monkeypatch.setattr(native, "FOLDER", tmp_path)
    line = doctor.sessions()
    assert isinstance(line, doctor.CheckupLine)
    assert (line.health, "no C compiler" in line.detail, "gcc" in line.advice) == ("missing", True, True)
    monkeypatch.setenv(native.SWITCH, "0")
    line = doctor.sessions()
    assert isinstance(line, doctor.CheckupLine)
    assert line.advice == f"unset {native.SWITCH}"


def test_an_outdated_library_of_the_engine_is_told_with_its_cure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native, "absence", lambda: OUTDATED)
    line = doctor.sessions()
    assert isinstance(line, doctor.CheckupLine)
    assert (line.health, "other C sources" in line.detail) == ("missing", True)
    assert line.advice.startswith("compile it again with pip install -e .")


def test_a_wheel_for_another_machine_is_broken_and_has_one_cure(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = {"x86_64": 183}.get(platform.machine(), 62)
    (tmp_path / native.LIBRARY).write_bytes(b"\x7fELF".ljust(18, b"\0") + other.to_bytes(2, "little"))
    monkeypatch.setattr(native, "native", lambda: None)
    monkeypatch.setattr(native, "FOLDER", tmp_path)
    line = doctor.sessions()
    assert isinstance(line, doctor.CheckupLine)
    assert line.health == "broken"
    assert line.detail.endswith("openhtp comes from a wheel for another machine")
    assert line.advice == "pip install --force-reinstall --no-deps openhtp"


@pytest.mark.usefixtures("no_library")
def test_a_broken_emulator_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(backend: htp.Backend) -> str:
        raise htp.DeviceLost("the device process went away")

    monkeypatch.setattr(doctor, "try_device", broken)
    code, output, report = run_doctor(tmp_path)
    assert code == 1
    assert checks(report)["emulator"]["health"] == "broken"
    assert "the device process went away" in output


@pytest.mark.usefixtures("no_library")
def test_a_wrong_answer_is_no_health(monkeypatch: pytest.MonkeyPatch) -> None:
    class Wrong:
        def result(self, timeout: float) -> Any:
            return {"o": doctor.np.full((1, 4, 4, 32), 138, "uint8")}

    monkeypatch.setattr(htp.Graph, "execute_async", lambda *_: Wrong())
    with htp.Backend() as backend, pytest.raises(ArithmeticError, match=r"1 \+ 2 was computed as 1"):
        doctor.try_device(backend)


@pytest.mark.usefixtures("no_library")
def test_wrong_products_are_no_health(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(htp.Graph, "execute", lambda *_: {"y": doctor.np.zeros((2, 2), "uint8")})
    with pytest.raises(ArithmeticError, match="products of extreme 8-bit numbers are wrong"):
        doctor.products()


def test_a_damaged_library_is_a_failure(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "libQnnHtp.so"
    library.write_text("not a library")
    monkeypatch.setenv(LIBRARY_VARIABLE, str(library))
    monkeypatch.setattr(doctor, "_emulator", lambda: "works")
    code, _, report = run_doctor(tmp_path)
    assert code == 1
    vendor = checks(report)["vendor"]
    assert vendor["health"] == "broken"
    assert "no ELF header" in vendor["detail"]
    assert LIBRARY_VARIABLE in vendor["advice"]


def test_a_library_for_another_machine_has_one_cause_and_one_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    library = tmp_path / "libQnnHtp.so"
    library.write_bytes(b"\x7fELF".ljust(18, b"\0") + (243).to_bytes(2, "little"))
    monkeypatch.setenv(LIBRARY_VARIABLE, str(library))
    monkeypatch.setattr(doctor, "examine_installation", lambda: iter(()))
    code, _, report = run_doctor(tmp_path)
    vendor = checks(report)["vendor"]
    assert (code, vendor["health"]) == (1, "broken")
    assert vendor["detail"].endswith(
        f"is built for riscv64, and this Python runs on {platform.machine()}"
        " (QNN_COMMON_ERROR_PLATFORM_NOT_SUPPORTED, 1006)"
    )
    assert vendor["advice"] == "take the build of it for this machine"


def test_a_library_that_cannot_begin_has_one_cause_and_one_cure(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the library for aarch64 answers on a machine that is no board."""

    def no_board(**_: object) -> None:
        with beginning(chosen=False):
            said = ["No Snapdragon SOC detected", "Failed to init router"]
            raise failure("logCreate", 4000, area="BACKEND", where="", said=said)

    library = tmp_path / "libQnnHtp.so"
    library.touch()
    monkeypatch.setenv(LIBRARY_VARIABLE, str(library))
    monkeypatch.setattr(htp, "Backend", no_board)
    monkeypatch.setattr(doctor, "examine_installation", lambda: iter(()))
    code, _, report = run_doctor(tmp_path)
    vendor = checks(report)["vendor"]
    assert (code, vendor["health"]) == (1, "broken")
    assert vendor["detail"].startswith("vendor library: logCreate failed: No Snapdragon SOC detected (QNN_")
    assert vendor["advice"].startswith("the library reads the chip's number in /sys/devices/soc0/soc_id")


def test_a_runtime_directory_that_others_can_enter_is_broken(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    open_to_all = tmp_path / "open"
    open_to_all.mkdir(mode=0o755)
    monkeypatch.setenv("OPENHTP_RUNTIME_DIR", str(open_to_all))
    finding = doctor.guarded("runtime directory", doctor.runtime_directory, "set it")
    assert finding.health is doctor.Health.BROKEN
    assert "0700" in finding.detail


@pytest.mark.vendor
def test_the_vendors_library_is_run(tmp_path: Path) -> None:
    if find_library() is None:
        pytest.skip("the onnxruntime-qnn package is not installed")
    code, _, report = run_doctor(tmp_path)
    assert code == 0
    assert report["devices"] == {"emulator": True, "vendor": True}
    assert "a graph ran in" in checks(report)["vendor"]["detail"]
