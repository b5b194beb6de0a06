"""A dialog of Genie's in this process: queries, and the settings that can be changed between them."""

from __future__ import annotations

import ctypes
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from openhtp.core.errors import InvalidArgument
from openhtp.genie.calls import AllocateCallback, AnswerEnd, GenieLibrary, TextCallback, TokenCallback

# The only role of a basic dialog's engine.
ENGINE = b"primary"
_WHOLE_SENTENCE = 0
_SIGNAL_ABORT = 1
_PRIORITIES = {"low": 0, "normal": 100, "normal_high": 150, "high": 200}
_POLICIES = {
    "burst": 10,
    "sustained_high_performance": 20,
    "high_performance": 30,
    "balanced": 40,
    "low_balanced": 50,
    "high_power_saver": 60,
    "power_saver": 70,
    "low_power_saver": 80,
    "extreme_power_saver": 90,
}


class Answer(msgspec.Struct, kw_only=True):
    """The answer to a query; times are measured in the process that Genie runs in."""

    text: str
    pieces: int
    tokens: list[int] = []
    end: str
    seconds: float
    # Milliseconds until the first piece, and pieces per second after it.
    first_ms: float
    pieces_per_s: float


class Dialog:
    """One dialog. ``stop`` may be called from another thread while a query runs."""

    def __init__(self, library: GenieLibrary, config: str, *, profiled: bool = False) -> None:
        self._library = library
        self._profile = library.make("GenieProfile_create", None) if profiled else None
        self._config = library.make("GenieDialogConfig_createFromJson", ctypes.c_char_p(config.encode()))
        library.call("GenieDialogConfig_bindLogger", self._config, library.log)
        if self._profile is not None:
            library.call("GenieDialogConfig_bindProfiler", self._config, self._profile)
        self._handle = library.make("GenieDialog_create", self._config)

    def limit(self, tokens: int) -> None:
        """Write at most ``tokens`` tokens a query."""
        self._library.call("GenieDialog_setMaxNumTokens", self._handle, ctypes.c_uint32(tokens))

    def query(self, prompt: str, tell: Callable[[str], None]) -> Answer:
        """Answer a prompt; ``tell`` gets the text piece by piece, in whole characters."""
        pieces = _Pieces(tell)

        def heard(text: bytes | None, code: int, user: int | None) -> None:
            pieces.add(text or b"")

        callback = TextCallback(heard)
        status = self._library.call(
            "GenieDialog_query",
            self._handle,
            ctypes.c_char_p(prompt.encode()),
            ctypes.c_int32(_WHOLE_SENTENCE),
            callback,
            None,
        )
        return pieces.answer(status)

    def query_tokens(self, tokens: Sequence[int]) -> Answer:
        """Answer a prompt of token numbers by token numbers."""
        written: list[int] = []
        pieces = _Pieces(lambda text: None)

        def heard(numbers: Any, count: int, code: int, user: int | None) -> None:
            written.extend(numbers[index] for index in range(count))
            pieces.add(b"")

        callback = TokenCallback(heard)
        token_array = (ctypes.c_uint32 * len(tokens))(*tokens)
        status = self._library.call(
            "GenieDialog_tokenQuery",
            self._handle,
            token_array,
            ctypes.c_uint32(len(tokens)),
            ctypes.c_int32(_WHOLE_SENTENCE),
            callback,
            None,
        )
        answer = pieces.answer(status)
        answer.tokens = written
        return answer

    def stop(self) -> None:
        """End the query that is running."""
        self._library.call("GenieDialog_signal", self._handle, ctypes.c_int32(_SIGNAL_ABORT))

    def reset(self) -> None:
        """Forget what was said."""
        self._library.call("GenieDialog_reset", self._handle)

    def save(self, folder: str) -> None:
        """Write what was said, and the cache, into a folder."""
        self._library.call("GenieDialog_save", self._handle, ctypes.c_char_p(folder.encode()))

    def restore(self, folder: str) -> None:
        """Go on where a saved dialog ended."""
        self._library.call("GenieDialog_restore", self._handle, ctypes.c_char_p(folder.encode()))

    def stop_at(self, sequences: Sequence[str]) -> None:
        """End an answer where one of these texts appears."""
        words = json.dumps({"stop-sequence": list(sequences)}).encode()
        self._library.call("GenieDialog_setStopSequence", self._handle, ctypes.c_char_p(words))

    def use_adapter(self, name: str) -> None:
        """Answer with a LoRA adapter of the configuration."""
        self._library.call(
            "GenieDialog_applyLora", self._handle, ctypes.c_char_p(ENGINE), ctypes.c_char_p(name.encode())
        )

    def set_priority(self, priority: str) -> None:
        """Have the contexts of the dialog run at another priority."""
        number = _number(priority, _PRIORITIES, "priority")
        self._library.call(
            "GenieDialog_setPriority", self._handle, ctypes.c_char_p(ENGINE), ctypes.c_int32(number)
        )

    def set_policy(self, policy: str) -> None:
        """Vote for clocks by the name of a policy."""
        number = _number(policy, _POLICIES, "performance policy")
        self._library.call("GenieDialog_setPerformancePolicy", self._handle, ctypes.c_int32(number))

    def profile(self) -> dict[str, Any]:
        """Genie's measurements of its own calls."""
        if self._profile is None:
            raise InvalidArgument("the dialog has no profile; expected one that was made with profiled=True")
        buffers: list[Any] = []

        def allocate(nbytes: int, out: Any) -> None:
            buffers.append(ctypes.create_string_buffer(nbytes))
            out[0] = ctypes.addressof(buffers[-1])

        address = self._library.make("GenieProfile_getJsonData", self._profile, AllocateCallback(allocate))
        content: dict[str, Any] = json.loads(ctypes.string_at(address.value or 0))
        return content

    def free(self) -> None:
        """Give everything back."""
        self._library.call("GenieDialog_free", self._handle)
        self._library.call("GenieDialogConfig_free", self._config)
        if self._profile is not None:
            self._library.call("GenieProfile_free", self._profile)


def _number(word: str, table: dict[str, int], what: str) -> int:
    if word not in table:
        raise InvalidArgument(f"{what} is {word!r}; expected one of {', '.join(table)}")
    return table[word]


class _Pieces:
    """An answer as it grows. A character may come in several pieces; those before it is whole are held back."""

    def __init__(self, tell: Callable[[str], None]) -> None:
        self._tell = tell
        self._data = bytearray()
        self._told = 0
        self._count = 0
        self._began = time.perf_counter()
        self._first = self._last = 0.0

    def add(self, data: bytes) -> None:
        now = time.perf_counter()
        self._first, self._last = self._first or now, now
        self._count += 1
        self._data += data
        try:
            text = bytes(self._data[self._told :]).decode()
        except UnicodeDecodeError:
            return
        self._told = len(self._data)
        if text:
            self._tell(text)

    def answer(self, status: int) -> Answer:
        ends = {int(end): end.name.lower() for end in AnswerEnd}
        span = self._last - self._first
        return Answer(
            text=self._data.decode("utf-8", "replace"),
            pieces=self._count,
            end=ends.get(status, f"status {status}"),
            seconds=time.perf_counter() - self._began,
            first_ms=(self._first - self._began) * 1e3 if self._count else 0.0,
            pieces_per_s=(self._count - 1) / span if self._count > 1 and span > 0 else 0.0,
        )
