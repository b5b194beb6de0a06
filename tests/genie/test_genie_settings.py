"""What is said before Genie is asked: files, sizes and chips that do not fit, and a library that is not there."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import openhtp as htp
from openhtp.core.errors import BadBinary, BadModel, InvalidArgument, QnnError, UnsupportedFeature
from openhtp.genie import Chat, find_genie, linked_folder
from openhtp.genie.chat import _reason
from openhtp.genie.libraries import GENIE_VARIABLE, link_libraries, require_genie
from openhtp.genie.settings import GenieBundle


@pytest.fixture
def folder(tiny_bundle: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(tiny_bundle, tmp_path / "bundle"))


def _changed(folder: Path, change: Callable[[Any], None]) -> GenieBundle:
    path = folder / "genie_config.json"
    content = json.loads(path.read_text())
    change(content["dialog"])
    path.write_text(json.dumps(content))
    return GenieBundle.at(folder)


def test_files_get_absolute_names_wherever_the_folder_is(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder.parent)
    bundle = GenieBundle.at("bundle")
    content = json.loads(bundle.config(asynchronous=True))["dialog"]
    assert content["tokenizer"]["path"] == str(folder / "tokenizer.json")
    assert content["engine"]["model"]["binary"]["ctx-bins"] == [str(folder / "part_1_of_1.bin")]
    assert content["engine"]["backend"]["QnnHtp"]["allow-async-enqueue"] is True
    assert "allow-async-enqueue" not in bundle.config()
    assert GenieBundle.at(folder / "genie_config.json").parts == [folder / "part_1_of_1.bin"]


def test_the_table_of_an_embedding_gets_an_absolute_name(folder: Path) -> None:
    def name_table(dialog: dict[str, Any]) -> None:
        dialog["embedding"] = {"version": 1, "type": "lut", "lut-path": "embedding.raw"}

    with pytest.raises(BadModel, match=r"the file of 'lut-path' as 'embedding.raw', and there is no such file"):
        _changed(folder, name_table)
    (folder / "embedding.raw").write_bytes(b"")
    assert GenieBundle.at(folder).dialog["embedding"]["lut-path"] == str(folder / "embedding.raw")


def test_a_bundle_without_a_configuration_gets_one(folder: Path) -> None:
    (folder / "genie_config.json").unlink()
    assert GenieBundle.at(folder).dialog["context"]["size"] == 224


def test_a_missing_tokenizer_is_named(folder: Path) -> None:
    (folder / "tokenizer.json").unlink()
    with pytest.raises(BadModel, match=r"names the tokenizer as 'tokenizer.json', and there is no such file"):
        GenieBundle.at(folder)


def test_a_context_that_the_graphs_do_not_have_is_refused(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    bundle = _changed(folder, lambda dialog: dialog["context"].update(size=257))
    with pytest.raises(InvalidArgument, match=r"is 257, and graph .* has 256 places; expected at most 224"):
        bundle.chip(None)
    _changed(folder, lambda dialog: dialog["context"].update(size=256)).chip(None)
    assert "leaves no room for the last pass" in caplog.text
    caplog.clear()
    _changed(folder, lambda dialog: dialog["context"].update(size=224)).chip(None)
    assert not caplog.records


def test_a_bundle_of_another_chip_is_refused(folder: Path) -> None:
    part = folder / "part_1_of_1.bin"
    with htp.Backend() as backend:
        device = backend.create_device(soc="SM8750")
        part.write_bytes(device.create_context_from_binary(part.read_bytes()).get_binary())
    bundle = GenieBundle.at(folder)
    assert bundle.chip(None) == "SM8750"
    with pytest.raises(BadBinary, match="was made for SM8750, and SM8650 is asked for"):
        bundle.chip("SM8650")


def _made_for(soc: str, binary: bytes) -> bytes:
    with htp.Backend() as backend:
        return backend.create_device(soc=soc).create_context_from_binary(binary).get_binary()


def test_extensions_of_another_chip_are_refused(folder: Path) -> None:
    part, extensions = folder / "part_1_of_1.bin", folder / "extensions.json"
    extensions.write_text(json.dumps({"devices": [{"soc_model": 57}]}))

    def name_them(dialog: Any) -> None:
        dialog["engine"]["backend"]["extensions"] = extensions.name

    assert _changed(folder, name_them).chip(None) == "SM8650"
    part.write_bytes(_made_for("SM8750", part.read_bytes()))
    with pytest.raises(BadBinary, match=r"made for SM8750, and SM8650 is asked for by '.*extensions.json'"):
        GenieBundle.at(folder).chip(None)
    extensions.write_text(json.dumps({"devices": [{"soc_model": 69}]}))
    assert GenieBundle.at(folder).chip(None) == "SM8750"
    for other in ("no JSON", "[]", '{"devices": []}', '{"devices": [{"soc_model": 12345}]}'):
        extensions.write_text(other)
        assert GenieBundle.at(folder).chip(None) == "SM8750", "Genie reads it itself"


def test_parts_of_two_chips_are_refused(folder: Path) -> None:
    part, second = folder / "part_1_of_1.bin", folder / "part_2_of_2.bin"
    second.write_bytes(_made_for("SM8650", part.read_bytes()))
    part.write_bytes(_made_for("SM8750", part.read_bytes()))

    def name_both(dialog: Any) -> None:
        dialog["engine"]["model"]["binary"]["ctx-bins"] = [part.name, second.name]

    with pytest.raises(
        BadBinary, match=r"part_2_of_2.bin' was made for SM8650, and .*part_1_of_1.bin' for SM8750"
    ):
        _changed(folder, name_both).chip(None)


def test_a_binary_of_another_format_is_refused(folder: Path) -> None:
    (folder / "part_1_of_1.bin").write_bytes(b"\x00" * 4096)
    with pytest.raises(BadBinary, match="binaries of the vendor's own format"):
        GenieBundle.at(folder).chip(None)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda dialog: dialog.pop("tokenizer"), "tokenizer as None; expected an object"),
        (lambda dialog: dialog["engine"].update(model=3), "model as 3; expected an object"),
        (lambda dialog: dialog["engine"]["model"]["binary"].update({"ctx-bins": []}), "names no ctx-bins"),
        (lambda dialog: dialog["engine"]["model"]["binary"].update({"ctx-bins": [7]}), "a context binary as 7"),
        (lambda dialog: dialog["engine"]["backend"].update(extensions="no.json"), "the file of 'extensions'"),
    ],
)
def test_a_configuration_that_lacks_something_is_refused(
    folder: Path, change: Callable[[Any], None], words: str
) -> None:
    with pytest.raises(BadModel, match=words):
        _changed(folder, change)


def test_what_is_no_bundle_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(BadModel, match="openhtp llm export"):
        GenieBundle.at(tmp_path)
    (tmp_path / "genie_config.json").write_text("{")
    with pytest.raises(BadModel, match="is no JSON"):
        GenieBundle.at(tmp_path)
    with pytest.raises(BadModel, match="cannot read"):
        GenieBundle.at(tmp_path / "nothing")


def test_genie_is_looked_for_where_it_was_said_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    library = tmp_path / "libGenie.so"
    with pytest.raises(InvalidArgument, match="there is no file"):
        find_genie(tmp_path)
    library.write_bytes(b"no library")
    assert find_genie(tmp_path) == find_genie(library) == library
    monkeypatch.setenv(GENIE_VARIABLE, str(library))
    assert find_genie() == library
    with pytest.raises(QnnError, match="not a shared library"):
        require_genie()
    monkeypatch.delenv(GENIE_VARIABLE)
    monkeypatch.setattr("openhtp.genie.libraries.package_folders", list)
    assert find_genie() is None
    with pytest.raises(UnsupportedFeature, match=r"pip install openhtp\[vendor\]"):
        require_genie()


def test_a_folder_of_links_has_our_libraries_beside_genie_and_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wheel, ours = tmp_path / "site" / "onnxruntime_qnn", tmp_path / "ours"
    for path in (wheel / "libGenie.so", wheel / "libQnnHtp.so", wheel / "libQnnHtpNetRunExtensions.so"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    (tmp_path / "site" / "onnxruntime_qnn.libs").mkdir()
    (ours / "rpcmem").mkdir(parents=True)
    (ours / "libQnnHtp.so").touch()
    (ours / "rpcmem" / "libcdsprpc.so").touch()
    monkeypatch.setattr("openhtp.genie.libraries.lib_dir", lambda: ours)
    with linked_folder(wheel / "libGenie.so") as folder:
        targets = {link.name: link.resolve() for link in folder.iterdir()}
        assert targets == {
            "libGenie.so": wheel / "libGenie.so",
            "libcdsprpc.so": ours / "rpcmem" / "libcdsprpc.so",
            "libQnnHtp.so": ours / "libQnnHtp.so",
            "libQnnHtpNetRunExtensions.so": wheel / "libQnnHtpNetRunExtensions.so",
        }
        assert (folder.parent / "onnxruntime_qnn.libs").resolve() == tmp_path / "site" / "onnxruntime_qnn.libs"
    assert not folder.parent.exists()
    with pytest.raises(InvalidArgument, match="a name that is not taken"):
        link_libraries(wheel / "libGenie.so", wheel)


def test_what_only_our_library_has_is_refused_with_the_vendors(tiny_bundle: Path) -> None:
    with pytest.raises(InvalidArgument, match="vendor with faults, trace"):
        Chat(tiny_bundle, vendor=True, faults="ssr@graphExecute:1", trace="t.json")
    with pytest.raises(InvalidArgument, match="expected thread or process"):
        Chat(tiny_bundle, host="moon")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        ('[ERROR] "Device Creation failure"', "Device Creation failure"),
        ('[INFO]  "Using create From Binary"', ""),
        ("Schema validation failed with 1 error:", ""),
        ("  - at '/a': one failed - additional property 'pole': invalid", "additional property 'pole': invalid"),
    ],
)
def test_the_cause_is_found_in_what_genie_prints(line: str, reason: str) -> None:
    assert _reason(line) == reason
