"""Finding and refusing libraries; no vendor library is needed."""

from __future__ import annotations

import _ctypes
import ctypes
import platform
from pathlib import Path

import pytest

from openhtp.abi.numbers import LIBRARY_NAME
from openhtp.abi.structs import struct
from openhtp.core.enumerations import LogLevel
from openhtp.core.errors import FormatError, InvalidArgument, QnnError, ResourceError, UnsupportedFeature
from openhtp.hw.catalog import catalog
from openhtp.vendor import library
from openhtp.vendor.backend import beginning, cause_in, cure_of, parse_soc
from openhtp.vendor.library import LogSink, failure

NOT_HERE = 183 if platform.machine() != "aarch64" else 62


def elf(machine: int) -> bytes:
    return b"\x7fELF\x02\x01\x01" + bytes(9) + b"\x03\x00" + machine.to_bytes(2, "little") + bytes(44)


def provider(
    core: tuple[int, int, int], htp: tuple[int, int, int] = (5, 51, 0), backend: int = 6
) -> ctypes.Structure:
    made = struct("Provider")(backend_id=backend)
    made.api.core.major, made.api.core.minor, made.api.core.patch = core
    made.api.backend.major, made.api.backend.minor, made.api.backend.patch = htp
    return made


def choose(*providers: ctypes.Structure) -> tuple[int, object]:
    return library.choose_provider([ctypes.addressof(p) for p in providers], Path("lib.so"))


class TestFind:
    def test_variable_names_the_file_or_its_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        file = tmp_path / LIBRARY_NAME
        file.write_bytes(b"")
        for value in (file, tmp_path):
            monkeypatch.setenv(library.LIBRARY_VARIABLE, str(value))
            assert library.find_library() == file

    def test_variable_that_names_nothing_is_an_error(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(library.LIBRARY_VARIABLE, "/no/such/file")
        with pytest.raises(UnsupportedFeature, match="there is no file"):
            library.find_library()

    def test_nothing_installed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv(library.LIBRARY_VARIABLE, raising=False)
        monkeypatch.setattr(library, "PACKAGE", "no_such_package")
        monkeypatch.setattr(library, "DEVICE_FOLDERS", ())
        assert library.find_library() is None
        with pytest.raises(UnsupportedFeature, match=r"pip install openhtp\[vendor\]"):
            library.load()

    def test_device_folder(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.delenv(library.LIBRARY_VARIABLE, raising=False)
        monkeypatch.setattr(library, "PACKAGE", "no_such_package")
        monkeypatch.setattr(library, "DEVICE_FOLDERS", (str(tmp_path),))
        (tmp_path / LIBRARY_NAME).write_bytes(b"")
        assert library.find_library() == tmp_path / LIBRARY_NAME


class TestLoad:
    def test_missing(self) -> None:
        with pytest.raises(UnsupportedFeature, match="cannot be read") as caught:
            library.load("/no/such/lib.so")
        assert caught.value.name == "QNN_COMMON_ERROR_LOADING_BINARIES"

    @pytest.mark.parametrize("content", [b"", b"not a library at all", b"\x7fELF"])
    def test_not_a_library(self, tmp_path: Path, content: bytes) -> None:
        file = tmp_path / "lib.so"
        file.write_bytes(content)
        with pytest.raises(FormatError, match="not a shared library"):
            library.load(file)

    def test_other_processor(self, tmp_path: Path) -> None:
        file = tmp_path / "lib.so"
        file.write_bytes(elf(NOT_HERE))
        with pytest.raises(FormatError, match=f"and this Python runs on {platform.machine()}") as caught:
            library.load(file)
        assert caught.value.name == "QNN_COMMON_ERROR_PLATFORM_NOT_SUPPORTED"

    def test_broken_library(self, tmp_path: Path) -> None:
        file = tmp_path / "lib.so"
        file.write_bytes(elf({"x86_64": 62, "aarch64": 183}[platform.machine()]))
        with pytest.raises(FormatError, match="cannot be loaded"):
            library.load(file)

    def test_library_of_something_else(self) -> None:
        with pytest.raises(FormatError, match="no QnnInterface_getProviders"):
            library.load(_ctypes.__file__)


class TestProvider:
    def test_newest_usable_one_wins(self) -> None:
        providers = [provider((2, 32, 0)), provider((2, 40, 0)), provider((2, 41, 0), backend=4)]
        address, api = choose(*providers)
        assert address == ctypes.addressof(providers[1])
        assert api == ((2, 40, 0), (5, 51, 0))

    @pytest.mark.parametrize(
        ("given", "said"),
        [
            ([], "offers no provider"),
            ([provider((2, 31, 9))], "core API 2.31.9"),
            ([provider((3, 0, 0))], "core API 3.0.0"),
            ([provider((2, 40, 0), backend=4)], "backend 4"),
        ],
    )
    def test_refused(self, given: list[ctypes.Structure], said: str) -> None:
        with pytest.raises(UnsupportedFeature, match=said) as caught:
            choose(*given)
        assert caught.value.name == "QNN_COMMON_ERROR_INCOMPATIBLE_BINARIES"

    @pytest.mark.parametrize(("htp", "aligned"), [((5, 43, 0), False), ((5, 47, 0), True), ((5, 51, 0), True)])
    def test_device_config_layout_follows_the_version(self, htp: tuple[int, int, int], aligned: bool) -> None:
        table = (ctypes.c_uint8 * 1024)()
        made = library.VendorLibrary(Path("lib.so"), ctypes.CDLL(None), ctypes.addressof(table), ((2, 40, 0), htp))
        assert made.aligned_device_config is aligned
        with pytest.raises(UnsupportedFeature, match="has no function graphCreate"):
            made.call("graphCreate")


@pytest.mark.parametrize(("given", "model"), [("SM8650", 57), ("sm8550", 43), ("v79", 69), ("V68", 30), (60, 60)])
def test_soc(given: str | int, model: int) -> None:
    assert parse_soc(given) == model


def test_every_soc_of_the_catalog_is_known_by_its_name() -> None:
    assert {name: parse_soc(name.lower()) for name in catalog()} == {
        name: soc.soc_model for name, soc in catalog().items()
    }
    assert [parse_soc(f"v{arch}") for arch in (68, 69, 73, 75, 79, 81)] == [30, 36, 43, 57, 69, 87]


@pytest.mark.parametrize("given", ["SM9999", "v70", 0, -1, True, ""])
def test_unknown_soc(given: str | int) -> None:
    with pytest.raises(InvalidArgument) as caught:
        parse_soc(given)
    assert caught.value.code == 14001


@pytest.mark.parametrize(
    ("call", "code", "kind", "name"),
    [
        ("graphFinalize", 1002, "UnsupportedOp", "QNN_GRAPH_ERROR_MEM_ALLOC"),
        ("graphExecute", 6004, "InvalidArgument", "QNN_GRAPH_ERROR_INVALID_TENSOR"),
        ("graphExecute", 6040, "QnnError", "QNN_GRAPH_ERROR_CYCLE_DETECTED"),
        ("graphExecute", 1007, "DeviceLost", "QNN_COMMON_ERROR_SYSTEM_COMMUNICATION"),
        ("contextCreateFromBinary", 30010, "BadBinary", "QNN_SYSTEM_CONTEXT_ERROR_MALFORMED_BINARY"),
        ("graphExecute", 6999, "QnnError", "QNN_STATUS_6999"),
    ],
)
def test_failures_keep_name_number_and_place(call: str, code: int, kind: str, name: str) -> None:
    error = failure(call, code, area="GRAPH", where="graph 'g'", said=["why"])
    assert isinstance(error, QnnError)
    assert (type(error).__name__, error.code, error.name) == (kind, code, name)
    assert f"{call} failed for graph 'g': why" in str(error)


class TestBoard:
    """What the library for aarch64 was heard to say on machines that are no board, or lack something."""

    @pytest.mark.parametrize(
        ("said", "cure"),
        [
            ("No Snapdragon SOC detected; Failed to init router", "/sys/devices/soc0/soc_id"),
            ("Dsp startup: Unsupported SoC model (SnapdragonModel): 43", "not for this chip"),
            (
                "Failed in loading stub: libcdsprpc.so: cannot open shared object file",
                "install the FastRPC library",
            ),
            (
                "Failed in loading stub: /x/libQnnHtpV68Stub.so: undefined symbol: remote_session_control",
                "comes before",
            ),
            ("Failed in loading stub: libQnnHtpV68Stub.so: cannot open shared object file", "ADSP_LIBRARY_PATH"),
        ],
    )
    def test_what_the_library_says_has_a_cure(self, said: str, cure: str) -> None:
        assert cure in cure_of(said)

    @pytest.mark.parametrize(
        ("said", "cause"),
        [
            ("deviceCreate failed: No Snapdragon SOC detected; Failed to init router; 4000", 1),
            ("deviceCreate failed: Failed; libcdsprpc.so: cannot open shared object file; it failed", 2),
            ("deviceCreate failed: Transport layer setup failed; Failed to create a device", 2),
        ],
    )
    def test_lines_behind_the_one_that_names_the_cause_are_left_out(self, said: str, cause: int) -> None:
        assert cause_in(said) == "; ".join(said.split("; ")[:cause])

    def test_the_dsp_of_the_kernel_is_looked_at(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        node = tmp_path / "fastrpc-cdsp"
        said = "Transport layer setup failed: 14001"
        assert f"--device {node}" in cure_of(said, [str(node)])
        node.touch()
        assert "remoteproc" in cure_of(said, [str(node)])
        monkeypatch.setattr("openhtp.vendor.backend.os.access", lambda path, mode: False)
        assert f"may not open {node}" in cure_of(said, [str(node)])

    def test_a_library_that_cannot_begin_is_not_the_callers_mistake(self) -> None:
        refusal = failure("deviceCreate", 14001, area="DEVICE", where="", said=["libcdsprpc.so: cannot open it"])
        assert isinstance(refusal, InvalidArgument)
        with (
            pytest.raises(ResourceError, match=r"cannot open it\. What to do: install") as caught,
            beginning(chosen=False),
        ):
            raise refusal
        assert caught.value.name == "QNN_COMMON_ERROR_SYSTEM_COMMUNICATION"
        with pytest.raises(InvalidArgument), beginning(chosen=True):
            raise refusal
        other = failure("deviceCreate", 1009, area="DEVICE", where="", said=[])
        with pytest.raises(QnnError) as unchanged, beginning(chosen=False):
            raise other
        assert unchanged.value is other

    def test_why_a_part_was_not_loaded_is_only_a_warning_of_the_library(self) -> None:
        sink = LogSink()
        sink._format = None
        sink._receive(b"Cost Based unsupported on soc QCS6490", LogLevel.WARN, 0, None)
        sink._receive(b"Failed in loading stub: libcdsprpc.so", LogLevel.WARN, 0, None)
        sink._receive(b"Failed to do nothing", LogLevel.INFO, 0, None)
        sink._receive(b"loadRemoteSymbols failed", LogLevel.ERROR, 0, None)
        assert sink.take_errors() == ["Failed in loading stub: libcdsprpc.so", "loadRemoteSymbols failed"]
