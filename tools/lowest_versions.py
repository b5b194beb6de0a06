"""Constraints for pip: each dependency of pyproject.toml at the lowest version that it allows.

Run: `python tools/lowest_versions.py > constraints.txt`; `make test-lowest` does.
"""

import re
import tomllib
from pathlib import Path

_PROJECT = Path(__file__).resolve().parent.parent / "pyproject.toml"


def lowest_versions(dependencies: list[str]) -> list[str]:
    """`name==1.2` for each `name>=1.2`; a dependency without a lowest version is an error."""
    constraints = []
    for dependency in dependencies:
        bound = re.fullmatch(r"(?P<name>[\w-]+)>=(?P<version>[\d.]+)", dependency)
        if bound is None:
            raise SystemExit(f"{_PROJECT.name}: {dependency!r} has no lowest version; expected name>=version")
        constraints.append(f"{bound['name']}=={bound['version']}")
    return constraints


if __name__ == "__main__":
    print("\n".join(lowest_versions(tomllib.loads(_PROJECT.read_text())["project"]["dependencies"])))
