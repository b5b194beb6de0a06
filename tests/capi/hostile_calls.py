"""Calls every function of our libraries with hostile arguments, until a count is reached. Run as a program.

``python hostile_calls.py FOLDER COUNT SEED``: prints the number of calls. That the process is still there at the
end is what is tested, and that good calls work between bad ones.
"""

from __future__ import annotations

import ctypes
import logging
import mmap
import random
import sys
from pathlib import Path
from typing import Any

from openhtp.abi.structs import struct
from openhtp.abi.tables import CORE, SYSTEM, TableEntry
from openhtp.core.dtype import DType
from openhtp.core.opcall import OpCall
from openhtp.core.quant import ScaleOffset
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.vendor.backend import LibraryBackend
from openhtp.vendor.context import LibraryContext
from openhtp.vendor.forms import params_of
from openhtp.vendor.graph import LibraryGraph
from openhtp.vendor.library import load
from openhtp.vendor.metadata import SystemLibrary

SHAPE = (1, 2, 2, 4)
QUANT = ScaleOffset(0.1, -128)


def spec(name: str, kind: TensorKind) -> TensorSpec:
    return TensorSpec(name, SHAPE, DType.UFIXED_POINT_8, QUANT, kind)


A, O = spec("a", TensorKind.APP_WRITE), spec("o", TensorKind.APP_READ)  # noqa: E741
RELU = OpCall("Relu", "relu", (A,), (O,))


class Attack:
    """Good objects, and a store of arguments that are mostly bad."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.random = random.Random(seed)
        self.library = load(folder / "libQnnHtp.so")
        self.system = SystemLibrary(folder / "libQnnSystem.so")
        self.calls = 0
        # Pages that cannot be read, that cannot be written, and that a client may use.
        self.none, self.read_only = page(0), page(mmap.PROT_READ)
        self.plain = (ctypes.c_uint8 * 65536)()
        self.functions = {**self.library._functions, **self.system._functions}
        self.renew()

    def renew(self) -> None:
        """Good objects again: some were freed meanwhile, as they should be."""
        self.backend = LibraryBackend(self.library)
        self.device = self.backend.create_device(soc="SM8650")
        self.context = LibraryContext.create(self.device)
        self.graph: LibraryGraph = self.context.create_graph("g")
        self.unfinished = self.context.create_graph("h")
        for one in (A, O):
            self.graph.add_tensor(one)
        self.graph.add_node(RELU, params_of(RELU))
        self.graph.finalize()
        self.handles = [
            self.backend.handle,
            self.device.handle,
            self.context.handle,
            self.graph.handle,
            self.unfinished.handle,
            self.backend.log,
            self.backend.create_profile().handle,
        ]

    def end(self) -> None:
        """Free what is left."""
        self.library.ask("contextFree", self.context.handle, None)
        self.library.ask("deviceFree", self.device.handle)
        self.library.ask("backendFree", self.backend.handle)
        self.library.ask("logFree", self.backend.log)

    def scribble(self) -> int:
        """An address with bytes that mean something here and there."""
        start = self.random.randrange(0, 60000) & ~7
        words = (ctypes.c_uint64 * 64).from_address(ctypes.addressof(self.plain) + start)
        for place in range(64):
            words[place] = self.random.choice(
                (0, 0, 1, 2, 4, 6, 7, 0x408, 0x132, 5 << 32, 1 << 32, (1 << 64) - 1, 0x7FFFFFFF, *self.handles)
                if self.random.random() < 0.7
                else (ctypes.addressof(self.plain) + self.random.randrange(65000), self.random.getrandbits(64))
            )
        return ctypes.addressof(words)

    def word(self) -> int:
        """One argument."""
        kind = self.random.randrange(10)
        if kind < 3:
            return self.random.choice(self.handles)
        if kind < 6:
            return self.scribble()
        return self.random.choice(
            (
                0,
                0,
                1,
                0x1000,
                0xDEADBEEF,
                (1 << 64) - 8,
                0x7FFF_FFFF_FFFF,
                self.none,
                self.read_only,
                self.read_only + 4095,
                self.random.getrandbits(64),
                self.random.getrandbits(47),
            )
        )

    def argument(self, word: str) -> Any:
        """An argument of a type."""
        if word == "ptr":
            return self.word()
        if word in ("u8", "u32", "u64"):
            bits = int(word[1:])
            few = self.random.choice((0, 1, 2, 3, 4, 5, 100, 404, 1501, 1404, (1 << bits) - 1))
            return few if self.random.random() < 0.8 else self.random.getrandbits(bits)
        made = struct(word)()
        source = self.scribble()
        ctypes.memmove(ctypes.addressof(made), source, min(ctypes.sizeof(made), 512))
        if self.random.random() < 0.5 and hasattr(made, "version"):
            made.version = 1
        return made

    def fitting(self, name: str) -> int:
        """A handle of the kind that the function takes first."""
        if name.startswith(("contextCreate", "contextValidate", "signalCreate", "profileCreate")):
            return self.backend.handle
        kinds = {
            "graph": self.random.choice((self.graph.handle, self.unfinished.handle)),
            "tensor": self.unfinished.handle,
            "context": self.context.handle,
            "mem": self.context.handle,
            "device": self.device.handle,
            "log": self.backend.log,
            "profile": self.handles[-1],
            "backend": self.backend.handle,
        }
        return next((handle for start, handle in kinds.items() if name.startswith(start)), self.word())

    def one(self, name: str, entry: TableEntry) -> None:
        """One call."""
        assert entry.arguments is not None
        given = [self.argument(word) for word in entry.arguments.split()]
        often = 0.02 if name.endswith("Free") else 0.8
        if entry.arguments.startswith("ptr") and self.random.random() < often:
            given[0] = self.fitting(name)
            if name.startswith("contextCreate") and self.random.random() < 0.8:
                given[1] = self.device.handle
        self.functions[name](*given)
        self.calls += 1

    def run(self, count: int) -> None:
        """Every function in turn, with what is good tried between."""
        entries = [(name, e) for name, e in {**CORE, **SYSTEM}.items() if e.arguments is not None]
        while self.calls < count:
            self.random.shuffle(entries)
            for name, entry in entries:
                self.one(name, entry)
            if self.random.random() < 0.1:
                self.end()
                self.renew()


def page(protection: int) -> int:
    """The address of a page of memory with this protection."""
    call = ctypes.CDLL(None).mmap
    call.restype, call.argtypes = (
        ctypes.c_void_p,
        [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long],
    )
    return int(call(None, 4096, protection, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0))


def main() -> None:
    folder, count, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    logging.getLogger("openhtp").setLevel(logging.CRITICAL)
    attack = Attack(folder, seed)
    attack.run(count)
    attack.end()
    attack.renew()
    attack.end()
    print(attack.calls)  # noqa: T201


if __name__ == "__main__":
    main()
