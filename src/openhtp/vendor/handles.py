"""Lifetimes: the library frees children with their parent silently; here a child knows that it is gone."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from openhtp.core.errors import InvalidHandle
from openhtp.core.status import Status


class Owner:
    """Something with a C handle that owns others; freeing it frees those first, newest first."""

    freed_status: Status

    def __init__(self, handle: int, what: str, parent: Owner | None) -> None:
        self._handle: int | None = handle
        self._what = what
        self._children: list[Owner] = []
        self._parent = parent
        if parent is not None:
            parent._children.append(self)

    @property
    def handle(self) -> int:
        """The C handle; an error once the object is freed."""
        if self._handle is None:
            raise InvalidHandle(f"{self._what} was freed", self.freed_status)
        return self._handle

    @property
    def alive(self) -> bool:
        """Whether the object can still be used."""
        return self._handle is not None

    def free(self) -> None:
        """Give the object back to the library. Freeing twice does nothing."""
        if self._handle is None:
            return
        for child in reversed(self._children.copy()):
            child.free()
        handle, self._handle = self._handle, None
        if self._parent is not None:
            self._parent._children.remove(self)
        self._release(handle)

    def _release(self, handle: int) -> None:
        """Call the library's own free; nothing for objects that end with their parent."""

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.free()
