"""C structures written as one line of text each, and made into ctypes classes.

A line is ``"field:type field:type*3"``; a type is one of the words below or the name of another structure.
Text keeps a layout readable at a glance beside the numbers that ``tests/abi/test_layout.py`` holds it to.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator, Mapping
from typing import Any

PLAIN: dict[str, Any] = {
    "u8": ctypes.c_uint8,
    "u32": ctypes.c_uint32,
    "i32": ctypes.c_int32,
    "u64": ctypes.c_uint64,
    "f32": ctypes.c_float,
    # Pointers are plain addresses: the owner of what they point at is always held by Python next to them.
    "ptr": ctypes.c_void_p,
    # Read-only strings that the library owns; reading one gives bytes or None.
    "str": ctypes.c_char_p,
}

Struct = ctypes.Structure
StructType = type[ctypes.Structure]


def build(structs: Mapping[str, str], unions: Mapping[str, str]) -> dict[str, Any]:
    """Make the ctypes classes of a set of layouts.

    ``unions`` holds the variants of tagged unions. Either table may name what the other defines, in any
    order: a class is made when it is first needed.
    """
    made: dict[str, Any] = {}

    def type_of(word: str) -> Any:
        word, _, count = word.partition("*")
        if word in PLAIN:
            base = PLAIN[word]
        elif word in made:
            base = made[word]
        else:
            is_union = word in unions
            line = unions[word] if is_union else structs[word]
            parent = ctypes.Union if is_union else ctypes.Structure
            base = type(word, (parent,), {"_fields_": [(name, type_of(kind)) for name, kind in _fields(line)]})
            made[word] = base
        return base * int(count) if count else base

    for name in [*structs, *unions]:
        type_of(name)
    return made


def _fields(line: str) -> Iterator[tuple[str, str]]:
    for part in line.split():
        name, _, kind = part.partition(":")
        yield name, kind


def offsets(struct: StructType) -> dict[str, int]:
    """Byte offset of every field, for layout tests."""
    return {field[0]: getattr(struct, field[0]).offset for field in struct._fields_}


def pointer_list(items: list[Struct]) -> ctypes.Array[ctypes.c_void_p] | None:
    """A NULL-terminated array of addresses, as every config list of the API is; None for no items.

    The caller keeps ``items`` alive while the library reads the list.
    """
    if not items:
        return None
    return (ctypes.c_void_p * (len(items) + 1))(*[ctypes.addressof(item) for item in items], None)
