"""The inputs of executions: lines of an input list, read and put together, as often as they are asked for."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from openhtp.core.errors import InvalidArgument
from openhtp.core.tensor import TensorSpec
from openhtp.core.units import MIB
from openhtp.tools.input_list import InputLine
from openhtp.tools.raw import Array, Form, read_piece

log = logging.getLogger(__name__)

Feeds = dict[str, Array]
_DEFAULT_MB = 512


@dataclass(frozen=True, slots=True, kw_only=True)
class Repetition:
    """How often lists are gone through: once, until so many inferences or seconds are done."""

    inferences: int | None = None
    duration_s: float | None = None


class Cache:
    """Inputs that were read and are kept for the next time: so many sets, or so many bytes."""

    def __init__(self, sets: int | None, megabytes: int | None) -> None:
        self._sets = sets if sets is None or sets >= 0 else None
        self._left = (_DEFAULT_MB if megabytes is None else megabytes) * MIB
        self._held: dict[str, tuple[Feeds, int]] = {}

    def get(self, key: str) -> tuple[Feeds, int] | None:
        """What was kept."""
        return self._held.get(key)

    def put(self, key: str, value: tuple[Feeds, int]) -> None:
        """Keep it, if there is room."""
        nbytes = sum(array.nbytes for array in value[0].values())
        if nbytes <= self._left and (self._sets is None or len(self._held) < self._sets):
            self._held[key] = value
            self._left -= nbytes


class Feeding:
    """A list for one graph."""

    def __init__(
        self,
        lines: Sequence[InputLine],
        inputs: Mapping[str, TensorSpec],
        forms: Mapping[str, Form],
        *,
        batch: int,
        cache: Cache,
    ) -> None:
        self._lines = lines
        self._inputs = inputs
        self._forms = forms
        self._batch = batch
        self._cache = cache

    def sets(self, wanted: Repetition, begin: float) -> Iterator[Feeds]:
        """Inputs of one execution after the other, until enough is done since ``begin`` (time.monotonic)."""
        count = 0
        while True:
            for feeds in self._once():
                if wanted.inferences is not None and count >= wanted.inferences:
                    return
                if wanted.duration_s is not None and time.monotonic() - begin >= wanted.duration_s:
                    return
                yield feeds
                count += 1
            if wanted.inferences is None and wanted.duration_s is None:
                return

    def _once(self) -> Iterator[Feeds]:
        """The list once: a line is an execution, or one element of its batch."""
        lines = iter(self._lines)
        for line in lines:
            feeds, parts = self._read(line)
            whole = self._parts()
            if parts == whole:
                yield feeds
                continue
            several = [feeds, *(self._element(other) for other in itertools.islice(lines, whole - 1))]
            if len(several) < whole:
                log.warning(
                    "%s: the last batch has %d of %d elements; the rest is zeros", line.where, len(several), whole
                )
            yield {
                name: self._joined(spec, [each[name] for each in several]) for name, spec in self._inputs.items()
            }

    def _parts(self) -> int:
        batches = {spec.shape[0] for spec in self._inputs.values() if spec.shape}
        return (batches.pop() if len(batches) == 1 else 1) * self._batch

    def _element(self, line: InputLine) -> Feeds:
        feeds, parts = self._read(line)
        if parts != 1:
            raise InvalidArgument(f"{line.where}: holds a whole batch; the lines before hold one element each")
        return feeds

    def _joined(self, spec: TensorSpec, arrays: Sequence[Array]) -> Array:
        whole = np.zeros((self._parts(), *spec.shape[1:]), spec.dtype.numpy)
        joined = np.concatenate(arrays)
        whole[: len(joined)] = joined
        return whole

    def _read(self, line: InputLine) -> tuple[Feeds, int]:
        known = self._cache.get(line.where)
        if known is not None:
            return known
        found, parts = {}, set()
        for name, spec in self._inputs.items():
            piece = read_piece(line.files[name], line.where, spec, self._forms[name], self._batch)
            found[name] = piece.array
            parts.add(piece.parts)
        if len(parts) > 1:
            raise InvalidArgument(f"{line.where}: some files hold a whole batch and some one element of it")
        count = parts.pop() if parts else 1
        self._cache.put(line.where, (found, count))
        return found, count
