"""Computing with a native KV cache: the graph reads a flat mirror of the tiles that the client writes.

Un-tiling inside the graph would cost many times the attention itself. Instead, before a pass, a comparison with a
copy finds the blocks of the cache that changed since the last pass, and only these are un-tiled, by the C side
(``native/sessions.c``) where there is one. It does not matter which client or graph wrote them. As on the HTP, all
places from the first new token on read as zero, whatever the cache holds there.
"""

from __future__ import annotations

import ctypes
import logging
import weakref
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from openhtp.core import status as st
from openhtp.core.errors import InvalidArgument
from openhtp.core.hmx_layout import BLOCK, Side, tokens_to_native
from openhtp.engine.native import native as sessions_side
from openhtp.program.htp_program import NativeKv

log = logging.getLogger(__name__)

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]

_ZERO = 128
_SIGN = np.uint8(0x80)
_TILE_BLOCKS = Side.KEY.value // BLOCK

_compare = ctypes.CDLL(None).memcmp
_compare.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t]
_compare.restype = ctypes.c_int


class Mirror:
    """A flat copy of one native tensor, as far as it is filled, and the tiled bytes that it was made from.

    ``flat`` has the tensor's shape and stored numbers, so the graph computes with it as with a flat cache.
    """

    def __init__(self, side: Side, native: Bytes) -> None:
        rows, columns = native.shape[-2:]
        self.side = side
        self.flat = np.full(native.shape, _ZERO, np.uint8)
        self._last = np.zeros(native.shape, np.uint8)
        self._last_place, self._flat_place = self._last.ctypes.data, self.flat.ctypes.data
        self._blocks = 0
        self._holder: weakref.ref[object] | None = None
        if side is Side.KEY:
            # head, tile, head_dim/32, block of the tile, 8, 32 tokens, 4
            self._tiled: tuple[int, ...] = (-1, columns // 256, rows // 32, _TILE_BLOCKS, 8, 32, 4)
            self._places = self.flat.reshape(-1, rows // 32, 8, 4, columns)
            self._run_bytes, self._runs = rows * Side.KEY.value, self.flat.size // (rows * columns)
        else:
            # head, head_dim/64, block, 2, 8, 32 of head_dim, 4 tokens
            self._tiled = (-1, columns // 64, rows // 32, 2, 8, 32, 4)
            self._places = self.flat.reshape(-1, rows // 32, 8, 4, columns // 64, 2, 32)
            self._run_bytes, self._runs = 64 * BLOCK, self.flat.size // (rows * 64)
        head_dim, context = (rows, columns) if side is Side.KEY else (columns, rows)
        self._heads = native.size // (rows * columns), head_dim, context
        self._run_stride = native.size // self._runs
        self._old = self._last.reshape(self._tiled)

    def take(self, holder: object) -> bool:
        """Reserve it for one execution, which must not see it change."""
        now = None if self._holder is None else self._holder()
        if now is not None and now is not holder:
            return False
        self._holder = weakref.ref(holder)
        return True

    def give_back(self) -> None:
        """The execution is over."""
        self._holder = None

    def follow(self, native: Bytes, tokens: int) -> None:
        """Copy the native tensor's first ``tokens`` places, a multiple of 32; all later places are zero."""
        blocks, known = tokens // BLOCK, self._blocks
        if known > blocks:
            self._clear(blocks, known)
        side = sessions_side()
        if side is not None:
            is_key = self.side is Side.KEY
            address = native.__array_interface__["data"][0]
            side.follow(
                is_key, address, self._last_place, self._flat_place, *self._heads, min(known, blocks), blocks
            )
            self._blocks = blocks
            return
        now = native.reshape(self._tiled)
        # Tokens are added to the last known block, so it has nearly always changed.
        settled = max(0, min(known, blocks) - 1)
        for block in self._changed(native, now, settled):
            self._copy(now, block)
        for block in range(settled, blocks):
            # The last one is copied again before it is compared with anything.
            self._copy(now, block, kept=block + 1 < blocks)
        self._blocks = blocks

    def _clear(self, begin: int, end: int) -> None:
        if self.side is Side.KEY:
            self._places[..., begin * BLOCK : end * BLOCK] = _ZERO
        else:
            self._places[:, begin:end] = _ZERO

    def _changed(self, native: Bytes, now: Bytes, blocks: int) -> list[int]:
        """Which of the first blocks have changed."""
        whole = blocks // _TILE_BLOCKS if self.side is Side.KEY else blocks
        nbytes = whole * self._run_bytes
        address, last_address = native.ctypes.data, self._last_place
        differs = nbytes and any(
            _compare(address + run * self._run_stride, last_address + run * self._run_stride, nbytes)
            for run in range(self._runs)
        )
        if self.side is Side.VALUE:
            if not differs:
                return []
            unequal = (now[:, :, :blocks] != self._old[:, :, :blocks]).any(axis=(0, 1, 3, 4, 5, 6))
            return [int(block) for block in np.flatnonzero(unequal)]
        first = 0 if differs else whole
        last = -(-blocks // _TILE_BLOCKS)
        if first == last or (
            not differs and not self._differs_in_tile(address, last_address, whole, blocks % _TILE_BLOCKS)
        ):
            return []
        unequal = (now[:, first:last] != self._old[:, first:last]).any(axis=(0, 2, 4, 5, 6)).reshape(-1)
        changed = np.flatnonzero(unequal) + first * _TILE_BLOCKS
        return [int(block) for block in changed if block < blocks]

    def _differs_in_tile(self, address: int, last_address: int, tile: int, blocks: int) -> bool:
        """Whether one of the first blocks of a tile of keys has changed; they lie together for 32 of head_dim."""
        step = Side.KEY.value * BLOCK
        for run in range(self._runs):
            begin = run * self._run_stride + tile * self._run_bytes
            for offset in range(begin, begin + self._run_bytes, step):
                if _compare(address + offset, last_address + offset, blocks * BLOCK * BLOCK):
                    return True
        return False

    def _copy(self, now: Bytes, block: int, *, kept: bool = True) -> None:
        if self.side is Side.KEY:
            tile, within = divmod(block, _TILE_BLOCKS)
            new = now[:, tile, :, within]
            if kept:
                self._old[:, tile, :, within] = new
            spots = self._places[..., block * BLOCK : (block + 1) * BLOCK]
            np.bitwise_xor(new.transpose(0, 1, 2, 4, 3), _SIGN, out=spots)
        else:
            new = now[:, :, block]
            if kept:
                self._old[:, :, block] = new
            # tiles of head_dim, 2, 8, 32, 4 tokens -> 8, 4 tokens, tiles, 2, 32
            np.bitwise_xor(new.transpose(0, 3, 5, 1, 2, 4), _SIGN, out=self._places[:, block])


class Mirrors:
    """The mirrors of one engine, by the memory that they follow: graphs that share a cache share its mirror."""

    def __init__(self) -> None:
        self._known: weakref.WeakValueDictionary[tuple[int, tuple[int, ...], Side], Mirror] = (
            weakref.WeakValueDictionary()
        )

    def of(self, side: Side, native: Bytes) -> Mirror:
        """The mirror of the cache at this address. If another cache was here before, the comparison finds it."""
        key = (native.ctypes.data, native.shape, side)
        mirror = self._known.get(key)
        if mirror is None:
            mirror = self._known[key] = Mirror(side, native)
        return mirror


def _joined(arrays: Mapping[str, Bytes]) -> Iterator[tuple[list[str], Bytes]]:
    """Adjacent caches of several layers, joined to one with all heads, so that one call follows them."""
    names = sorted(arrays, key=lambda name: arrays[name].ctypes.data)
    begin = 0
    for end in range(1, len(names) + 1):
        last = arrays[names[end - 1]]
        if end < len(names):
            following = arrays[names[end]]
            alike = following.shape == last.shape and last.ndim == 4
            if alike and following.ctypes.data == last.ctypes.data + last.nbytes:
                continue
        first = arrays[names[begin]]
        shape = ((end - begin) * first.shape[0], *first.shape[1:])
        yield names[begin:end], np.lib.stride_tricks.as_strided(first, shape, first.strides)
        begin = end


class NativeState:
    """Work of a run around its sessions: mirrors before the first step, native outputs after the last."""

    def __init__(self, kv: NativeKv, name: str, arrays: Mapping[str, Array], mirrors: Mirrors | None) -> None:
        """Without ``mirrors`` the state has its own, which no other run can be using."""
        self._kv = kv
        self._name = name
        self._index = arrays[kv.index]
        self._mask = None if kv.mask is None else arrays[kv.mask.name].reshape(-1, kv.context)
        self._outputs = [(tensor.half, arrays[tensor.name]) for tensor in kv.outputs]
        self._place = np.zeros_like(self._index)
        make = Mirror if mirrors is None else mirrors.of
        self._told: set[str] = set()
        self.private: dict[str, Array] = {kv.index: self._place}
        self._mirrors: list[Mirror] = []
        self._caches: list[Bytes] = []
        self._held = [arrays[tensor.name] for tensor in kv.caches]
        for half in Side:
            named = {tensor.name: arrays[tensor.name] for tensor in kv.caches if tensor.half is half}
            for names, whole in _joined(named):
                mirror = make(half, whole)
                self._mirrors.append(mirror)
                self._caches.append(whole)
                self.private |= dict(zip(names, np.split(mirror.flat, len(names)), strict=True))

    def begin(self) -> bool:
        """Bring all mirrors up to date. False if one is in use by another run, and nothing was changed."""
        kv, index = self._kv, int(self._index.reshape(-1)[0])
        if not 0 <= index <= kv.last_index:
            raise InvalidArgument(
                f"{kv.index} {index} with AR-{kv.tokens} needs {kv.context - kv.last_index} free places; the last"
                f" possible is {kv.last_index} of a context of {kv.context}. Rewind, evict or grow the cache",
                st.QNN_GRAPH_ERROR_INVALID_TENSOR,
            )
        start = kv.place(index)
        if start != index:
            self._rounded(index, start)
        self._check_mask(index, start)
        free = [mirror for mirror in self._mirrors if mirror.take(self)]
        if len(free) < len(self._mirrors):
            for mirror in free:
                mirror.give_back()
            return False
        self._place[...] = start
        for mirror, array in zip(self._mirrors, self._caches, strict=True):
            mirror.follow(array, start)
        return True

    def end(self) -> None:
        """Give new keys and values their layout, and the mirrors back."""
        for side, array in self._outputs:
            array[...] = tokens_to_native(side, array)
        for mirror in self._mirrors:
            mirror.give_back()

    def _rounded(self, index: int, start: int) -> None:
        words = (
            f"{self._kv.index} {index} is no multiple of {BLOCK} and is rounded up to {start}: the mask must let"
            f" {start} on take part"
        )
        if self._kv.strict:
            raise InvalidArgument(f"{words} (strict_kv)", st.QNN_GRAPH_ERROR_INVALID_TENSOR)
        self._tell("rounded", words)

    def _check_mask(self, index: int, start: int) -> None:
        mask = self._kv.mask
        if mask is None or self._mask is None or "mask" in self._told:
            return
        behind = start + self._kv.tokens
        for begin, end, holds in ((index, start, "what the cache holds there"), (behind, None, "zero")):
            part = self._mask[:, begin:end]
            # One look is enough nearly always.
            if not part.size or part.max() < mask.low or part.min() > mask.high:
                continue
            kept = ((part >= mask.low) & (part <= mask.high)).any(axis=0)
            if kept.any():
                first = begin + int(np.argmax(kept))
                where = "between the cache and the new tokens" if end is not None else "behind the new tokens"
                self._tell(
                    "mask", f"the mask {mask.name!r} lets place {first} take part, {where}: it reads {holds}"
                )
                return

    def _tell(self, what: str, words: str) -> None:
        if what not in self._told:
            self._told.add(what)
            log.warning("graph %r: %s (told once)", self._name, words)
