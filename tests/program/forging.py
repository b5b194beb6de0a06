"""Binaries with one thing changed and right checksums: what a skilled enemy would send."""

from __future__ import annotations

import contextlib
from typing import Any

import msgspec

from openhtp.program import container
from openhtp.program.sources import MemorySource


def parts_of(binary: bytes) -> tuple[dict[str, Any], list[bytes]]:
    """The header as plain data, and all sections."""
    source = MemorySource(binary)
    words, begin = container.open_header(source)
    header = msgspec.msgpack.decode(words)
    records = [container.SectionRecord(*record) for record in header["sections"]]
    return header, [bytes(section.read()) for section in container.locate_sections(source, begin, records)]


def put_together(
    header: dict[str, Any], sections: list[bytes], *, measure: bool = True, bind: bool = False
) -> bytes:
    """A file of these; unless told not to, the header is made to say what the sections are.

    ``bind`` also makes every graph say that these sections are its own.
    """
    made = [container.make_section(section) for section in sections]
    if bind:
        _bind(header, made)
    if measure:
        header = {**header, "sections": [[section.record.nbytes, section.record.checksum] for section in made]}
    return b"".join(container.pack(msgspec.msgpack.encode(header), made))


def _bind(header: dict[str, Any], made: list[container.FileSection]) -> None:
    with contextlib.suppress(
        KeyError, IndexError, TypeError, AttributeError
    ):  # what is no graph any more is not to be helped
        for graph in header["graphs"]:
            prepared = [] if graph.get("prepared") is None else [graph["prepared"]]
            numbers = [graph["program"], *graph["data"], *prepared]
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
