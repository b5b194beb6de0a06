"""The chip's program of a stored graph: its operations in running order, tile by tile, and the transfers between
DDR and VTCM for each.

It preserves the compiler's placement, so a loaded graph is not placed again. It comes from a file: its user must
check that it fits the program.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import msgspec
import numpy as np
import numpy.typing as npt

from openhtp.core.errors import BadBinary
from openhtp.program.htp_program import HtpProgram
from openhtp.program.placement import DmaTransfer, Move, Placed, Placement, RangeRole

Rows = npt.NDArray[np.void]
_Count = Annotated[int, msgspec.Meta(ge=0, lt=1 << 40)]
_Kernel = Annotated[int, msgspec.Meta(ge=-1, lt=1 << 31)]

_TILE = 0
_MOVES = {move: number for number, move in enumerate(Move, start=1)}
_ROLES = {role: number for number, role in enumerate(RangeRole)}
# Before a kernel's tiles, and after them.
_BEFORE = (Move.FILL, Move.LOAD, Move.WEIGHTS)
_AFTER = (Move.SPILL, Move.STORE)
_MOST_TILES = 1 << 16

# ``what`` is 0 for a tile that is computed, otherwise the number of a move. ``maker`` is the kernel whose data is
# moved. ``offset`` is where in VTCM the result of a tile lies, if it lies there.
_OPERATION = np.dtype(
    [("kernel", "<u4"), ("tile", "<u2"), ("what", "<u2"), ("maker", "<u4"), ("offset", "<u4"), ("nbytes", "<u8")]
)
_RANGE = np.dtype(
    [("maker", "<u4"), ("role", "<u4"), ("offset", "<u8"), ("nbytes", "<u8"), ("first", "<u4"), ("last", "<u4")]
)


# A block of a result that waits in the spill-fill buffer from one kernel to another.
_WAITING = np.dtype([("maker", "<u4"), ("block", "<u4"), ("leaves", "<u4"), ("returns", "<u4")])
_BLOCK_BYTES = 2048


@dataclass(frozen=True, slots=True)
class WaitingResult:
    """What has no room in VTCM: bytes of a kernel that go to DDR during one kernel, and come back for another."""

    maker: int
    nbytes: int
    leaves: int
    returns: int


class _ChipWords(msgspec.Struct, frozen=True):
    """As it is stored. ``kernels`` names nodes; ``free_after`` and ``handed_over`` are the placement's.

    ``waiting`` has the blocks of results that wait in the spill-fill buffer. ``fill`` has the zeros with which the
    chip fills up the blocks of weights: a file has as many bytes as there.
    """

    soc: str
    vtcm_bytes: _Count
    kernels: list[list[str]]
    free_after: list[_Kernel]
    handed_over: list[_Count]
    operations: bytes
    ranges: bytes
    waiting: bytes = b""
    fill: bytes = b""


_DECODER = msgspec.msgpack.Decoder(_ChipWords)


@dataclass(frozen=True, slots=True)
class ChipProgram:
    """A program for one SoC as a file has it. ``kernels`` has the names of each kernel's nodes.

    ``waiting_blocks`` counts the blocks of 2 KiB that wait in the spill-fill buffer at some time.
    """

    soc: str
    kernels: tuple[tuple[str, ...], ...]
    placed: Placed
    waiting_blocks: int = 0

    @property
    def tiles(self) -> int:
        """The number of pieces that are computed."""
        return sum(self.placed.tiles)

    @property
    def paged_bytes(self) -> int:
        """Bytes that are written to DDR and brought back because VTCM is too small."""
        return self.placed.moved(Move.SPILL, Move.FILL)

    @property
    def operations(self) -> int:
        """The number of its operations, transfers included."""
        return self.tiles + sum(self.placed.tiles[each.at] for each in self.placed.transfers)

    def fits(self, program: HtpProgram) -> bool:
        """Whether a program is made of the same kernels in the same order, for the same SoC and VTCM."""
        vtcm_bytes = min(program.soc.vtcm_bytes, program.options.vtcm_bytes or program.soc.vtcm_bytes)
        names = (tuple(node.name for node in kernel.nodes) for kernel in program.kernels)
        return (
            self.soc == program.soc.name and self.placed.vtcm_bytes == vtcm_bytes and self.kernels == tuple(names)
        )


def pack_chip_program(
    program: HtpProgram, placed: Placed, waiting: Sequence[WaitingResult] = (), fill: int = 0
) -> bytes:
    """The chip's program as it is stored, with so many zeros for blocks of weights that are not full."""
    words = _ChipWords(
        program.soc.name,
        placed.vtcm_bytes,
        [[node.name for node in kernel.nodes] for kernel in program.kernels],
        list(placed.free_after),
        sorted(placed.handed_over),
        np.array(list(_operations(placed)), _OPERATION).tobytes(),
        np.array(
            [
                (each.maker, _ROLES[each.role], each.offset, each.nbytes, each.first, each.last)
                for each in placed.placements
            ],
            _RANGE,
        ).tobytes(),
        b"".join(_blocks(each).tobytes() for each in waiting),
        bytes(fill),
    )
    return msgspec.msgpack.encode(words)


def _blocks(waiting: WaitingResult) -> Rows:
    rows = np.zeros(-(-waiting.nbytes // _BLOCK_BYTES), _WAITING)
    rows["maker"], rows["leaves"], rows["returns"] = waiting.maker, waiting.leaves, waiting.returns
    rows["block"] = np.arange(rows.size)
    return rows


def _operations(placed: Placed) -> Iterator[tuple[int, ...]]:
    """All operations in running order. A transfer moves a piece for each tile of the kernel that it is for."""
    results = {each.maker: each for each in placed.placements if each.role is RangeRole.RESULT}
    by_kernel: dict[int, list[DmaTransfer]] = {}
    for transfer in placed.transfers:
        by_kernel.setdefault(transfer.at, []).append(transfer)
    for kernel, tiles in enumerate(placed.tiles):
        moved = by_kernel.get(kernel, ())
        yield from _pieces(kernel, tiles, (each for each in moved if each.move in _BEFORE))
        result = results.get(kernel)
        for tile in range(tiles):
            offset, nbytes = (0, 0) if result is None else _share(result.nbytes, tile, tiles)
            yield kernel, tile, _TILE, kernel, (0 if result is None else result.offset) + offset, nbytes
        yield from _pieces(kernel, tiles, (each for each in moved if each.move in _AFTER))


def _pieces(kernel: int, tiles: int, moved: Iterator[DmaTransfer]) -> Iterator[tuple[int, ...]]:
    for each in moved:
        for tile in range(tiles):
            yield kernel, tile, _MOVES[each.move], each.maker, 0, _share(each.nbytes, tile, tiles)[1]


def _share(nbytes: int, tile: int, tiles: int) -> tuple[int, int]:
    """Where a tile's part of ``nbytes`` bytes begins, and how many bytes it has."""
    begin = nbytes * tile // tiles
    return begin, nbytes * (tile + 1) // tiles - begin


def read_chip_program(stored: memoryview) -> ChipProgram:
    """The chip's program. Raises BadBinary if it contradicts itself."""
    try:
        words = _DECODER.decode(stored)
    except (msgspec.DecodeError, ValueError, RecursionError) as error:
        raise BadBinary(f"the chip's program cannot be read: {error}") from error
    count = len(words.kernels)
    operations, ranges = _rows(words.operations, _OPERATION), _rows(words.ranges, _RANGE)
    tiles, transfers = _parted(operations, count)
    if len(words.free_after) != count or any(
        kernel >= count for kernel in (*words.free_after, *words.handed_over)
    ):
        raise BadBinary(f"the chip's program has {count} kernels and names others")
    waiting = _rows(words.waiting, _WAITING)
    if waiting.size and max(int(waiting[key].max()) for key in ("maker", "leaves", "returns")) >= count:
        raise BadBinary(f"a block of the chip's program waits for a kernel beyond {count}")
    return ChipProgram(
        words.soc,
        tuple(map(tuple, words.kernels)),
        Placed(
            vtcm_bytes=words.vtcm_bytes,
            tiles=tiles,
            placements=_placements(ranges, count, words.vtcm_bytes),
            transfers=transfers,
            free_after=tuple(words.free_after),
            handed_over=frozenset(words.handed_over),
        ),
        int(waiting.size),
    )


def _rows(stored: bytes, kind: np.dtype[Any]) -> Rows:
    if len(stored) % kind.itemsize:
        raise BadBinary(f"a table of the chip's program has {len(stored)} bytes; its rows have {kind.itemsize}")
    return np.frombuffer(stored, kind)


def _parted(operations: Rows, count: int) -> tuple[tuple[int, ...], tuple[DmaTransfer, ...]]:
    """Tiles of each kernel, and whole transfers: a new one begins with its first piece."""
    if operations.size and max(int(operations[key].max()) for key in ("kernel", "maker")) >= count:
        raise BadBinary(f"an operation of the chip's program is of a kernel beyond {count}")
    if operations.size and int(operations["what"].max()) > len(_MOVES):
        raise BadBinary("an operation of the chip's program is unknown here")
    moves: Mapping[int, Move] = {number: move for move, number in _MOVES.items()}
    tiles = np.bincount(operations["kernel"][operations["what"] == _TILE], minlength=count)
    if len(tiles) != count or (count and not 0 < tiles.min() <= tiles.max() <= _MOST_TILES):
        raise BadBinary("a kernel of the chip's program has no tiles, or too many")
    moved = operations[operations["what"] != _TILE]
    begins = np.flatnonzero(moved["tile"] == 0)
    if moved.size and (not begins.size or begins[0]):
        raise BadBinary("a transfer of the chip's program has no beginning")
    sums: list[int] = np.add.reduceat(moved["nbytes"].astype(np.int64), begins).tolist() if moved.size else []
    transfers = tuple(
        DmaTransfer(int(row["kernel"]), int(row["maker"]), moves[int(row["what"])], nbytes)
        for row, nbytes in zip(moved[begins], sums, strict=True)
    )
    if any(each.nbytes < 0 for each in transfers):
        raise BadBinary("a transfer of the chip's program has too many bytes")
    return tuple(int(number) for number in tiles), transfers


def _placements(ranges: Rows, count: int, vtcm_bytes: int) -> tuple[Placement, ...]:
    roles = list(RangeRole)
    placements = []
    for row in ranges.tolist():
        maker, role, offset, nbytes, first, last = row
        if role >= len(roles) or not first <= last < count or maker >= count or offset + nbytes > vtcm_bytes:
            raise BadBinary(f"a range of the chip's program is not in its {vtcm_bytes} bytes of VTCM")
        placements.append(Placement(maker, roles[role], offset, nbytes, first, last))
    return tuple(placements)
