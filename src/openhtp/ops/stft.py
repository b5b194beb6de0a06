"""Stft: the spectrum of a signal, frame by frame."""

from __future__ import annotations

import numpy as np

from openhtp.core.dtype import DType
from openhtp.ops._node import Arrays, Emitter, Node, Results, Shapes
from openhtp.ops._opdef import OpDef, Param, Port, Sample, Work, rows
from openhtp.ops._shapes import refuse


def _length(node: Node) -> int:
    """Samples in a frame: as the parameter says, or as long as the window is."""
    if node.params["frame_length"]:
        return int(node.params["frame_length"])
    return int(node.shape(1)[0]) if node.has(1) else 0


def _infer(node: Node) -> Shapes:
    shape, length, step = node.shape(), _length(node), int(node.params["frame_step"])
    if len(shape) not in (2, 3) or (len(shape) == 3 and shape[2] != 1):
        refuse(node, f"a signal of shape {list(shape)}; expected [batch, samples] of real numbers")
    if not 0 < length <= shape[1] or step < 1:
        refuse(node, f"frames of {length} samples, {step} apart; expected 1 to {shape[1]}, at least 1 apart")
    if node.has(1) and node.shape(1) != (length,):
        refuse(node, f"a window of shape {list(node.shape(1))}; expected [{length}]")
    bins = length // 2 + 1 if node.params["onesided"] else length
    return ((shape[0], (shape[1] - length) // step + 1, bins, 2),)


def _reference(node: Node, arrays: Arrays) -> Results:
    length, step = _length(node), int(node.params["frame_step"])
    signal = arrays[0].reshape(arrays[0].shape[:2])
    frames = np.lib.stride_tricks.sliding_window_view(signal, length, axis=1)[:, ::step]
    if node.has(1):
        frames = frames * arrays[1]
    spectra = np.fft.fft(frames, axis=-1)[..., : node.outputs[0].shape[2]]
    return (np.stack((spectra.real, spectra.imag), axis=-1),)


def _lower(node: Node, e: Emitter) -> None:
    """A convolution with the cosines and sines of every bin, the window folded in where it is constant."""
    length, step, bins = _length(node), int(node.params["frame_step"]), node.outputs[0].shape[2]
    turns = 2 * np.pi * np.outer(np.arange(bins), np.arange(length)) / length
    waves = np.stack((np.cos(turns), -np.sin(turns)), axis=1).reshape(2 * bins, 1, length).astype(np.float32)
    kernel = e.const(waves)
    if node.has(1):
        kernel = e.node("Mul", [kernel, e.value(1)])
    batch, samples = node.shape()[:2]
    signal = e.node("Reshape", [e.value(0), e.ints([batch, 1, samples])])
    spectra = e.node("Conv", [signal, kernel], strides=[step])
    frames = node.outputs[0].shape[1]
    apart = e.node("Reshape", [spectra, e.ints([batch, bins, 2, frames])])
    e.put(0, e.node("Transpose", [apart], perm=[0, 3, 1, 2]))


OPS = (
    OpDef(
        name="Stft",
        summary="spectra of frames of in[0], of frame_length samples and frame_step apart, windowed by in[1]",
        inputs=(Port("in[0]"), Port("in[1]", optional=True)),
        types=rows("T T > T : f16 f32", "T > T : f16 f32"),
        infer=_infer,
        reference=_reference,
        lower=_lower,
        work=lambda node: Work.on(node, macs=node.outputs[0].elements * _length(node)),
        params=(
            Param("frame_step", DType.UINT_32, mandatory=True),
            Param("frame_length", DType.UINT_32, default=0),
            Param("onesided", DType.BOOL_8, default=True),
        ),
        max_rank=4,
        samples=(
            Sample(((1, 40), (16,)), {"frame_step": 8, "frame_length": 16}, low=-1.0, high=1.0),
            Sample(((2, 20),), {"frame_step": 4, "frame_length": 8, "onesided": False}, low=-1.0, high=1.0),
        ),
    ),
)
