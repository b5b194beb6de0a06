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
# The sender of the execution waits for its end.
FLAG_WAITED = 4
# The sender has many executions under way and waits for none in particular: their ends may share packets.
FLAG_MANY = 8

# the fields of ExecuteHead, in order
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


class ExecuteHead(NamedTuple):
    """How an EXECUTE or CANCEL frame begins. Timeout and deadline are points in time, in ns; 0 for none."""

    kind: int
    flags: int = 0
    bindings: int = 0
    graph: int = 0
    batch: int = 0
    profile_level: int = 0
    job: int = 0
    timeout_at: int = 0
    deadline_at: int = 0


def read_head(frame: bytes | memoryview) -> ExecuteHead:
    """The head of an EXECUTE or CANCEL frame, which must be long enough to have one."""
    return ExecuteHead._make(EXECUTE_HEAD.unpack_from(frame))


def cancel_frame(job: int, flags: int = 0) -> bytes:
    """A CANCEL frame."""
    return EXECUTE_HEAD.pack(*ExecuteHead(CANCEL, flags, job=job))


class Record(NamedTuple):
    """The end of one execution, as the device saw it. Points in time are of CLOCK_MONOTONIC."""

    job: int
    status: int
    yields: int = 0
    received_ns: int = 0
    started_ns: int = 0
    finished_ns: int = 0
    # Sums over all yields: from being asked to having released, waiting, from being granted to going on.
    release_ns: int = 0
    paused_ns: int = 0
    restore_ns: int = 0

    @classmethod
    def of_moment(cls, job: int, status: int, now_ns: int) -> Record:
        """The end of an execution that never ran: it came, began and ended now."""
        return cls(job, status, received_ns=now_ns, started_ns=now_ns, finished_ns=now_ns)


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
