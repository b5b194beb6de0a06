"""One question on our library, synchronous and asynchronous, and on the vendor's."""

from __future__ import annotations

import os
from typing import Any

import msgspec

from openhtp.genie.chat import Chat
from openhtp.genie.dialog import Answer

# The first answer also pays for what a process does only once.
_TIMES = 3


class ComparedAnswer(msgspec.Struct, frozen=True):
    """Where a question was asked, and the quickest of its answers, which must all be the same."""

    where: str
    answer: Answer


def compare_settings(
    bundle: str | os.PathLike[str], prompt: str, tokens: int, *, vendor: bool, **options: Any
) -> list[ComparedAnswer]:
    """Ask everywhere, several times each on our library: neighbours on the machine disturb single runs."""
    settings: list[tuple[str, dict[str, Any]]] = [("ours", {}), ("ours, asynchronous", {"asynchronous": True})]
    if vendor:
        settings.append(("the vendor's simulator", {"vendor": True}))
    rows = []
    for where, chosen in settings:
        with Chat(bundle, **options, **chosen) as chat:
            answers = []
            for _ in range(1 if "vendor" in chosen else _TIMES):
                answers.append(chat.ask(prompt, tokens=tokens))
                chat.reset()
        odd = next((answer for answer in answers if answer.text != answers[0].text), None)
        rows.append(ComparedAnswer(where, odd or max(answers, key=lambda answer: answer.pieces_per_s)))
    return rows
