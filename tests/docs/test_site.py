"""The site builds with no complaint, is whole, and fetches nothing from anywhere."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from tests.waiting import PATIENCE_S

import openhtp

ROOT = Path(__file__).parents[2]
# What a browser loads by itself, as opposed to what a reader may click on.
_LOADED = re.compile(
    r"""<(?:script|img|iframe|source)[^>]*\ssrc=["']?(http[^"' >]+)|<link[^>]*href=["']?(http[^"' >]+)"""
)


def build(folder: Path) -> subprocess.CompletedProcess[str]:
    program = "from zensical.main import cli; cli()"
    command = [sys.executable, "-c", program, "build", "--strict"]
    return subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False, timeout=PATIENCE_S)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The built site, beside a copy of what it was built from."""
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(ROOT / "docs", folder / "docs")
    shutil.copy(ROOT / "mkdocs.yml", folder)
    (folder / "src").symlink_to(ROOT / "src")
    done = build(folder)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder / "out" / "site"


def pages_of(entries: list[object]) -> list[str]:
    found: list[str] = []
    for entry in entries:
        for value in entry.values() if isinstance(entry, dict) else [entry]:
            found += pages_of(value) if isinstance(value, list) else [value]
    return found


def test_every_page_is_built_and_can_be_found(site: Path) -> None:
    pages = {str(path.relative_to(ROOT / "docs")) for path in (ROOT / "docs").rglob("*.md")}
    assert set(pages_of(yaml.safe_load((ROOT / "mkdocs.yml").read_text())["nav"])) == pages
    assert [page for page in pages if not (site / page).with_suffix(".html").exists()] == []


def test_nothing_is_loaded_from_elsewhere(site: Path) -> None:
    found = [
        (path.name, address)
        for path in site.rglob("*.html")
        for match in _LOADED.findall(path.read_text(encoding="utf-8"))
        for address in match
        if address
    ]
    assert found == []
    for style in site.rglob("*.css"):
        assert re.findall(r"(?:@import|url\()\s*[\"']?https?:", style.read_text(encoding="utf-8")) == [], style


def test_the_reference_has_every_public_name(site: Path) -> None:
    text = "".join(path.read_text(encoding="utf-8") for path in (site / "reference").glob("*.html"))
    text += (site / "errors.html").read_text(encoding="utf-8")
    headings = set(re.findall(r'id="openhtp\.(?:\w+\.)*(\w+)"', text))
    missing = [name for name in openhtp.__all__ if name not in headings and not name.startswith("__")]
    assert [name for name in missing if name not in text] == []


@pytest.mark.parametrize("link", ["nowhere.md", "options.md#nowhere"])
def test_a_broken_link_does_not_pass(site: Path, link: str) -> None:
    page = site.parents[1] / "docs" / "broken.md"
    page.write_text(f"# Broken\n\n[there]({link})\n")
    try:
        done = build(site.parents[1])
    finally:
        page.unlink()
    assert done.returncode != 0
    assert "broken.md" in done.stdout + done.stderr
