"""One attack in a process of its own: ``python -X dev -m tests.hostile.worker NAME SEED SECONDS CALLS FOLDER``."""

from __future__ import annotations

import faulthandler
import importlib
import logging
import os
import random
import resource
import sys
import traceback
from pathlib import Path

# No attack may fill the machine's memory; what is refused for that must be refused in an orderly way.
_MOST_SHARED = 1 << 30
_MOST_ADDRESSES = 24 << 30


def main() -> None:
    """Run the attack and write its tally."""
    name, seed, seconds, calls, folder = sys.argv[1], int(sys.argv[2]), *sys.argv[3:5], Path(sys.argv[5])
    faulthandler.enable()
    os.environ["OPENHTP_RUNTIME_DIR"] = str(folder / "run")
    os.environ["OPENHTP_KEY_FILE"] = str(folder / "prepared.key")
    os.environ["OPENHTP_CACHE"] = str(folder / "models")
    os.environ["ORT_DISABLE_TELEMETRY"] = "1"
    resource.setrlimit(resource.RLIMIT_FSIZE, (_MOST_SHARED, _MOST_SHARED))
    resource.setrlimit(resource.RLIMIT_AS, (_MOST_ADDRESSES, _MOST_ADDRESSES))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    from tests.hostile.tally import Budget, Tally, Watch, nothing_escapes

    module = importlib.import_module(f"tests.hostile.fuzz_{name}")
    tally = Tally(name, seed)
    watch = Watch(tally, folder / "journal")
    logging.raiseExceptions = False  # callbacks of logs are attacked as well
    with nothing_escapes(watch):
        try:
            module.attack(random.Random(seed), Budget(float(seconds), int(calls) or None), watch)
        except Exception:
            watch.found("crash", f"the attack itself failed\n{traceback.format_exc()}")
    watch.close()
    (folder / "tally").write_text(tally.to_json(), encoding="utf-8")


if __name__ == "__main__":
    main()
