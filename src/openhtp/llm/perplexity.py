"""How well a model predicts a text: nats per token, in float and on a device."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from openhtp.core.errors import InvalidArgument
from openhtp.core.hmx_layout import BLOCK
from openhtp.llm.generator import Generator
from openhtp.llm.model import Llama

Progress = Callable[[float], None]


def nats_per_token(logits: npt.NDArray[np.float32], ids: Sequence[int]) -> float:
    """Mean surprise of each token, given the tokens before it."""
    shifted = logits.astype(np.float64) - logits.max(axis=-1, keepdims=True)
    chances = shifted - np.log(np.exp(shifted).sum(axis=-1, keepdims=True))
    return float(-chances[np.arange(len(ids) - 1), np.asarray(ids)[1:]].mean())


def float_nats(model: Llama, ids: Sequence[int], window: int, progress: Progress | None = None) -> float:
    """Nats per token of the float model, window by window."""
    return _mean_nats(lambda part: model.forward(part)[0], ids, window, progress)


def device_nats(chat: Generator, ids: Sequence[int], window: int, progress: Progress | None = None) -> float:
    """Nats per token of the quantized model on its device, in the same windows."""

    def logits(part: list[int]) -> npt.NDArray[np.float32]:
        chat.reset()
        return asyncio.run(chat.score(part))

    nats = _mean_nats(logits, ids, window, progress)
    chat.reset()
    return nats


def fitting_window(context: int) -> int:
    """The most tokens that can be scored at once: a pass of any size needs a free block."""
    return max(2, context - BLOCK)


def _mean_nats(
    logits: Callable[[list[int]], npt.NDArray[np.float32]],
    ids: Sequence[int],
    window: int,
    progress: Progress | None,
) -> float:
    """Nats per token of all full windows; a last window that is not full is left out.

    ``progress`` gets the share that is done.
    """
    tokens = [int(token) for token in ids]
    if len(tokens) < 2 or window < 2:
        raise InvalidArgument(f"{len(tokens)} tokens in windows of {window}; expected at least 2 of each")
    window = min(window, len(tokens))
    nats = []
    for begin in range(0, len(tokens) - window + 1, window):
        part = tokens[begin : begin + window]
        nats.append(nats_per_token(logits(part), part))
        if progress is not None:
            progress((begin + window) / len(tokens))
    return float(np.mean(nats))
