"""What a status means, its usual cause and what to do about it; the words are in ``status_words.toml``."""

from __future__ import annotations

import functools
import tomllib
from importlib import resources
from typing import NamedTuple

from openhtp.core.status import Status


class StatusWords(NamedTuple):
    """A status explained. Only the vendor's library gives those without a cause."""

    means: str
    cause: str = ""
    remedy: str = ""


@functools.cache
def _table() -> dict[str, StatusWords]:
    text = resources.files("openhtp.core").joinpath("status_words.toml").read_text(encoding="utf-8")
    return {name: StatusWords(**words) for name, words in tomllib.loads(text).items()}


def words_for(status: Status) -> StatusWords:
    """The words for a status; a number that the API does not document has none but its own."""
    return _table().get(status.name, StatusWords(means=f"Number {status.code}, which the API does not document."))
