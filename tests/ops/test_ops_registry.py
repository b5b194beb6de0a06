"""The registry, the messages of refused calls, and the generated document."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from openhtp.core.dtype import DType
from openhtp.core.errors import InvalidArgument, UnsupportedOp
from openhtp.core.opcall import OpCall
from openhtp.core.quant import AxisScaleOffset, ScaleOffset
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.ops import find_op, op_names, resolve
from openhtp.ops._opdef import rows

ROOT = Path(__file__).parent.parent.parent


def test_the_document_is_up_to_date() -> None:
    location = importlib.util.spec_from_file_location("gen_ops_doc", ROOT / "tools" / "gen_ops_doc.py")
    assert location is not None
    assert location.loader is not None
    module = importlib.util.module_from_spec(location)
    location.loader.exec_module(module)
    assert (ROOT / "docs" / "ops.md").read_text(encoding="utf-8") == module.render()


def test_no_two_files_define_one_op() -> None:
    folder = ROOT / "src" / "openhtp" / "ops"
    defined = [
        opdef.name
        for path in sorted(folder.glob("[!_]*.py"))
        for opdef in importlib.import_module(f"openhtp.ops.{path.stem}").OPS
    ]
    assert sorted(defined) == list(op_names())


def test_an_unknown_op_names_its_neighbours() -> None:
    with pytest.raises(UnsupportedOp, match=r"'Sofmax'; did you mean Softmax") as caught:
        find_op("Sofmax")
    assert "docs/add-an-op.md" in str(caught.value)


def test_rows_expand_the_shorthand() -> None:
    one, two = rows("T T|s32 > T : u8 f16")
    assert one.text == "u8 u8|s32 > u8"
    assert one.accepts([DType.UFIXED_POINT_8, None], [DType.UFIXED_POINT_8])
    assert not one.accepts([DType.UFIXED_POINT_8, DType.FLOAT_16], [DType.UFIXED_POINT_8])
    assert two.accepts([DType.FLOAT_16, DType.SFIXED_POINT_32], [DType.FLOAT_16])
    (many,) = rows("f32* > f32")
    assert many.accepts([DType.FLOAT_32] * 5, [DType.FLOAT_32])


X = TensorSpec("x", (1, 8, 8, 4), DType.FLOAT_32, kind=TensorKind.APP_WRITE)
W = TensorSpec("w", (3, 3, 4, 6), DType.FLOAT_32, kind=TensorKind.STATIC)
Y = TensorSpec("y", (1, 8, 8, 6), DType.FLOAT_32)
GOOD = {"stride": [1, 1], "pad_amount": [[1, 1], [1, 1]]}


U8 = DType.UFIXED_POINT_8
X8 = TensorSpec("x", (1, 8, 8, 4), U8, ScaleOffset(0.1), TensorKind.APP_WRITE)
Y8 = TensorSpec("y", (1, 8, 8, 6), U8, ScaleOffset(0.1))
PER_ROW = TensorSpec("w", (3, 3, 4, 6), DType.SFIXED_POINT_8, AxisScaleOffset(0, (0.1,) * 3), TensorKind.STATIC)


def conv(w: TensorSpec = W, y: TensorSpec = Y, x: TensorSpec = X, **params: Any) -> OpCall:
    return OpCall("Conv2d", "c1", (x, w), (y,), {**GOOD, **params})


def test_defaults_are_filled_in() -> None:
    node = resolve(conv())
    assert node.params["group"] == 1
    assert node.ints("dilation") == (1, 1)
    assert node.pairs("pad_amount") == ((1, 1), (1, 1))


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (conv(stride=[1, 1, 1]), "stride and dilation take 2 numbers"),
        (conv(stride=3), "'stride' has shape []; expected a tensor of rank 1"),
        (conv(stride=[0, 1]), "stride 0"),
        (conv(stride=[-1, 1]), "expected uint32"),
        (conv(stride=[1.5, 1]), "expected uint32"),
        (conv(group=3), "3 groups do not divide 4 input"),
        (conv(group=2), "weights take 4 channels per group; input has 4 in 2 groups"),
        (conv(group=[1]), "'group' has shape [1]; expected a scalar"),
        (conv(group="many"), "'group' is 'many'"),
        (conv(dilation=[9, 9]), "larger than the padded input"),
        (conv(pad_amount=[[3, 3], [1, 1]], y=TensorSpec("y", (1, 12, 8, 6), DType.FLOAT_32)), "smaller than the"),
        (conv(w=TensorSpec("w", (3, 3, 4), DType.FLOAT_32)), "expected rank 4"),
        (conv(w=PER_ROW, y=Y8, x=X8), "scales along the output channels"),
        (OpCall("PoolMax2d", "p", (X,), (X,), {"rounding_mode": "UP"}), "'UP'; expected FLOOR (0), CEIL (1)"),
    ],
)
def test_a_refusal_says_what_was_wrong(call: OpCall, words: str) -> None:
    if call.op == "PoolMax2d":
        call = OpCall(
            call.op, call.name, call.inputs, call.outputs, {**GOOD, "filter_size": [1, 1], **call.params}
        )
    with pytest.raises((InvalidArgument, UnsupportedOp)) as caught:
        resolve(call)
    assert words in str(caught.value)
    assert caught.value.code == 3110


def test_a_choice_may_be_given_by_name() -> None:
    params = {**GOOD, "pad_amount": np.zeros((2, 2), np.uint32), "filter_size": [1, 1], "rounding_mode": "CEIL"}
    assert resolve(OpCall("PoolMax2d", "p", (X,), (X,), params)).params["rounding_mode"] == 1
