"""Inputs that ONNX lets a model compute and the HTP needs to know when a graph is compiled."""

from __future__ import annotations

_KINDS = ("L1", "L2", "LogSum", "LogSumExp", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")
_REDUCTIONS = tuple(f"Reduce{kind}" for kind in _KINDS)

STATIC_INPUTS: dict[str, tuple[int, ...]] = {
    **dict.fromkeys(_REDUCTIONS, (1,)),
    "BatchNormalization": (1, 2, 3, 4),
    "Clip": (1, 2),
    "ConstantOfShape": (0,),
    "CumSum": (1,),
    "DequantizeLinear": (1, 2),
    "Dropout": (1, 2),
    "Expand": (1,),
    "GRU": (4,),
    "LSTM": (1, 2, 3, 4, 7),
    "NonMaxSuppression": (2, 3, 4),
    "Pad": (1, 2, 3),
    "QuantizeLinear": (1, 2),
    "RNN": (4,),
    "Range": (0, 1, 2),
    "Reshape": (1,),
    "Resize": (1, 2, 3),
    "STFT": (1, 2, 3),
    "Slice": (1, 2, 3, 4),
    "Split": (1,),
    "Squeeze": (1,),
    "Tile": (1,),
    "TopK": (1,),
    "Trilu": (1,),
    "Unsqueeze": (1,),
    "Upsample": (1,),
}
