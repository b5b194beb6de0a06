"""One set of the vendor's libraries in a process: a second copy is refused before any of it is loaded."""

from __future__ import annotations

import shutil
import sys
from pathlib import Path

import pytest

import openhtp as htp
from openhtp.device.core import build_core
from openhtp.runtime.links.local_link import LocalLink


def copied(folder: Path, name: str = "libQnnHtp.so") -> Path:
    """Something that looks like a library of this machine; it is never loaded here."""
    folder.mkdir()
    return Path(shutil.copy(Path(sys.executable).resolve(), folder / name))


@pytest.fixture(autouse=True)
def _no_library_is_loaded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Devices are emulated ones; what is tested is which library they may be of."""
    monkeypatch.setattr(
        "openhtp.runtime.objects.backend.vendor_connect",
        lambda library, options, transport: lambda on_lost: LocalLink(build_core(options.config)),
    )


@pytest.mark.parametrize("name", ["libQnnHtp.so", "libQnnHtp2.so"])
def test_a_second_copy_is_refused(tmp_path: Path, name: str) -> None:
    first, second = copied(tmp_path / "one"), copied(tmp_path / "two", name)
    with htp.Backend(library=first) as backend, htp.Backend(library=second) as other:
        device = backend.create_device()
        backend.create_device()  # its own library is no second one
        with pytest.raises(htp.UnsupportedFeature, match=r"one/libQnnHtp.so.*another copy.*one set") as caught:
            other.create_device()
        assert caught.value.name == "QNN_COMMON_ERROR_LOADING_BINARIES"
        assert device.info()["soc"]


def test_the_same_library_by_another_path_is_the_same(tmp_path: Path) -> None:
    first = copied(tmp_path / "one")
    link = tmp_path / "linked.so"
    link.symlink_to(first)
    with htp.Backend(library=first) as backend, htp.Backend(library=link) as other:
        assert all(made.create_device().pid for made in (backend, other))


def test_after_the_first_is_freed_another_can_be_used(tmp_path: Path) -> None:
    with htp.Backend(library=copied(tmp_path / "one")) as backend:
        backend.create_device()
    with htp.Backend(library=copied(tmp_path / "two")) as other:
        assert other.create_device().pid
