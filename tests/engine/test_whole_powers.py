"""Powers with whole exponents, and products of unsigned integers: where the runtime's own operators need care."""

from __future__ import annotations

import numpy as np

from openhtp.core.dtype import DType
from openhtp.core.opcall import OpCall
from openhtp.core.quant import ScaleOffset
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.engine.ort import OrtEngine
from vendor_agreement.differential import exact_results, run_calls


def spec(name: str, shape: tuple[int, ...], dtype: DType, quant: ScaleOffset | None = None) -> TensorSpec:
    return TensorSpec(name, shape, dtype, quant, TensorKind.APP_READ if name == "y" else TensorKind.APP_WRITE)


def test_negative_numbers_have_whole_powers() -> None:
    base = spec("x", (256,), DType.UFIXED_POINT_8, ScaleOffset(1 / 64, -128))
    powers = spec("n", (256,), DType.INT_32)
    out = spec("y", (256,), DType.UFIXED_POINT_8, ScaleOffset(1 / 16, -128))
    call = OpCall("ElementWisePower", "p", (base, powers), (out,))
    stored = {"x": np.arange(256, dtype=np.uint8), "n": (np.arange(256) % 4).astype(np.int32)}
    real = (np.arange(256) - 128) / 64
    np.testing.assert_allclose(exact_results(call, stored)[0], real ** stored["n"])
    wanted = out.quant.quantize(real ** stored["n"], 0, 255)
    np.testing.assert_array_equal(run_calls([call], stored, OrtEngine())["y"], wanted)


def test_products_of_unsigned_integers_keep_their_low_bits() -> None:
    x, z, out = (spec(name, (4,), DType.UINT_32) for name in "xzy")
    call = OpCall("ElementWiseMultiply", "m", (x, z), (out,))
    stored = {
        "x": np.array([3, 2**31, 2**32 - 1, 65537], np.uint32),
        "z": np.array([5, 2, 2**32 - 1, 65537], np.uint32),
    }
    result = run_calls([call], stored, OrtEngine())["y"]
    np.testing.assert_array_equal(result, [15, 0, 1, (65537**2) % 2**32])
