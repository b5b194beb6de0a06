"""Binaries with one thing changed and right checksums: what a skilled enemy would send."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec

from openhtp.program import container
from openhtp.program.coding import CodedData, Coding
from openhtp.program.sources import MemorySource


def parts_of(binary: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """The header as plain data, and all sections."""
    source = MemorySource(binary)
    words, begin = container.open_header(source)
    header = msgspec.msgpack.decode(words)
    records = msgspec.convert(header["sections"], list[container.SectionRecord])
    return header, [bytes(section.read()) for section in container.locate_sections(source, begin, records)]


def put_together(
    header: dict[str, Any], sections: list[bytes], *, measure: bool = True, bind: bool = False
) -> bytes:
    """A file of these; unless told not to, the header is made to say what the sections are.

    ``bind`` also makes every graph say that these sections are its own.
    """
    made = [container.make_section(coded) for coded in _as_coded(header, sections)]
    if bind:
        _bind(header, made)
    if measure:
        header = {**header, "sections": [section.record for section in made]}
    return b"".join(container.pack(msgspec.msgpack.encode(header), made))


def _as_coded(header: dict[str, Any], sections: list[bytes]) -> list[CodedData]:
    """Sections in the codings that the header names, as far as it names any."""
    codings = [(Coding.PLAIN, 0)] * len(sections)
    with contextlib.suppress(KeyError, TypeError, msgspec.ValidationError):
        records = msgspec.convert(header["sections"], list[container.SectionRecord])
        codings[: len(records)] = [(record.coding, record.lowest) for record in records]
    return [CodedData(memoryview(data), *how) for data, how in zip(sections, codings, strict=False)]


def _bind(header: dict[str, Any], made: list[container.FileSection]) -> None:
    with contextlib.suppress(
        KeyError, IndexError, TypeError, AttributeError
    ):  # what is no graph any more is not to be helped
        for graph in header["graphs"]:
            others = [graph[key] for key in ("prepared", "updates", "chip") if graph.get(key) is not None]
            numbers = [graph["program"], *graph["data"], *others]
            graph["checksum"] = container.joint_checksum(made[number] for number in numbers)


def forged(binary: bytes, path: tuple[str | int, ...], value: object) -> bytes:
    """The file with one value changed: of the header or, as ``path`` begins, of the first graph's program."""
    header, sections = parts_of(binary)
    number = header["graphs"][0]["program"] if header["graphs"] else 0
    tree = {**header, "program": msgspec.msgpack.decode(sections[number])}
    place: Any = tree
    for key in path[:-1]:
        place = place[key]
    assert path[-1] in place or isinstance(path[-1], int)
    place[path[-1]] = value
    if path[0] == "program":
        sections[number] = msgspec.msgpack.encode(tree["program"])
        return put_together(header, sections, bind=True)
    del tree["program"]
    return put_together(tree, sections, measure=path[0] != "sections", bind=True)
