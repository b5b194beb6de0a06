"""How well a model predicts a text: nats per token, in float and on a device."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from openhtp.core.errors import InvalidArgument
from openhtp.core.hmx_layout import BLOCK
from openhtp.llm.generator import Generator
from openhtp.llm.model import Llama

Progress = Callable[[float], None]


def nats_per_token(logits: npt.NDArray[np.float32], ids: Sequence[int]) -> float:
    """Mean surprise of each token by those before it."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    chances = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return float(-chances[np.arange(len(ids) - 1), np.asarray(ids)[1:]].mean())


def float_nats(model: Llama, ids: Sequence[int], window: int, progress: Progress | None = None) -> float:
    """Of the float model, window by window."""
    found = []
    for done, part in _windows(ids, window):
        found.append(nats_per_token(model.forward(part)[0], part))
        if progress is not None:
            progress(done)
    return float(np.mean(found))


def device_nats(chat: Generator, ids: Sequence[int], window: int, progress: Progress | None = None) -> float:
    """Of the quantized model on its device, in the same windows."""
    found = []
    for done, part in _windows(ids, window):
        chat.reset()
        found.append(nats_per_token(asyncio.run(chat.score(part)), part))
        if progress is not None:
            progress(done)
    chat.reset()
    return float(np.mean(found))


def fitting_window(context: int) -> int:
    """The most tokens that can be scored at once: a pass of any size needs a free block."""
    return max(2, context - BLOCK)


def _windows(ids: Sequence[int], window: int) -> Iterator[tuple[float, list[int]]]:
    """Share that is then done, and tokens. A last window that is not full is left out."""
    tokens = [int(token) for token in ids]
    if len(tokens) < 2 or window < 2:
        raise InvalidArgument(f"{len(tokens)} tokens in windows of {window}; expected at least 2 of each")
    window = min(window, len(tokens))
    for begin in range(0, len(tokens) - window + 1, window):
        yield min(1.0, (begin + window) / len(tokens)), tokens[begin : begin + window]
