"""The process that Genie runs in, with a dialog that repeats what it is told in the place of Genie's."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Iterator
from multiprocessing.connection import Connection
from typing import Any

from openhtp.genie import host
from openhtp.genie.dialog import Answer
from openhtp.genie.messages import HostOpening


class EchoDialog:
    """Answers with the prompt, as often as there may be tokens."""

    def __init__(self) -> None:
        self._tokens = 1
        self._stopped = False

    def limit(self, tokens: int) -> None:
        self._tokens = tokens

    def query(self, prompt: str, tell: Callable[[str], None]) -> Answer:
        """``abort`` as a prompt ends the process, as Genie does where an execution that it queued fails."""
        if prompt == "abort":
            os.write(2, b"terminate called without an active exception\n")
            os.abort()
        self._stopped = False
        text = ""
        for _ in range(self._tokens):
            if self._stopped:
                break
            tell(prompt)
            text += prompt
        return _answer(text)

    def query_tokens(self, prompt: list[int]) -> Answer:
        return _answer("", prompt * self._tokens)

    def stop(self) -> None:
        self._stopped = True

    def reset(self) -> None: ...

    def free(self) -> None: ...


def _answer(text: str, tokens: list[int] | None = None) -> Answer:
    return Answer(
        text=text, pieces=1, tokens=tokens or [], end="whole", seconds=0.0, first_ms=0.0, pieces_per_s=0.0
    )


class StandInHost(host.GenieHost):
    @contextlib.contextmanager
    def _opened(self, opening: HostOpening) -> Iterator[Any]:
        yield EchoDialog()


if __name__ == "__main__":
    StandInHost(Connection(int(sys.argv[1]))).serve()
    os._exit(0)
