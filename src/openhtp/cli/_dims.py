"""``--dim batch=1``: sizes for dimensions that a model leaves open."""

from __future__ import annotations

from openhtp.core.errors import InvalidArgument


def parse_dims(given: list[str]) -> dict[str, int]:
    """Sizes by name; raises InvalidArgument for anything that is not NAME=SIZE."""
    found = {}
    for item in given:
        name, equals, size = item.partition("=")
        if not name or not equals or not size.isdecimal() or int(size) < 1:
            raise InvalidArgument(f"--dim {item!r}; expected NAME=SIZE, like batch=1")
        found[name] = int(size)
    return found
