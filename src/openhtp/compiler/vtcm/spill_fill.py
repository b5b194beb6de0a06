"""The spill-fill buffer: results that wait in DDR because VTCM has no room for them.

The rules were learned from what the vendor's compiler says of its binaries. docs/compiler.md has them, with the
cases that they explain and those that they do not. The walk (``spill.py``) moves parts of results; that compiler
mostly moves whole ones.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from openhtp.compiler.passes.measure_buffers import element_bytes
from openhtp.compiler.sizes import KernelSize, sizes_of, usual_formats
from openhtp.core.opcall import MATRIX_KINDS, MOVES_NOTHING
from openhtp.core.precision import FloatPrecision
from openhtp.core.tensor import TensorSpec
from openhtp.core.units import MIB
from openhtp.program.chip_program import WaitingResult
from openhtp.program.htp_program import HtpProgram

_GRAIN = 64 * 1024
"""The buffer has whole pieces of this size."""
_RESERVED = 640 * 1024
"""Weights and strips under way of a picture take about this much, whatever the size of the VTCM."""
_RESERVED_FLAT = 512 * 1024
"""The same where a result is no picture but rows of a matrix."""
_LARGE_RESULT, _NEARLY_WHOLE = 0.8, 0.85
"""If a result with more than the former times the VTCM waits at all, the latter times of it do."""
_SIDE = 8
_CHANNELS = 32
_FEW_CHANNELS = 4
_TABLE = "gather"
_WINDOWED = frozenset({"conv", "dilated", "stem", "group", "conv3d", "depthwise", "pool"})
_MOVING = frozenset({"transpose", "permute", "image_layout", "move"})
_RESIZED = "resize"
_REPEATING = "ResizeNearestNeighbor"
_POOLED = "pool"
_STEM = "stem"
_PRODUCT = "matmul"
_ATTENDING = frozenset({_PRODUCT, "softmax", "affine", "add", "divide", "multiply"})
_STRIPS_UNDER_WINDOW = 4
"""Strips of an input while a window moves over it: that of the window, one on either side, and the next."""
_HALVING = 1.5
"""A picture is halved if it has so many times the strips of the result, which may be filled up."""
_STRIPS_UNDER_STEM = 4
_LEAST_PICTURE, _NEARLY_FULL, _OVERFULL = 0.62, 0.7, 1.5
"""Borders of the size of a picture in blocks, in times of the VTCM. A smaller one does not wait at all."""
_WAITS_PARTLY, _WAITS_MORE, _WAITS_MOST = 0.92, 1.2, 1.4
"""How many times a picture between those borders waits. A larger one waits once."""
_SEVERAL_TIMES = 2.5
"""Strips of a picture of up to so many times the VTCM find room in 4 and 8 MB."""
_STRIPS_SHARE = 0.285
"""With 4 MB, so much of such a picture and of its result waits."""
_STEM_OVERHEAD = 300 * 1024
_MORE_FOR_STEM = 256 * 1024
"""With 1 MB, a large window takes this much more, and so does a result that is larger than the picture."""
_LEAST_STEM_BYTES = 2
_LARGE_WINDOW = 5
_UNROLLED = 6
"""A large window makes so many times the picture in blocks, if it is unrolled before the product."""
_SMALLEST_VTCM = MIB
_TOO_MANY_STRIPS = 1.2
_FAR_TOO_LARGE = 4
_MANY_WEIGHTS = 24 * MIB
_STRIPS_HELD = 2
_WEIGHTS_SHARE = 0.75
"""Weights of a kernel and of the next one take up to this much of the VTCM while they are fetched."""
_DENSE = frozenset({"fully_connected", "matmul"})
"""Products of matrices, whose weights take up to all of it."""
_MOST_WEIGHTS = 2 * MIB
"""Weights take no more than this, however large the VTCM is."""
_HEAVY_SHARE = 0.25
"""A product whose weights take more of the VTCM goes over its whole input piece by piece of the weights."""
_ROWS = 32
_PICTURE_RANK = 4
_HEADS_SHARE = 0.5
"""Heads of attention that take more of the VTCM together are handed on one by one."""
_SHALLOW = 0.5
"""Kernels may run strip by strip if their results are larger than so many times the VTCM."""
_LEAST_ROWS = 8
_WAITING_STRIPS = 4 * MIB
"""Kernels run strip by strip even if so much of their strips waits in DDR."""
_LARGE_VTCM = 4 * MIB
_WHOLE_IF_LARGE = 8 * MIB
"""But if a result is that large and the VTCM is not, nothing may wait."""
_SUMS = frozenset({"add", "multiply"})
_SPACE = "conv3d"
_SPACE_TWICE, _SPACE_WHOLE, _SPACE_PART = 12, 5.5, 2
"""How many times the VTCM planes in blocks are, if they wait nearly twice, once, and in part."""
_NEARLY_TWICE = 1.75


def spill_fill_bytes(program: HtpProgram, sizes: Sequence[KernelSize] | None = None) -> int:
    """The buffer in DDR that a graph needs with its share of the VTCM. ``sizes`` are its kernels', if known."""
    return spill_fill_of(program, sizes).nbytes


@dataclass(frozen=True, slots=True)
class SpillFill:
    """The size of the buffer, and all results that wait in it at some time."""

    nbytes: int
    waiting: tuple[WaitingResult, ...]


def spill_fill_of(program: HtpProgram, sizes: Sequence[KernelSize] | None = None) -> SpillFill:
    """The buffer of a program with its share of the VTCM, and what waits there."""
    vtcm_bytes = min(program.soc.vtcm_bytes, program.options.vtcm_bytes or program.soc.vtcm_bytes)
    half = program.options.precision is FloatPrecision.FLOAT16
    sizes = sizes or sizes_of(program)
    forms = usual_formats(sizes)
    weights = sum(size.weights * form.weight_bytes for size, form in zip(sizes, forms, strict=True))
    resized = _resized_to_be_moved(sizes)
    results: list[StripedResult] = []
    for number, (kernel, size) in enumerate(zip(program.kernels, sizes, strict=True)):
        specs = [program.tensors[name] for name in kernel.outputs]
        # Tensors that the client will read are in DDR anyway.
        windowed = size.kind in _WINDOWED
        nbytes = sum(block_bytes(spec, half=half, windowed=windowed) for spec in specs if not spec.kind.is_output)
        strips = strips_in(size, specs[0].shape, moved=number in resized)
        picture = (
            _picture_strips(program.tensors[kernel.inputs[0]], specs[0], half=half) if size.kind == _STEM else 0
        )
        window = math.isqrt(size.taps) if picture else 0
        # Rows of it are read in strips, even where there would be more strips of columns.
        strips = -(-specs[0].shape[1] // _SIDE) if picture else strips
        results.append(
            StripedResult(
                size.kind,
                size.reads,
                nbytes,
                strips,
                picture,
                window,
                matrices=_matrices_in(size, specs[0].shape, nbytes, results),
                weights=0 if size.kind == _TABLE else size.weights * forms[number].weight_bytes,
                overlapping=_reads_rows_again(size),
                rows=_strips_of_rows(specs[0].shape),
                planes=_planes(program.tensors[kernel.inputs[0]], half=half) if size.kind == _SPACE else 0,
            )
        )
    return spilled_results(results, vtcm_bytes, weights_bytes=weights)


def block_bytes(spec: TensorSpec, *, half: bool, windowed: bool = False) -> int:
    """Bytes of a tensor in VTCM: whole blocks of pixels and channels, unless it has hardly any channels.

    One that is a pixel high or wide is laid out as rows of a matrix; but a row of pixels over which a window moved
    is a picture.
    """
    size = element_bytes(spec, half=half)
    *front, high, wide, deep = (1,) * (3 - len(spec.shape)) + spec.shape
    if deep <= _FEW_CHANNELS:
        return spec.elements * size
    flat, batch = wide == 1 or (high == 1 and not windowed), math.prod(front)
    columns = _up(wide, max(1, _SIDE // size))
    pixels = batch * _up(high * wide, _SIDE) if flat else _up(batch * high, _SIDE) * columns
    return pixels * _up(deep, _CHANNELS) * size


def _picture_strips(picture: TensorSpec, result: TensorSpec, *, half: bool) -> int:
    """Bytes of the strips of a picture that the first convolution reads, if that halves it; 0 otherwise.

    The picture lies in blocks of 32 channels, into which every second pixel of a row and of a column is put.
    """
    size = element_bytes(picture, half=half)
    if len(result.shape) != _PICTURE_RANK or result.shape[2] <= _SIDE or picture.shape[1] < 2 * result.shape[1]:
        return 0
    # Eight-bit networks do not leave their pictures in DDR.
    if size < _LEAST_STEM_BYTES:
        return 0
    return _STRIPS_UNDER_STEM * _SIDE * _up(result.shape[2], max(1, _SIDE // size)) * _CHANNELS * size


def _matrices_in(size: KernelSize, shape: tuple[int, ...], nbytes: int, made: Sequence[StripedResult]) -> int:
    """The heads of attention in a result: in products of computed matrices, and in whatever keeps their size."""
    if len(shape) != _PICTURE_RANK:
        return 1
    if size.kind == _PRODUCT:
        return shape[1]
    kept = [made[maker].matrices for maker in size.reads if made[maker].nbytes == nbytes]
    return shape[1] if shape[1] in kept else 1


def _planes(space: TensorSpec, *, half: bool) -> int:
    """Bytes of planes that a convolution in three dimensions unrolls: their few channels fill whole blocks."""
    *pixels, channels = space.shape
    return math.prod(pixels) * _CHANNELS * element_bytes(space, half=half) if channels <= _FEW_CHANNELS else 0


def _reads_rows_again(size: KernelSize) -> bool:
    """Whether windows overlap, so that rows of the input are needed for more than one strip."""
    return size.taps * size.written > size.read if size.kind == _POOLED else size.taps > 1


def _strips_of_rows(shape: tuple[int, ...]) -> int:
    """Strips of eight rows of pixels in a picture; what is no picture counts as one."""
    return -(-shape[1] // _SIDE) if len(shape) == _PICTURE_RANK else 1


def _resized_to_be_moved(sizes: Sequence[KernelSize]) -> set[int]:
    """Pictures that are resized, and then only moved: to where the client reads them, for instance."""
    resized = {number for number, size in enumerate(sizes) if size.kind == _RESIZED}
    for size in sizes:
        if size.kind not in _MOVING:
            resized -= set(size.reads)
    return resized


def strips_in(size: KernelSize, shape: tuple[int, ...], *, moved: bool = False) -> int:
    """Pieces of a result. Pictures are cut even by ops without a cut, and what only moves data as its result is.

    A picture that is interpolated is whole unless it is ``moved`` at once.
    """
    interpolated = size.kind == _RESIZED and size.op != _REPEATING and not moved
    if size.strips > 1 or len(shape) < 2 or interpolated:
        return size.strips
    if size.kind not in _MOVING:
        return _strips_of_rows(shape)
    rows = -(-shape[-2] // _ROWS)
    return rows if len(shape) == 2 else max(rows, -(-shape[-3] // _SIDE))


@dataclass(frozen=True, slots=True)
class StripedResult:
    """What a kernel makes: its kind, the kernels whose results it reads, bytes in blocks, and strips.

    ``picture`` has the bytes of strips of a picture that it halves, if it is the first convolution, and ``window``
    the side of that convolution's window. ``matrices`` counts the heads of attention. ``weights`` are bytes of
    constants. What reads no row twice is not ``overlapping``: a window of one pixel, or a pooling whose window
    moves by its own size. ``rows`` counts the strips of eight rows in a picture. ``planes`` has the bytes that a
    convolution in three dimensions unrolls.
    """

    kind: str
    reads: tuple[int, ...]
    nbytes: int
    strips: int
    picture: int = 0
    window: int = 0
    matrices: int = 1
    weights: int = 0
    overlapping: bool = True
    rows: int = 1
    planes: int = 0

    @property
    def exists(self) -> bool:
        """Whether there is work at all: a mere change of shape is none."""
        return self.kind != MOVES_NOTHING


def buffer_bytes(results: Sequence[StripedResult], vtcm_bytes: int, *, weights_bytes: int = 0) -> int:
    """The most that waits while any kernel runs."""
    return spilled_results(results, vtcm_bytes, weights_bytes=weights_bytes).nbytes


def spilled_results(results: Sequence[StripedResult], vtcm_bytes: int, *, weights_bytes: int = 0) -> SpillFill:
    """What waits while kernels run, and the most that waits at once."""
    first, most = _first_convolution(results, vtcm_bytes, weights_bytes)
    waiting: dict[int, WaitingResult] = {}
    if most:
        readers_of_first = _readers(results)[first]
        waiting[first] = WaitingResult(first, most, first, readers_of_first[-1] if readers_of_first else first)
        results = [
            replace(result, picture=0) if number == first else result for number, result in enumerate(results)
        ]
    passed_on = strips_under_way(results, vtcm_bytes)
    waits = _walk(results, vtcm_bytes, passed_on, first)
    runs = striped_runs(results, vtcm_bytes) if any(waits.values()) else []
    if runs:
        everywhere = {number: strip for run in runs for number, strip in run.strips.items()}
        striped = _walk(results, vtcm_bytes, passed_on | everywhere, first)
        for run in runs:
            if run.most_in(striped) < run.most_in(waits):
                passed_on |= run.strips
        waits = _walk(results, vtcm_bytes, passed_on, first)
    readers = _readers(results)
    for number, gone in waits.items():
        most = max(most, sum(gone.values()))
        for maker, nbytes in gone.items():
            waiting.setdefault(maker, WaitingResult(maker, nbytes, number, max([number, *readers[maker]])))
    return SpillFill(_up(most, _GRAIN), tuple(waiting[maker] for maker in sorted(waiting)))


Waits = dict[int, dict[int, int]]
"""By kernel, bytes that wait in DDR while it runs, by the kernel that made them."""


def _walk(
    results: Sequence[StripedResult], vtcm_bytes: int, passed_on: Mapping[int, PassedOn], first: int
) -> Waits:
    readers = _readers(results)
    last = [each[-1] if each else -1 for each in readers]
    needed = [
        passed_on[number].own if number in passed_on else result.nbytes if readers[number] else 0
        for number, result in enumerate(results)
    ]
    alive = set[int]()
    waits: Waits = {}
    for number, result in enumerate(results):
        if not result.exists:
            continue
        staying = {maker: needed[maker] for maker in alive if last[maker] > number}
        given_up = sum(needed[maker] for maker in result.reads if last[maker] == number)
        # An input is given up strip by strip while the result grows, so that the larger of both counts.
        in_strips = result.strips > 1 and not _is_heavy(result, vtcm_bytes)
        working = max(given_up, needed[number]) if in_strips else given_up + needed[number]
        if number in passed_on:
            working = max(working, passed_on[number].group)
            # The strips of a group are counted with it, also those that are added at its end.
            staying = {maker: nbytes for maker, nbytes in staying.items() if maker not in passed_on}
        if result.kind != _TABLE and number != first:
            under_way = _under_way(results, number, vtcm_bytes)
            excess = sum(staying.values()) + working + result.picture // 2 + under_way - vtcm_bytes
            gone = _spilled(staying, excess)
            if excess > sum(gone.values()):
                gone[number] = excess - sum(gone.values())
                if number not in passed_on and _waits_whole(result, vtcm_bytes):
                    gone[number] = max(gone[number], int(_NEARLY_WHOLE * result.nbytes))
            waits[number] = gone
        alive = {maker for maker in alive if last[maker] > number}
        if last[number] > number:
            alive.add(number)
    return waits


def _waits_whole(result: StripedResult, vtcm_bytes: int) -> bool:
    """Whether nearly all of a result waits if any of it does. Those of resizings and first convolutions do not."""
    large = result.rows > 1 and result.nbytes >= _LARGE_RESULT * vtcm_bytes
    return large and not result.picture and result.kind != _RESIZED


def _is_heavy(result: StripedResult, vtcm_bytes: int) -> bool:
    """Whether the weights are too many to stay while strips pass, so that they pass instead."""
    return result.kind in MATRIX_KINDS and result.weights > _HEAVY_SHARE * vtcm_bytes


def _under_way(results: Sequence[StripedResult], number: int, vtcm_bytes: int) -> int:
    """Bytes of weights in VTCM while a kernel runs: its own and the next kernel's, and strips in any case."""
    weights = sum(each.weights for each in results[number : number + 2])
    share = 1 if results[number].kind in _DENSE else _WEIGHTS_SHARE
    reserved = _RESERVED if results[number].rows > 1 else _RESERVED_FLAT
    return max(reserved, min(weights, int(share * vtcm_bytes), _MOST_WEIGHTS))


def _first_convolution(results: Sequence[StripedResult], vtcm_bytes: int, weights_bytes: int) -> tuple[int, int]:
    """The first convolution of a large picture, and what waits then; (-1, 0) if it is like any other kernel."""
    for number, result in enumerate(results):
        if unrolled := _unrolled_planes(result.planes, vtcm_bytes):
            return number, unrolled
        if not result.picture:
            continue
        picture = result.picture // _STRIPS_UNDER_STEM * result.strips
        if vtcm_bytes <= _SMALLEST_VTCM and (waits := _made_whole(picture, result, vtcm_bytes, weights_bytes)):
            return number, waits
        if waits := _picture_waits(picture, result, vtcm_bytes):
            return number, waits
    return -1, 0


def _made_whole(picture: int, result: StripedResult, vtcm_bytes: int, weights_bytes: int) -> int:
    """What waits if there is no room for strips of a picture and of what is made of it; 0 if there is."""
    strip = result.nbytes // result.strips
    strips = result.picture + _STRIPS_UNDER_WINDOW * strip
    if result.window >= _LARGE_WINDOW:
        # Strips of the unrolled window, too, if there is much else to be fetched.
        many = weights_bytes > _MANY_WEIGHTS and strips + _UNROLLED * strip > vtcm_bytes
        if many or picture >= _FAR_TOO_LARGE * vtcm_bytes or strips > _TOO_MANY_STRIPS * vtcm_bytes:
            return (1 + _UNROLLED) * picture + result.nbytes
    elif strips > _TOO_MANY_STRIPS * vtcm_bytes:
        return picture + 2 * result.nbytes - vtcm_bytes - MIB
    return 0


def _picture_waits(picture: int, result: StripedResult, vtcm_bytes: int) -> int:
    """What waits while the first convolution halves a picture that lies in VTCM in blocks."""
    large_window, larger = result.window >= _LARGE_WINDOW, result.nbytes > picture
    if vtcm_bytes <= _SMALLEST_VTCM:
        more = _MORE_FOR_STEM * (large_window + larger)
        return min(picture + more, max(0, picture + result.nbytes + _STEM_OVERHEAD + more - vtcm_bytes))
    if picture <= _LEAST_PICTURE * vtcm_bytes:
        return 0
    if picture < vtcm_bytes:
        return int(picture * (_WAITS_MORE if picture > _NEARLY_FULL * vtcm_bytes else _WAITS_PARTLY))
    if vtcm_bytes <= 2 * MIB:
        if large_window and picture > 2 * vtcm_bytes:
            return 2 * picture + result.nbytes
        return max(result.nbytes, int(picture * (_WAITS_MOST if picture < _OVERFULL * vtcm_bytes else 1)))
    if picture <= _SEVERAL_TIMES * vtcm_bytes:
        return int(_STRIPS_SHARE * (picture + result.nbytes)) if vtcm_bytes <= _LARGE_VTCM else 0
    return result.nbytes


def _unrolled_planes(planes: int, vtcm_bytes: int) -> int:
    """What waits while planes of few channels are unrolled."""
    if planes > _SPACE_TWICE * vtcm_bytes:
        return int(_NEARLY_TWICE * planes)
    if planes > _SPACE_WHOLE * vtcm_bytes:
        return planes
    return (planes - vtcm_bytes) // 2 if planes > _SPACE_PART * vtcm_bytes else 0


def _readers(results: Sequence[StripedResult]) -> list[list[int]]:
    readers: list[list[int]] = [[] for _ in results]
    for number, result in enumerate(results):
        if result.exists:
            for maker in result.reads:
                readers[maker].append(number)
    return readers


@dataclass(frozen=True, slots=True)
class PassedOn:
    """Bytes of strips that are in VTCM at once: those of one result, and those of its depth-first group so far."""

    own: int
    group: int


def strips_under_way(results: Sequence[StripedResult], vtcm_bytes: int) -> dict[int, PassedOn]:
    """Of results larger than VTCM, those that never exist as a whole, because the next kernel takes strips.

    Kernels that follow each other in this way run together, strip by strip, so the strips of all of them are there
    at once. A result for whose strips no room is left is made as a whole, and a new group begins after it.
    """
    readers = _readers(results)
    passed_on: dict[int, PassedOn] = {}
    group = 0
    for number, result in enumerate(results):
        if not result.exists or not readers[number]:
            continue
        share = _HEADS_SHARE if result.matrices > 1 else 1
        # Many weights pass over the whole input, piece by piece, so that it cannot come in strips.
        pressed = result.matrices == 1 and _is_heavy(results[readers[number][0]], vtcm_bytes)
        whole = pressed or result.nbytes <= share * vtcm_bytes
        own = 0 if whole else _strips_held(number, results, readers[number])
        # A matrix of attention is given up while the next one is made of it.
        grown = max(group, own) if result.matrices > 1 else group + own
        if own and grown + _RESERVED <= vtcm_bytes:
            group = grown
            passed_on[number] = PassedOn(own, group)
        else:
            group = 0
    return passed_on


def _strips_held(number: int, results: Sequence[StripedResult], readers: Sequence[int]) -> int:
    """Bytes of the strips that the only and next reader of a result needs; 0 if it cannot take strips."""
    result, reader = results[number], readers[0]
    if result.matrices > 1 and len(readers) == 1 and results[reader].kind in _ATTENDING:
        return result.nbytes // result.matrices
    follows = not any(each.exists for each in results[number + 1 : reader])
    if len(readers) > 1 or not follows or result.strips == 1 or results[reader].strips == 1:
        return 0
    return _strips_under(results[reader]) * result.nbytes // result.strips


@dataclass(frozen=True, slots=True)
class StripedRun:
    """Kernels that run together strip by strip, and may spill strips: what each needs, and the last of them."""

    strips: Mapping[int, PassedOn]
    last: int

    def most_in(self, waits: Waits) -> int:
        """The most that waits while one of them runs."""
        numbers = range(min(self.strips), self.last + 1)
        return max((sum(waits[number].values()) for number in numbers if number in waits), default=0)


def striped_runs(results: Sequence[StripedResult], vtcm_bytes: int) -> list[StripedRun]:
    """Chains of kernels on high pictures, with blocks that add their input, that could run strip by strip."""
    readers = _readers(results)
    runs: list[StripedRun] = []
    number = 0
    while number < len(results):
        members, end = _members(number, results, readers, vtcm_bytes)
        number = max(number + 1, end)
        if members:
            run = _run_of(members, end, results, readers, vtcm_bytes)
            runs += [run] if run is not None else []
    return runs


def _members(
    start: int, results: Sequence[StripedResult], readers: Sequence[Sequence[int]], vtcm_bytes: int
) -> tuple[list[int], int]:
    """Results that would be passed on in strips from ``start`` on, and the kernel that takes the last ones."""
    if results[start].picture or results[start].nbytes <= _SHALLOW * vtcm_bytes:
        return [], start
    members: list[int] = []
    end, block_ends = start, start
    while (end < block_ends or results[end].nbytes > _SHALLOW * vtcm_bytes) and _in_strips(end, results, readers):
        members.append(end)
        block_ends = max(block_ends, readers[end][-1])
        end = readers[end][0]
    # A block is left out if its sum is not reached.
    while members and max(readers[member][-1] for member in members) > end:
        end = members.pop()
    return members, end


def _in_strips(number: int, results: Sequence[StripedResult], readers: Sequence[Sequence[int]]) -> bool:
    """Whether a high picture is read in strips: by the next kernel, and at most by the sum at a block's end."""
    result, each = results[number], readers[number]
    if result.rows < _LEAST_ROWS or result.strips == 1 or result.matrices > 1 or len(each) not in (1, 2):
        return False
    follows = not any(between.exists for between in results[number + 1 : each[0]])
    if not follows or any(results[reader].strips == 1 for reader in each):
        return False
    return len(each) == 1 or (results[each[1]].kind in _SUMS and _is_chain(each[0], each[1], results, readers))


def _is_chain(start: int, end: int, results: Sequence[StripedResult], readers: Sequence[Sequence[int]]) -> bool:
    """Whether all that lies between two kernels is read by the next kernel only, in strips."""
    chain = [number for number in range(start, end) if results[number].exists]
    return all(
        list(readers[number]) == [following] and results[number].strips > 1
        for number, following in zip(chain, [*chain[1:], end], strict=True)
    )


def _run_of(
    members: Sequence[int],
    end: int,
    results: Sequence[StripedResult],
    readers: Sequence[Sequence[int]],
    vtcm_bytes: int,
) -> StripedRun | None:
    own = {
        member: _strips_under(results[readers[member][0]], results[member].rows)
        * results[member].nbytes
        // results[member].rows
        for member in members
    }
    weights = sum(results[number].weights for number in (*members[1:], end))
    group = sum(own.values()) + weights
    waits = group + _RESERVED - vtcm_bytes
    largest = max(results[member].nbytes for member in members)
    if waits > _WAITING_STRIPS or (waits > 0 and largest >= _WHOLE_IF_LARGE and vtcm_bytes < _LARGE_VTCM):
        return None
    return StripedRun({member: PassedOn(own[member], group) for member in members}, end)


def _strips_under(reader: StripedResult, rows: int = 0) -> int:
    """How many strips of its input a kernel needs: twice as many if it halves a picture of ``rows`` strips."""
    if reader.kind not in _WINDOWED or not reader.overlapping:
        return _STRIPS_HELD
    return _STRIPS_UNDER_WINDOW * (2 if rows >= _HALVING * reader.rows else 1)


def _spilled(staying: Mapping[int, int], excess: int) -> dict[int, int]:
    """What leaves if ``excess`` bytes are too much: results that no kernel needs now, the largest first.

    A result leaves as a whole, or in pieces if it is large.
    """
    gone: dict[int, int] = {}
    for maker in sorted(staying, key=lambda maker: staying[maker], reverse=True):
        if excess <= 0:
            break
        gone[maker] = min(staying[maker], excess)
        excess -= gone[maker]
    return gone


def _up(number: int, block: int) -> int:
    return -(-number // block) * block
