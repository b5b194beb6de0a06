"""Writes the schema of scenario files that editors use. ``--check`` only says whether the file is up to date."""

from __future__ import annotations

import json
import sys

from openhtp.planning.schema import PATH, schema


def text() -> str:
    """The file's text."""
    return json.dumps(schema(), indent=2) + "\n"


def main() -> int:
    """Write the file, or compare it."""
    if "--check" in sys.argv:
        fresh = PATH.exists() and PATH.read_text() == text()
        print("up to date" if fresh else f"out of date: {PATH.name}; run make docs")
        return not fresh
    PATH.write_text(text())
    return 0


if __name__ == "__main__":
    sys.exit(main())
