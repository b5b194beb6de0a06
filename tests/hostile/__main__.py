"""The long form: ``python -X dev -m tests.hostile [--minutes 10] [--seed N] [--only api,files] [--exact]``.

Attacks take turns, each turn in a process of its own with a seed of its own, until the time is over. Prints what
was done and found; ends with 1 if there was any defect. ``--exact`` takes the seed as it is, for one turn of each
attack: that is how a defect is seen again.
"""

from __future__ import annotations

import argparse
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator

from tests.hostile.running import attacks, run_attack
from tests.hostile.tally import Tally

_TURN = 30.0
_ALLOWED_SHOWN = 5


def main() -> int:
    """Attack, report, and say by the exit code how it went."""
    options = _options()
    seed = options.seed if options.seed is not None else random.SystemRandom().randrange(1 << 32)
    names = options.only.split(",") if options.only else attacks()
    unknown = sorted(set(names) - set(attacks()))
    if unknown:
        sys.stderr.write(f"unknown attacks: {', '.join(unknown)}; there are {', '.join(attacks())}\n")
        return 2
    _say(f"seed {seed}; {options.minutes:g} minutes of {', '.join(names)}")
    tallies: list[Tally] = []
    turns = [(name, seed, _TURN) for name in names] if options.exact else _turns(names, seed, options.minutes * 60)
    for name, own_seed, seconds in turns:
        tally = run_attack(name, own_seed, seconds=seconds)
        tallies.append(tally)
        _say(f"{name:12} seed {own_seed:<12} {tally.calls:7} calls {tally.defects:4} defects")
        if tally.defects:
            _say(tally.report())
    return _summary(tallies, names, seed)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.hostile", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int)
    parser.add_argument("--only", help="attacks, separated by commas")
    parser.add_argument("--exact", action="store_true", help="one turn with this very seed")
    return parser.parse_args()


def _turns(names: list[str], seed: int, seconds: float) -> Iterator[tuple[str, int, float]]:
    rng = random.Random(seed)
    end = time.monotonic() + seconds
    # Starting and looking for leaks take as long again on a busy machine: each attack has a turn all the same.
    turn = min(_TURN, seconds / len(names) / 2)
    while True:
        for name in names:
            left = end - time.monotonic()
            if left < 1:
                return
            yield name, rng.randrange(1 << 40), min(turn, left)


def _summary(tallies: list[Tally], names: list[str], seed: int) -> int:
    _say("")
    for name in names:
        own = [tally for tally in tallies if tally.name == name]
        ends: Counter[str] = sum((Counter(tally.outcomes) for tally in own), Counter())
        shown = ", ".join(f"{count} {what}" for what, count in ends.most_common(_ALLOWED_SHOWN))
        calls, defects = sum(tally.calls for tally in own), sum(tally.defects for tally in own)
        _say(f"{name:12} {len(own):3} turns {calls:8} calls {defects:4} defects   {shown}")
    kinds = Counter(stray.kind for tally in tallies for stray in tally.strays)
    defects = sum(tally.defects for tally in tallies)
    told = ", ".join(f"{count} {kind}" for kind, count in kinds.items()) or "none"
    _say(f"{sum(tally.calls for tally in tallies)} calls, {defects} defects ({told}), seed {seed}")
    return 1 if defects else 0


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
