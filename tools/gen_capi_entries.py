"""Writes src/openhtp/capi/native/entries.h: a C function for every entry of the tables, and who we are."""

from __future__ import annotations

from pathlib import Path

from openhtp.abi.numbers import BACKEND_ID_HTP
from openhtp.abi.tables import CORE, POWER, SYSTEM, SYSTEM_SLOTS, TableEntry
from openhtp.capi import identity

PATH = Path(__file__).parents[1] / "src/openhtp/capi/native/entries.h"
# First numbers, as in openhtp/capi/entries.py and stub.c.
TABLES = (("core_entries", CORE, 0), ("system_entries", SYSTEM, 128), ("power_entries", POWER, 192))
_BY_VALUE = {
    "OpConfig": "bytes80",
    "Tensor": "bytes144",
    "ContextBuffer": "bytes32",
    "SerializationTarget": "bytes24",
}
_WIDTH = 112


def text() -> str:
    """The whole file."""
    lines = [
        "/* Every function by its number. Made by tools/gen_capi_entries.py from openhtp/abi/tables.py. */",
        "",
        *_identity(),
        "",
    ]
    for _, entries, first in TABLES:
        for name, entry in entries.items():
            lines += _function(name, entry, first)
    for table, entries, first in TABLES:
        lines += ["", f"static void *const {table}[] = {{"]
        row = "   "
        for entry in entries.values():
            word = f" f{first + entry.place},"
            if len(row) + len(word) > _WIDTH:
                lines.append(row)
                row = "   "
            row += word
        lines += [row, "};"]
    return "\n".join(lines) + "\n"


def _identity() -> list[str]:
    """What openhtp/capi/identity.py says, for a client that asks before there is a Python."""
    versions = (
        ("CORE", identity.CORE_VARIABLE, identity.CORE_API),
        ("HTP", identity.HTP_VARIABLE, identity.HTP_API),
        ("SYSTEM", identity.SYSTEM_VARIABLE, identity.SYSTEM_API),
    )
    return [
        f"#define BACKEND_ID {BACKEND_ID_HTP}",
        f"#define SYSTEM_SLOTS {SYSTEM_SLOTS}",
        f'#define PROVIDER_NAME "{identity.PROVIDER_NAME}"',
        f'#define SYSTEM_PROVIDER_NAME "{identity.SYSTEM_PROVIDER_NAME}"',
        *(f'#define {name}_VERSION "{variable}", "{default}"' for name, variable, default in versions),
    ]


def _function(name: str, entry: TableEntry, first: int) -> list[str]:
    number = first + entry.place
    if entry.arguments is None:
        return [
            f"/* {name} takes a structure of unknown size, so that nothing behind it can be found. */",
            f"static word f{number}(void)",
            "{",
            "    return NOT_SUPPORTED;",
            "}",
        ]
    words = entry.arguments.split()
    if not set(words) & set(_BY_VALUE):
        return [f"F{len(words)}({number}, {', '.join(words)}) /* {name} */"]
    letters = "abcdefghi"
    taken = ", ".join(
        f"{_BY_VALUE.get(word, word)} {letter}" for word, letter in zip(words, letters, strict=False)
    )
    packed = ", ".join(
        f"W(&{letter})" if word in _BY_VALUE else f"W({letter})"
        for word, letter in zip(words, letters, strict=False)
    )
    return [f"static word f{number}({taken}) CALL({number}, {packed}) /* {name} */"]


if __name__ == "__main__":
    PATH.write_text(text(), encoding="utf-8")
    print(f"{PATH.name}: {sum(len(entries) for _, entries, _ in TABLES)} functions")
