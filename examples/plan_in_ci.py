"""Fails a CI job when a scenario misses a deadline; names the clients and the time of their slowest runs.

python examples/plan_in_ci.py examples/pipeline.yaml
"""

from __future__ import annotations

import sys

import openhtp


def main(path: str) -> int:
    result = openhtp.plan(path, detail=False)
    for name, client in result.clients.items():
        held = "-" if client.deadline is None else f"{client.missed} missed of {client.deadline:g}"
        print(f"{name}: {client.runs} runs, slowest {client.max} (modelled), deadlines: {held}")
    return 1 if result.missed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
