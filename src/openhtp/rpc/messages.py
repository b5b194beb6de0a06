"""Control messages: everything but executions. One request, one reply, on a socket of its own.

Requests carry numbers and replies repeat them. Descriptors travel beside a message; the comment of each message
says which. A request that has a number but otherwise makes no sense is answered with an error. One without a
number is a ProtocolError, which ends its sender's connection and nothing else.
"""

from __future__ import annotations

import contextlib
import functools
import operator
from typing import Literal

import msgspec
from msgspec import Struct

from openhtp.core.errors import UsageError
from openhtp.hw.power import DcvsVote, HmxVote
from openhtp.rpc import channel
from openhtp.rpc.channel import ProtocolError
from openhtp.rpc.shm import SharedBuffer
from openhtp.sched.timed import Pace

PROTOCOL_VERSION = 10


class Request(Struct, kw_only=True, tag=True, forbid_unknown_fields=True, omit_defaults=True):
    """What any request has."""

    # Chosen by the client; 0 if it asks one thing at a time and takes answers in turn.
    number: int = 0


class _Numbered(Struct):
    """What can be read of a request that makes no sense otherwise."""

    number: int


class Hello(Request):
    """First message. Descriptor: the device's end of the data socket.

    Clients of one process that say ``shares_budget`` have their process domains in common, and one budget, if
    these are of one kind, as ``pd_session`` says.
    """

    version: int
    pid: int
    label: str = ""
    shares_budget: bool = False
    pd_session: Literal["unsigned", "signed"] = "unsigned"


class AddDuct(Request):
    """Open another data socket, on which one thread waits for its own executions. Descriptor: the socket."""


class Group(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """Contexts that share a spill-fill buffer: ``first`` is the one that began the group, None to begin one.

    Those of one ``list`` are together without any of them being the first, and their buffer grows with the largest
    need. ``concurrent``: they may run at the same time, if they have one priority.
    """

    first: int | None = None
    list: int | None = None
    nbytes: int = 0
    concurrent: bool = False


class CreateContext(Request):
    """Open a context in this session.

    ``stored``: its graphs come from a binary, so it may go to any process domain. ``io_room``: only where inputs
    and outputs of its graphs fit, too; ``keep_io_room``: that room is then kept for them.
    """

    queue_depth: int
    priority: int
    stored: bool = False
    io_room: bool = False
    keep_io_room: bool = False
    prepare_only: bool = False
    group: Group | None = None
    # Whether its graphs hold data of updateable tensors in turn, in one piece of memory.
    shares_updates: bool = False


class FreeContext(Request):
    """Free a context, its graphs and its memory; pending executions end as INVALID_CONTEXT."""

    context: int


class WantedGraph(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One graph to be made ready, by its place in the binary: names may be longer than a message."""

    place: int
    priority: int
    core: int = 0


class ExternalPiece(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Bytes ``begin`` to ``end`` of a binary that lie in a buffer of the client's, from ``offset`` on."""

    begin: int
    end: int
    offset: int


class LoadOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """How graphs of a binary are loaded.

    ``read_budget`` is how many bytes of it may be in memory at once, None for all. ``accelerated``: on all threads
    there are, several graphs at a time. With ``switching`` they are loaded when they run, at once only those
    ``retained`` (by place, the most important first), or the first. They then use the buffers in turn that are
    asked for: a number of bytes, -1 for what the largest needs, 0 for none.
    """

    read_budget: int | None = None
    accelerated: bool = False
    switching: bool = False
    retained: list[int] = []
    spill_fill_buffer: int = 0
    weights_buffer: int = 0


AT_ONCE = LoadOptions()
"""All of it, on one thread."""


class WantedPackage(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """An op package that graphs use, and where it is: ``module:attribute``, or ``/path/library.so:provider``.

    ``reference`` is empty if only the client's own process has it. ``folders`` are where the client finds modules.
    """

    name: str
    version: str
    reference: str = ""
    folders: list[str] = []


class LoadGraphs(Request):
    """Make graphs of one context ready to run, all or none. Descriptor: a context binary, in memory or as a file.

    Then one for each of ``external``, which is where the binary itself need not have anything.

    With ``opening`` the context, too, is made, or is not there if this fails; the reply's ``value`` is its number.

    ``nbytes`` is what these graphs take of it. The reply's ``graphs`` are in the order of ``graphs``.

    ``lent`` is the number under which a client in the device's own process has lent a graph. Such a request has no
    binary and no descriptor.
    """

    context: int
    nbytes: int
    graphs: list[WantedGraph]
    opening: CreateContext | None = None
    options: LoadOptions = AT_ONCE
    external: list[ExternalPiece] = []
    lent: int = 0
    packages: list[WantedPackage] = []


class PackGraph(Request):
    """Fetch a graph together with its prepared form, as a context binary. Reply descriptor: shared memory with it.

    Replies without a descriptor, and with value 0, where there is no use in a prepared form or no way to make one.
    """

    graph: int


class ExportBinary(Request):
    """Fetch the graphs of a context as the vendor's library saves them. Reply descriptor: shared memory with that.

    The device must compute with that library.
    """

    context: int
    weight_sharing: bool = False


class ImportBinary(Request):
    """Fetch a context binary of ours that holds one that the vendor's library saved. Descriptor: memory with that.

    Reply descriptor: shared memory with ours. Only a device that computes with that library can load it.
    """


class UpdateGraph(Request):
    """Exchange the data of a graph's updateable tensors. Descriptor: shared memory with a binary section.

    Executions that were sent before keep the old data. ``validate`` off leaves out the checksum.
    """

    graph: int
    nbytes: int
    validate: bool = True


class ReplaceProgram(Request):
    """Compile another program for a graph: the same, but for encodings and data of its updateable tensors.

    Descriptor: memory that nobody can write any more, with a context binary of that one graph, which may be read
    again later. Executions that were sent before keep the old program. The reply's ``graphs`` has the graph anew.
    """

    graph: int


class FreeGraphs(Request):
    """Free some graphs of a context, and what they were loaded with once nothing of it is left."""

    context: int
    graphs: list[int]


class Cancel(Request):
    """End the slow work that another request asked for, if it is still under way; that one is answered then."""

    request: int


class AddApp(Request):
    """Introduce a client that is no graph: it takes resources for a while, as a camera pipeline does."""

    context: int
    name: str
    priority: int
    hmx: int
    hvx: int
    vtcm_bytes: int
    page_bytes: int | None = None
    core: int = 0


class SetPace(Request):
    """Let executions of a graph or app take this long from now on, not what computing them takes. None: undo."""

    graph: int
    work: Pace | None


WEIGHTS_BUFFER, SPILL_FILL_BUFFER = "weights_buffer", "spill_fill_buffer"
# What memory may be registered for, beside tensors.
BUFFER_USES = (WEIGHTS_BUFFER, SPILL_FILL_BUFFER)


class RegisterMemory(Request):
    """Map shared memory, or its first ``nbytes``. Descriptor: the memory.

    ``use`` is one of ``BUFFER_USES``; empty for tensors.
    """

    context: int
    nbytes: int = 0
    use: str = ""


class DeregisterMemory(Request):
    """Unmap registered memory."""

    memory: int


class SetPriority(Request):
    """Change a graph's priority; refused once an execution of it has started."""

    graph: int
    priority: int


class SetHvxThreads(Request):
    """Change how many HVX threads a graph asks for; refused once an execution of it was submitted."""

    graph: int
    hvx_threads: int


class SetContextPriority(Request):
    """Change the priority of every graph of a context; refused once one of them has started."""

    context: int
    priority: int


class CreatePowerConfig(Request):
    """Make an id under which to vote on clocks, for one core."""

    core: int = 0
    device_id: int = 0


class SetPowerConfig(Request):
    """Change votes; None leaves each as it is. A ``profile`` votes by what is being done for the client."""

    config: int
    dcvs: DcvsVote | None = None
    hmx: HmxVote | None = None
    profile: str | None = None
    rpc_control_latency_us: int | None = None
    rpc_polling_us: int | None = None
    adaptive_polling_us: int | None = None
    hmx_timeout_us: int | None = None


class DestroyPowerConfig(Request):
    """Withdraw all votes of an id."""

    config: int


class ReadTrace(Request):
    """Fetch and clear what was recorded. Reply descriptor: shared memory with the encoded records."""


class SetTrace(Request):
    """Start or stop recording scheduler events."""

    enabled: bool


class Inspect(Request):
    """Describe the device and its sessions."""


class Inject(Request):
    """Testing: hold back steps, or fail the next step of a graph in a chosen way."""

    hold: bool | None = None
    fail_graph: int | None = None
    fail_step: int = 0
    fail_status: int = 0


class Shutdown(Request):
    """Ask a named device to end once its last client has gone, or at once."""

    now: bool = False


# Every request there is: a class of this file is one, without being named anywhere else.
REQUESTS: tuple[type[Request], ...] = tuple(Request.__subclasses__())


class ReadyGraph(Struct, frozen=True, kw_only=True):
    """A graph that is ready, and whether a stored ``prepared`` form of it was used."""

    graph: int
    steps: int
    prepared: bool


class Reply(Struct, frozen=True, kw_only=True):
    """Answer to any request. ``error`` is empty on success; ``value`` is what was made or asked for.

    ``where`` says where the error was met: a graph, a node. ``served_ns`` is how long the device had the request,
    ``worked_ns`` how much of that it worked for it.
    ``moved``: it is too long for a message; the descriptor beside it is shared memory with the reply itself.
    ``log`` is what the client's log is to say of the vendor's library: levels of Python's logging, and lines.
    """

    number: int = 0
    moved: bool = False
    error: str = ""
    status_name: str = "QNN_SUCCESS"
    status_code: int = 0
    where: list[str] = []
    value: int = 0
    graphs: list[ReadyGraph] = []
    info: dict[str, object] = {}
    served_ns: int = 0
    worked_ns: int = 0
    log: list[tuple[int, str]] = []


_encode = msgspec.msgpack.Encoder().encode
_decode_request = msgspec.msgpack.Decoder(functools.reduce(operator.or_, REQUESTS)).decode
_decode_number = msgspec.msgpack.Decoder(_Numbered).decode
_decode_reply = msgspec.msgpack.Decoder(Reply).decode


def encode(message: Request | Reply) -> bytes:
    """Bytes of a message."""
    return _encode(message)


def decode_request(data: bytes) -> Request:
    """Parse what a client sent."""
    try:
        request: Request = _decode_request(data)
        return request
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, UsageError) as error:
        raise ProtocolError(f"ill-formed request: {error}") from error


def number_of(data: bytes) -> int:
    """The number of a request that decode_request refused; 0 if it has none, so that nobody can be answered."""
    try:
        return _decode_number(data).number
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return 0


def decode_reply(data: bytes) -> Reply:
    """Parse what the device answered."""
    try:
        return _decode_reply(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise ProtocolError(f"ill-formed reply: {error}") from error


def read_reply(packet: bytes, descriptors: list[int]) -> tuple[Reply, bytes]:
    """A reply, and the content of the memory that came with it. Takes all descriptors."""
    try:
        reply = decode_reply(packet)
        data = _content(descriptors.pop()) if descriptors else b""
        return (decode_reply(data) if reply.moved else reply), data
    finally:
        channel.close_all(descriptors)


def _content(fd: int) -> bytes:
    with contextlib.closing(SharedBuffer.attach(fd)) as buffer:
        return bytes(buffer.view)
