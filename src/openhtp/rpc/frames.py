"""The frames of the hot path: one packed struct to ask for an execution, one to report its end.

::

    EXECUTE   head | binding * count | dims * count (only with FLAG_DIMS)
    CANCEL    head with only ``job`` set, and FLAG_ANSWER to be told if there is no such job
    DONE      count, then that many fixed records
    FAILED    one record and a text that says why
    PROFILE   job and an encoded profile; sent before the record of the same job

What follows the EXECUTE head says which memory each tensor uses. The device takes those bytes, as they are, for
the key under which it keeps a finished binding, so repeated executions cost one dictionary look-up.
"""

from __future__ import annotations

import struct
from typing import NamedTuple

EXECUTE = 1
CANCEL = 2
DONE = 3
FAILED = 4
PROFILE = 5

FLAG_DIMS = 1
FLAG_ANSWER = 2
# Whoever sent the execution waits for its end.
FLAG_WAITED = 4

# kind, flags, bindings, graph, batch multiple, profile level, job, absolute timeout and deadline in ns (0: none)
EXECUTE_HEAD = struct.Struct("<BBHIIIQQQ")
# place in the program's inputs-then-outputs list, memory id, offset in the memory
BINDING = struct.Struct("<IIQ")
# rank and sizes of one tensor in this execution
DIMS = struct.Struct("<I8I")
MAX_BINDINGS = 1024
# instead of bindings, for apps: how long it runs, and how long it takes to stop when asked (ns)
APP_RUN = struct.Struct("<QQ")

# kind, unused, count
BATCH_HEAD = struct.Struct("<BBH")
# the fields of Record, in order
RECORD = struct.Struct("<QIIQQQQQQ")
MAX_RECORDS = 64
PROFILE_HEAD = struct.Struct("<BBHQ")


class Record(NamedTuple):
    """The end of one execution, as the device saw it. Points in time are of CLOCK_MONOTONIC."""

    job: int
    status: int
    yields: int
    received_ns: int
    started_ns: int
    finished_ns: int
    # Sums over all yields: from being asked to having released, waiting, from being granted to going on.
    release_ns: int
    paused_ns: int
    restore_ns: int


class Binding(NamedTuple):
    """Where the data of one tensor is; ``port`` counts the program's inputs, then its outputs."""

    port: int
    memory: int
    offset: int


def pack_bindings(bindings: list[Binding], dims: list[tuple[int, ...]] | None = None) -> bytes:
    """The part of an EXECUTE frame that is the same for every execution on the same memory."""
    packed = b"".join(BINDING.pack(*binding) for binding in bindings)
    if dims is not None:
        packed += b"".join(DIMS.pack(len(shape), *shape, *(0,) * (8 - len(shape))) for shape in dims)
    return packed


def unpack_bindings(
    key: bytes, count: int, *, with_dims: bool
) -> tuple[list[Binding], list[tuple[int, ...]] | None]:
    """Inverse of pack_bindings. Raises ValueError unless the length is exactly right."""
    expected = count * (BINDING.size + (DIMS.size if with_dims else 0))
    if count > MAX_BINDINGS or len(key) != expected:
        raise ValueError(f"{len(key)} bytes of bindings for {count} tensors; expected {expected}")
    bindings = [Binding(*BINDING.unpack_from(key, index * BINDING.size)) for index in range(count)]
    if not with_dims:
        return bindings, None
    dims = []
    for index in range(count):
        rank, *sizes = DIMS.unpack_from(key, count * BINDING.size + index * DIMS.size)
        if rank > len(sizes):
            raise ValueError(f"rank {rank} of binding {index}; expected at most {len(sizes)}")
        dims.append(tuple(sizes[:rank]))
    return bindings, dims
