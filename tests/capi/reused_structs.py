"""Executions whose structures a client writes once and changes in place, beside the same in new structures.

What a client keeps behind a pointer (dimensions, names, scales, flags) it may change without a trace in the
structure itself. The answer has to be that of a structure that was never seen before. Also a program:
``python -m tests.capi.reused_structs FOLDER COUNT SEED`` prints the number of executions that were compared.
"""

from __future__ import annotations

import ctypes
import dataclasses
import logging
import mmap
import os
import random
import sys
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from openhtp.abi.numbers import EncodingKind, MemoryKind
from openhtp.abi.structs import struct
from openhtp.core.dtype import DType
from openhtp.core.enumerations import MemType
from openhtp.core.opcall import OpCall
from openhtp.core.quant import ScaleOffset
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.vendor.backend import LibraryBackend
from openhtp.vendor.context import LibraryContext
from openhtp.vendor.forms import params_of
from openhtp.vendor.library import load

SHAPE = (1, 4, 4, 8)
BYTES = 128
MOST_BATCHES = 8
NAMES = ("a", "b", "o")
UNTOUCHED = 0xA5
_RANKS = 8
_CHANNELS = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorWords:
    """What a client says of one tensor, wherever in memory that stands."""

    id: int
    name: bytes = b"t"
    version: int = 1
    kind: int = 0
    data_type: int = int(DType.UFIXED_POINT_8)
    scales: tuple[float, ...] = (0.02,)
    rank: int = 4
    dims: tuple[int, ...] | None = SHAPE
    dynamic: tuple[int, ...] | None = None
    mem_type: int = int(MemoryKind.RAW)
    data: int = 0
    size: int = BYTES
    sparse_elements: int = 0


class TensorStructs:
    """Structures of some tensors with all that they point at, in memory that stays where it is."""

    def __init__(self, count: int) -> None:
        self.tensors = (struct("Tensor") * count)()
        self.dims = [(ctypes.c_uint32 * _RANKS)() for _ in range(count)]
        self._names = [ctypes.create_string_buffer(16) for _ in range(count)]
        self._flags = [(ctypes.c_uint8 * _RANKS)() for _ in range(count)]
        self._scales = [(struct("ScaleOffset") * _CHANNELS)() for _ in range(count)]

    def write(self, words: list[TensorWords]) -> None:
        """Say it all, in place."""
        for index, said in enumerate(words):
            tensor = self.tensors[index]
            self._names[index].value = said.name
            tensor.version, tensor.id, tensor.kind = said.version, said.id, said.kind
            tensor.name = ctypes.addressof(self._names[index])
            tensor.data_type, tensor.rank, tensor.mem_type = said.data_type, said.rank, said.mem_type
            tensor.dims = _filled(self.dims[index], said.dims)
            tensor.dynamic = _filled(self._flags[index], said.dynamic)
            tensor.buffer.data, tensor.buffer.size = said.data, said.size
            tensor.sparse.elements = said.sparse_elements
            self._write_scales(index, said.scales)

    def _write_scales(self, index: int, scales: tuple[float, ...]) -> None:
        quant = self.tensors[index].quant
        quant.definition = 1
        if len(scales) == 1:
            quant.encoding = EncodingKind.SCALE_OFFSET
            quant.of.scale_offset.scale, quant.of.scale_offset.offset = scales[0], -128
            return
        quant.encoding = EncodingKind.AXIS_SCALE_OFFSET
        quant.of.axis.axis, quant.of.axis.count = 3, len(scales)
        for pair, scale in zip(self._scales[index], scales, strict=False):
            pair.scale = scale
        quant.of.axis.scale_offsets = ctypes.addressof(self._scales[index])


def _filled(room: Any, numbers: tuple[int, ...] | None) -> int | None:
    if numbers is None:
        return None
    for place, number in enumerate(numbers):
        room[place] = number
    return ctypes.addressof(room)


class AddClient:
    """A context with one graph, ``o = a + b``, and buffers for it that hold up to eight batches."""

    def __init__(self, folder: Path) -> None:
        self.library = load(folder / "libQnnHtp.so")
        self._backend = LibraryBackend(self.library)
        self._device = self._backend.create_device(soc="SM8650")
        self.context = LibraryContext.create(self._device)
        self.graph = self.context.create_graph("g")
        kinds = (TensorKind.APP_WRITE, TensorKind.APP_WRITE, TensorKind.APP_READ)
        scales = (0.02, 0.02, 0.04)
        specs = [
            TensorSpec(name, SHAPE, DType.UFIXED_POINT_8, ScaleOffset(scale, -128), kind)
            for name, scale, kind in zip(NAMES, scales, kinds, strict=True)
        ]
        for spec in specs:
            self.graph.add_tensor(spec)
        add = OpCall("ElementWiseAdd", "add", (specs[0], specs[1]), (specs[2],))
        self.graph.add_node(add, params_of(add))
        self.graph.finalize()
        self.ids = [self.graph.ends[name].id for name in NAMES]
        source = np.random.default_rng(1)
        self.arrays = [source.integers(0, 256, MOST_BATCHES * BYTES, np.uint8) for _ in NAMES]
        self.shared = [_SharedMemory(self, array) for array in self.arrays]

    def words(self, batch: int = 1) -> list[TensorWords]:
        """What a well-behaved client says."""
        return [
            TensorWords(
                id=number,
                name=name.encode(),
                kind=int(name == "o"),
                dims=(batch, *SHAPE[1:]),
                data=array.ctypes.data,
                size=batch * BYTES,
            )
            for name, number, array in zip(NAMES, self.ids, self.arrays, strict=True)
        ]

    def execute(self, structs: TensorStructs) -> tuple[int, bytes]:
        """The code, and all that lies where results go."""
        places = (self.arrays[2], self.shared[2].array)
        for place in places:
            place[:] = UNTOUCHED
        size = ctypes.sizeof(struct("Tensor"))
        first = ctypes.addressof(structs.tensors)
        code = self.library.ask("graphExecute", self.graph.handle, first, 2, first + 2 * size, 1, None, None)
        return code, b"".join(place.tobytes() for place in places)

    def expected(self, batch: int) -> npt.NDArray[np.uint8]:
        """The sum, which the library may round otherwise by one."""
        a, b = (array[: batch * BYTES].astype(np.float64) - 128 for array in self.arrays[:2])
        return np.clip(np.rint((a + b) * 0.02 / 0.04) + 128, 0, 255).astype(np.uint8)

    def free(self) -> None:
        """Give everything back."""
        for shared in self.shared:
            shared.close()
        for owner in (self.context, self._device, self._backend):
            owner.free()


class _SharedMemory:
    """A buffer that the client registers, again and again."""

    def __init__(self, client: AddClient, content: npt.NDArray[np.uint8]) -> None:
        self._client = client
        self._descriptor = os.memfd_create("client", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        os.ftruncate(self._descriptor, content.nbytes)
        self.array = np.frombuffer(mmap.mmap(self._descriptor, content.nbytes), np.uint8)
        self.array[:] = content
        self.handle = 0

    def register(self, batch: int) -> None:
        """As the place of a tensor of so many batches; its earlier handle is given back."""
        self.close(keep=True)
        dims = (ctypes.c_uint32 * 4)(batch, *SHAPE[1:])
        said = struct("MemoryDescriptor")(
            num_dims=4, dims=ctypes.addressof(dims), data_type=int(DType.UFIXED_POINT_8), mem_type=MemType.ION
        )
        said.of.fd = self._descriptor
        handle = ctypes.c_uint64()
        places = ctypes.addressof(said), 1, ctypes.addressof(handle)
        self._client.library.call("memRegister", self._client.context.handle, *places)
        self.handle = handle.value

    def close(self, *, keep: bool = False) -> None:
        """Give the handle back, and the buffer unless it is kept."""
        if self.handle:
            handle = ctypes.c_uint64(self.handle)
            self._client.library.call("memDeRegister", ctypes.addressof(handle), 1)
            self.handle = 0
        if not keep:
            os.close(self._descriptor)


class StructFuzz:
    """Changes what a client says, a little at a time, and has it executed in old and in new structures."""

    def __init__(self, client: AddClient, seed: int) -> None:
        self.codes: Counter[int] = Counter()
        self._client = client
        self._random = random.Random(seed)
        self._words = client.words()
        self._reused = TensorStructs(3)
        # Kept, or else a new structure would lie where an earlier one did.
        self._new: list[TensorStructs] = []

    def run(self, count: int) -> None:
        """Compare so many executions; an AssertionError says what was said when they differed."""
        for _ in range(count):
            if self._random.random() < 0.15:
                self._words = self._client.words(self._random.choice((1, 1, 2, 3)))
            for _ in range(self._random.randrange(3)):
                self._change()
            self._reused.write(self._words)
            answer = self._client.execute(self._reused)
            fresh = TensorStructs(3)
            fresh.write(self._words)
            self._new.append(fresh)
            wanted = self._client.execute(fresh)
            assert answer == wanted, (
                f"a reused structure was answered with {answer[0]}, a new one with {wanted[0]}: {self._words}"
            )
            self.codes[answer[0]] += 1

    def _change(self) -> None:
        index, chosen = self._random.randrange(3), self._random
        said = self._words[index]
        batch = chosen.choice((1, 2, 2, 3, 7, MOST_BATCHES))
        every = chosen.random() < 0.5
        shape: tuple[int, ...] = (batch, *SHAPE[1:])
        if chosen.random() < 0.2:
            shape = tuple(chosen.choice((0, 1, 4, 5, 8, 0xFFFFFFFF)) for _ in SHAPE)
        kind = chosen.randrange(8)
        if kind == 0:  # dimensions, and all that belongs to them or nothing of it
            size = chosen.choice((batch * BYTES, said.size))
            for place in range(3) if every else (index,):
                self._words[place] = dataclasses.replace(self._words[place], dims=shape, size=size)
            return
        if kind == 1:
            self._register(index, batch)
            return
        changes: dict[str, Any] = [
            {"name": chosen.choice((b"a", b"b", b"o", b"other", b""))},
            {"scales": chosen.choice(((0.02,), (0.5,), (0.02,) * _CHANNELS, (0.3,) * _CHANNELS))},
            {"dynamic": chosen.choice((None, (0, 0, 0, 0), (1, 0, 0, 0), (1, 1, 1, 1))), "version": 2},
            {"dims": chosen.choice((None, shape)), "rank": chosen.choice((4, 4, 3, 0, 8))},
            {"size": chosen.choice((0, BYTES - 1, BYTES, 2 * BYTES, MOST_BATCHES * BYTES))},
            {"id": chosen.choice((*self._client.ids, 999)), "sparse_elements": chosen.randrange(3)},
        ][kind - 2]
        self._words[index] = dataclasses.replace(said, **changes)

    def _register(self, index: int, batch: int) -> None:
        """Another handle for the same memory, or the client's own memory again."""
        shared = self._client.shared[index]
        if self._words[index].mem_type == MemoryKind.HANDLE and self._random.random() < 0.5:
            array = self._client.arrays[index]
            changes = {"mem_type": int(MemoryKind.RAW), "data": array.ctypes.data}
        else:
            shared.register(batch)
            changes = {"mem_type": int(MemoryKind.HANDLE), "data": shared.handle}
        self._words[index] = dataclasses.replace(self._words[index], **changes)


def main() -> None:
    folder, count, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    logging.getLogger("openhtp").setLevel(logging.CRITICAL)
    client = AddClient(folder)
    fuzz = StructFuzz(client, seed)
    fuzz.run(count)
    client.free()
    print(sum(fuzz.codes.values()))  # noqa: T201


if __name__ == "__main__":
    main()
