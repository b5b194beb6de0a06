"""Weights in buffers of the client: it provides each piece of a binary, and later releases it.

The device maps the buffers by descriptor and uses them where they lie. Each buffer is released exactly once: when
its context is freed, is lost with the device, or could not be made.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from openhtp.core import status as st
from openhtp.core.checks import shown, whole_number
from openhtp.core.errors import InvalidArgument, QnnError, UnsupportedFeature
from openhtp.core.units import bytes_in_words
from openhtp.options import OptionValues
from openhtp.program.binary import ContextBinary
from openhtp.program.container import PAGE
from openhtp.rpc import messages as ms
from openhtp.rpc.channel import MAX_DESCRIPTORS
from openhtp.rpc.shm import SharedBuffer
from openhtp.runtime.objects.argument_checks import check_callable

log = logging.getLogger(__name__)

_BAD = st.QNN_CONTEXT_ERROR_INVALID_ARGUMENT
# The binary itself needs a descriptor, too.
MOST_PIECES = MAX_DESCRIPTORS - 1
_NOT_WITH_CALLBACK = {
    "memory_limit_hint": "graphs that are switched are read again from their binary",
    "defer_graph_init": "the data is asked for while the context is made",
}


@dataclass(frozen=True, slots=True)
class DataRequest:
    """A wanted piece of the binary: ``size`` bytes from ``offset``, both multiples of 4096."""

    offset: int
    size: int
    is_backend_mapping_needed: bool = True


@dataclass(frozen=True, slots=True)
class DmaData:
    """A buffer with the requested data, from ``data_start_offset``, a multiple of 4096.

    ``aligned_size`` is how many bytes may be read from there; None for as many as were requested.
    """

    fd: int
    data_start_offset: int = 0
    aligned_size: int | None = None


@dataclass(frozen=True, slots=True)
class DmaBufferCallback:
    """Functions of a client that keeps a binary's weights in memory of its own.

    ``data_provider(request, notify_param)`` puts the data into a dma-buf, or into a memfd that can be sealed, and
    returns its ``DmaData`` or the bare descriptor; each time another buffer. ``data_release(data, notify_param)``
    is called once for each, when the device no longer uses it.
    """

    data_provider: Callable[[DataRequest, object], DmaData | int]
    data_release: Callable[[DmaData, object], object]
    notify_param: object = None


class ClientBuffers:
    """The buffers that a context got from its client."""

    def __init__(self, callback: DmaBufferCallback) -> None:
        self._callback = callback
        self._lock = threading.Lock()
        self._provided: list[DmaData] = []
        self._buffers: list[SharedBuffer] = []
        self.pieces: list[ms.ExternalPiece] = []

    @property
    def descriptors(self) -> tuple[int, ...]:
        """The descriptors that are sent along with the binary."""
        return tuple(buffer.fd for buffer in self._buffers)

    def collect(self, binary: ContextBinary, names: Sequence[str]) -> None:
        """Ask for every piece that these graphs need. Raises if an answer is wrong; releases nothing yet."""
        if binary.info.extended_udma:
            raise UnsupportedFeature(
                "the binary was prepared with use_extended_udma, which does not go with a callback; prepare it"
                " again without, or load it without a callback",
                st.QNN_CONTEXT_ERROR_UNSUPPORTED_FEATURE,
            )
        for begin, end in large_pieces(binary, names):
            request = DataRequest(begin, end - begin)
            try:
                answer = self._callback.data_provider(request, self._callback.notify_param)
            except Exception as error:
                raise QnnError(
                    f"data_provider failed for {bytes_in_words(request.size)} at byte {request.offset}: {error!r}",
                    error.status if isinstance(error, QnnError) else st.QNN_CONTEXT_ERROR_CREATE_FROM_BINARY,
                ) from error
            self.take(request, answer)

    def take(self, request: DataRequest, answer: object) -> None:
        """Check the client's answer to a request, and keep its buffer."""
        where = f"for {request.size} bytes at byte {request.offset}"
        data = answer if isinstance(answer, DmaData) else DmaData(_whole(answer, where))
        if any(data.fd == other.fd for other in self._provided):
            raise InvalidArgument(
                f"data_provider gave descriptor {data.fd} again, {where}; expected another", _BAD
            )
        self._provided.append(data)
        start, size = data.data_start_offset, data.aligned_size
        if whole_number(start) is None or start < 0 or start % PAGE:
            raise InvalidArgument(
                f"data_provider gave a data_start_offset of {shown(start)}, {where}; expected a multiple of"
                f" {PAGE}",
                _BAD,
            )
        if size is not None and (whole_number(size) is None or size < request.size):
            raise InvalidArgument(
                f"data_provider gave an aligned_size of {shown(size)}, {where}; expected at least as many", _BAD
            )
        try:
            buffer = SharedBuffer.of_client(_whole(data.fd, where), start + request.size)
        except QnnError as error:
            raise InvalidArgument(
                f"data_provider gave a buffer that cannot be used, {where}: {error.message}", _BAD
            ) from error
        self._buffers.append(buffer)
        if any(buffer.identity == other.identity for other in self._buffers[:-1]):
            raise InvalidArgument(f"data_provider gave the memory of another buffer, {where}", _BAD)
        self.pieces.append(ms.ExternalPiece(begin=request.offset, end=request.offset + request.size, offset=start))

    def sent(self) -> None:
        """The device has the buffers: our own descriptors are no longer needed."""
        for buffer in self._buffers:
            buffer.close()

    def release(self) -> None:
        """Tell the client, once for each buffer, that it may let go; a second call does nothing."""
        self.sent()
        while True:
            with self._lock:
                if not self._provided:
                    return
                data = self._provided.pop()
            try:
                self._callback.data_release(data, self._callback.notify_param)
            except Exception:
                log.exception("data_release of descriptor %s", data.fd)


def _whole(fd: object, where: str) -> int:
    number = whole_number(fd)
    if number is None or number < 0:
        raise InvalidArgument(f"data_provider gave {shown(fd)}, {where}; expected a DmaData or a descriptor", _BAD)
    return number


def check_callback(callback: object, chosen: OptionValues) -> ClientBuffers | None:
    """The buffers of a context whose client keeps its weights; None without a callback."""
    if callback is None:
        return None
    if not isinstance(callback, DmaBufferCallback):
        raise InvalidArgument(f"callback is {shown(callback)}; expected a DmaBufferCallback", _BAD)
    if callback.data_provider is None or callback.data_release is None:
        raise InvalidArgument(f"callback is {shown(callback)}; expected both of its functions", _BAD)
    check_callable("data_provider", callback.data_provider, "(request, notify_param)")
    check_callable("data_release", callback.data_release, "(data, notify_param)")
    for option, why in _NOT_WITH_CALLBACK.items():
        if chosen[option]:
            raise InvalidArgument(
                f"a callback and {option} exclude each other: {why}", st.QNN_CONTEXT_ERROR_INVALID_CONFIG
            )
    return ClientBuffers(callback)


def large_pieces(binary: ContextBinary, names: Sequence[str]) -> list[tuple[int, int]]:
    """The pieces of these graphs' data that lie on pages of their own: few pieces, with gaps if need be."""
    pieces: list[tuple[int, int]] = []
    for extent in binary.ranges(names)[1:]:
        if extent.begin % PAGE or extent.end % PAGE:
            continue
        if pieces and pieces[-1][1] == extent.begin:
            pieces[-1] = (pieces[-1][0], extent.end)
        else:
            pieces.append((extent.begin, extent.end))
    while len(pieces) > MOST_PIECES:
        nearest = min(range(1, len(pieces)), key=lambda index: pieces[index][0] - pieces[index - 1][1])
        pieces[nearest - 1 : nearest + 1] = [(pieces[nearest - 1][0], pieces[nearest][1])]
    return pieces
