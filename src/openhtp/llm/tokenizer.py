"""Text to tokens and back, by the ``tokenizers`` package, which only text needs."""

from __future__ import annotations

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from openhtp.core.errors import BadModel, InvalidArgument, UnsupportedFeature
from openhtp.core.files import read_file

_MOST_BYTES = 256 << 20
# Decoders write this character for bytes that are not yet a whole character.
_PARTIAL = "\ufffd"


class Tokenizer:
    """A ``tokenizer.json``."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner

    @classmethod
    def of(cls, path: Path | None, vocab: int) -> Tokenizer:
        """Read a tokenizer, which must fit a model of ``vocab`` tokens."""
        if path is None:
            raise InvalidArgument("the model has no tokenizer.json; give token numbers instead of text")
        text = read_file(path, most=_MOST_BYTES, what="a tokenizer (tokenizer.json)", error=BadModel)
        try:
            import tokenizers
        except ImportError as error:
            raise UnsupportedFeature(
                "text needs the tokenizers package: pip install 'openhtp[llm]', or give token numbers"
            ) from error
        try:
            inner = tokenizers.Tokenizer.from_buffer(text)
        except Exception as error:  # the package has no class of its own
            raise BadModel(f"{str(path)!r} cannot be read: {error}") from error
        highest = max(inner.get_vocab(with_added_tokens=True).values(), default=-1)
        if highest >= vocab:
            raise BadModel(
                f"{str(path)!r} has token {highest}; the model's vocabulary ends at {vocab - 1}: it is another"
                " model's tokenizer"
            )
        return cls(inner)

    def encode(self, text: str) -> list[int]:
        """Token numbers of a text."""
        return list(self._inner.encode(text).ids)

    def decode(self, ids: Sequence[int]) -> str:
        """The text of token numbers."""
        return str(self._inner.decode(list(ids), skip_special_tokens=False))


def token_numbers(data: bytes, vocab: int, where: str) -> list[int]:
    """The numbers in a ``.npy`` file, if all are tokens."""
    try:
        numbers = np.load(io.BytesIO(data), allow_pickle=False)
    except (ValueError, OSError, EOFError) as error:
        raise BadModel(f"{where!r} is no array of token numbers: {error}") from error
    if not isinstance(numbers, np.ndarray) or numbers.dtype.kind not in "iu" or not numbers.size:
        raise BadModel(f"{where!r} holds no whole numbers; expected tokens")
    if numbers.min() < 0 or numbers.max() >= vocab:
        raise BadModel(
            f"{where!r} has tokens from {numbers.min()} to {numbers.max()}; the vocabulary ends at {vocab - 1}"
        )
    return [int(token) for token in numbers.reshape(-1)]


class Streamer:
    """Text as it grows, in whole characters."""

    def __init__(self, tokenizer: Tokenizer, before: Sequence[int]) -> None:
        self._tokenizer = tokenizer
        # The text of a token depends on the token before it.
        self._ids = list(before)[-4:]
        self._told = len(tokenizer.decode(self._ids)) if self._ids else 0

    def add(self, token: int) -> str:
        """The text that has become certain with this token."""
        self._ids.append(token)
        text = self._tokenizer.decode(self._ids)
        if text.endswith(_PARTIAL):
            return ""
        new, self._told = text[self._told :], len(text)
        return new
