"""C programs on our library, and structures that a client changes in place.

The programs have threads, callbacks that free or submit, forks, exits with work queued or under way, signals that
interrupt every call of the system, and threads with little stack.
"""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.capi.c_programs import HOSTS, can_load_python, compile_program, host_environment
from tests.capi.conftest import build_script
from tests.hostile.leaks import Holdings
from tests.hostile.running import ROOT
from tests.hostile.tally import LONGEST_CALL, Budget, Watch

SHORT = 3
"""Rounds of the short form."""

_PATIENCE = LONGEST_CALL
"""Seconds in which a host must have started, worked and ended."""
_STRUCTS = 400


def attack(rng: random.Random, budget: Budget, watch: Watch) -> None:
    """One host after the other, each kind as often as the others."""
    holdings = Holdings()
    with tempfile.TemporaryDirectory(prefix="hosts") as place:
        folder, script = Path(place), build_script()
        compiler = script.compiler()
        if compiler is None or not script.compile_libraries(ROOT, folder) or not can_load_python():
            with watch.call("no C compiler, or no shared library of Python"):
                return
        program = compile_program("hosts.c", folder, compiler)
        library = str(folder / "libQnnHtp.so")
        kinds: list[str] = []
        while budget:
            if not kinds:
                kinds = rng.sample([*HOSTS, "reused_structs"], len(HOSTS) + 1)
            kind, seed = kinds.pop(), str(rng.randrange(1 << 30))
            words = [str(program), library, kind, seed]
            if kind == "reused_structs":
                module = "tests.capi.reused_structs"
                words = [sys.executable, "-X", "faulthandler", "-m", module, str(folder), str(_STRUCTS), seed]
            with watch.call(f"host {kind}, seed {seed}", limit=2 * _PATIENCE):
                _run(words, kind, watch)
            watch.tally.count(kind)
    holdings.check(watch)


def _run(words: list[str], kind: str, watch: Watch) -> None:
    process = subprocess.Popen(
        words, cwd=ROOT, env=host_environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    try:
        _, errors = process.communicate(timeout=_PATIENCE)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGABRT)
        _, errors = process.communicate()
        watch.found("hang", f"{kind} did not end\n{errors[-3000:]}")
        return
    if process.returncode:
        watch.found(
            "crash" if process.returncode < 0 else "wrong", f"{kind}: {process.returncode}\n{errors[-3000:]}"
        )
