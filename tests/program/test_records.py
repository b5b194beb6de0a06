"""Encodings as they are stored: few bytes, the same numbers, and nothing that does not fit."""

from __future__ import annotations

import struct

import pytest

from openhtp.core.errors import BadBinary, InvalidArgument
from openhtp.core.quant import AxisScaleOffset, ScaleOffset
from openhtp.program.records import PerAxis, build_encoding, record_encoding

SHAPE = (3, 4)
EXACT, INEXACT = (0.5, 0.25, 1.0, 3.0), (0.1, 0.2, 0.3, 1e300)


@pytest.mark.parametrize(
    ("encoding", "nbytes"),
    [
        (AxisScaleOffset(1, EXACT), 16),
        (AxisScaleOffset(1, INEXACT), 32),
        (AxisScaleOffset(1, EXACT, (0, -128, 0, 5)), 32),
        (AxisScaleOffset(1, EXACT, (0, 0, 0, (1 << 32) - 1)), 48),
        (AxisScaleOffset(0, (1e-300, 0.5, 0.5), (-(1 << 31), 0, 0)), 36),
    ],
)
def test_per_axis_encodings_are_the_same_in_few_bytes(encoding: AxisScaleOffset, nbytes: int) -> None:
    stored = record_encoding(encoding)
    assert isinstance(stored, PerAxis)
    assert len(stored.scales) + len(stored.offsets) == nbytes
    assert build_encoding("t", SHAPE, stored) == encoding


def test_others_are_as_they_were() -> None:
    for encoding in (None, ScaleOffset(0.1, -3)):
        assert build_encoding("t", SHAPE, record_encoding(encoding)) == encoding


SCALES = struct.pack("<4f", *EXACT)


@pytest.mark.parametrize(
    "stored",
    [
        PerAxis(2, SCALES),
        PerAxis(0, SCALES),
        PerAxis(1, b""),
        PerAxis(1, SCALES[:-1]),
        PerAxis(1, SCALES + b"\0" * 4),
        PerAxis(1, SCALES, b"\0"),
        PerAxis(1, SCALES, b"\0" * 20),
        PerAxis(1 << 61, SCALES),
    ],
)
def test_what_does_not_fit_its_tensor(stored: PerAxis) -> None:
    with pytest.raises(BadBinary, match="tensor 't' has a per-axis encoding that does not fit its shape"):
        build_encoding("t", SHAPE, stored)


@pytest.mark.parametrize("scale", [0.0, -1.0, float("nan"), float("inf")])
def test_scales_that_cannot_be(scale: float) -> None:
    with pytest.raises(InvalidArgument, match=r"scales\[2\]"):
        build_encoding("t", SHAPE, PerAxis(1, struct.pack("<4f", 1.0, 1.0, scale, 1.0)))
