"""Short-time Fourier transforms as convolutions: windows and frequencies are known, so they are weights."""

from __future__ import annotations

import numpy as np

from openhtp.frontend.model import Array
from openhtp.frontend.writing import Writer


def write_stft(w: Writer) -> None:
    """ONNX's STFT of a real signal: [batch, length] to [batch, frames, frequencies, 2]."""
    signal, step = w.type(0).shape, w.known(1)
    window, length = w.known(2), w.known(3)
    if len(signal) == 3 and signal[2] != 1:
        w.refuse("its signal is complex", "transform real and imaginary part by themselves")
    if step is None or (w.node.has(2) and window is None) or (w.node.has(3) and length is None):
        w.refuse("its window, frame_length or frame_step is computed", "make them constants")
    if window is None and length is None:
        w.refuse("it has neither window nor frame_length", "give one of them")
    size = int(length.reshape(-1)[0]) if length is not None else window.size if window is not None else 0
    stride = int(step.reshape(-1)[0])
    if window is not None and window.size != size:
        w.refuse(f"its window has {window.size} elements and its frames {size}", "give both the same size")
    if not 0 < size <= signal[1] or stride < 1:
        w.refuse(f"frames of {size} every {stride} do not fit a signal of {signal[1]}", "give a longer signal")
    bins = size // 2 + 1 if w.attr("onesided", 1) else size
    frames = (signal[1] - size) // stride + 1
    kernel = _kernel(size, bins, np.ones(size) if window is None else window.reshape(-1))
    line = w.add("Reshape", [w.input(0), w.constant(np.array([signal[0], 1, signal[1]], np.int64))])
    found = w.add("Conv", [line, w.constant(kernel.astype(w.type(0).dtype))], {"strides": [stride]})
    parts = w.add("Reshape", [found, w.constant(np.array([signal[0], 2, bins, frames], np.int64))])
    w.end("Transpose", [parts], {"perm": [0, 3, 2, 1]})


def _kernel(size: int, bins: int, window: Array) -> Array:
    """Real parts of all frequencies, then imaginary ones: [2 x bins, 1, size]."""
    # Angles are reduced as integers: exact for long frames too.
    turns = np.outer(np.arange(bins), np.arange(size)) % size / size
    waves = np.concatenate((np.cos(2 * np.pi * turns), -np.sin(2 * np.pi * turns)))
    return (waves * window.astype(np.float64))[:, np.newaxis]
