"""Starts attacks, each in a process of its own, and reads what they found even if that process died."""

from __future__ import annotations

import pkgutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import tests.hostile
from tests.hostile.tally import LONGEST_CALL, Tally
from tests.waiting import PATIENCE_S

ROOT = Path(__file__).parents[2]
_GRACE = PATIENCE_S
"""Seconds for starting, looking for leaks and ending, beyond the attack's own time."""


def attacks() -> list[str]:
    """Names of all attacks."""
    names = [found.name for found in pkgutil.iter_modules(tests.hostile.__path__)]
    return sorted(name.removeprefix("fuzz_") for name in names if name.startswith("fuzz_"))


def run_attack(name: str, seed: int, *, seconds: float, calls: int = 0) -> Tally:
    """One attack, for so many seconds, and so many calls if given."""
    with tempfile.TemporaryDirectory(prefix="hostile") as place:
        folder = Path(place)
        words = ["-X", "dev", "-X", "faulthandler", "-m", "tests.hostile.worker"]
        command = [sys.executable, *words, name, str(seed), str(seconds), str(calls), str(folder)]
        # To a file: a pipe would be held open by processes that outlive the attack.
        with (folder / "errors").open("wb") as errors:
            process = subprocess.Popen(command, cwd=ROOT, stdout=errors, stderr=errors)
            try:
                code: int | None = process.wait(seconds + _GRACE)
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGABRT)  # faulthandler tells where it stands
                process.wait()
                code = None
        written = (folder / "errors").read_text(encoding="utf-8", errors="replace")
        report = folder / "tally"
        if report.exists():
            tally = Tally.from_json(report.read_text(encoding="utf-8"))
        else:
            tally = Tally(name, seed)
            tally.found(*_death(code, written), _last_calls(folder / "journal"))
        return tally


def _death(code: int | None, written: str) -> tuple[str, str]:
    tail = written[-6000:]
    if code is None:
        return "hang", f"the attack did not end\n{tail}"
    if "Timeout (0:" in written:
        return "hang", f"a call took more than {LONGEST_CALL:g} s\n{tail}"
    return "crash", f"the process ended with {code}\n{tail}"


def _last_calls(journal: Path) -> list[str]:
    if not journal.exists():
        return []
    return journal.read_text(encoding="utf-8", errors="replace").rstrip().splitlines()[-25:]
