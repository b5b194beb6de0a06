"""Which ops cost alike. A kind is a row of ``parameters.toml``; ops of one kind share its rates."""

from __future__ import annotations

MATRIX_KINDS = ("conv", "dilated", "stem", "group", "fully_connected", "matmul")
"""Done by the HMX. A stem is a convolution of an image, which has too few channels to fill the unit."""

VECTOR_KINDS = (
    "add",
    "multiply",
    "affine",
    "clamp",
    "unary",
    "silu",
    "softmax",
    "norm",
    "batchnorm",
    "pool",
    "reduce",
    "resize",
    "depthwise",
    "move",
    "concat",
    "gather",
    "transpose",
    "reshape",
    "image_norm",
    "image_layout",
)
"""Done by the HVX. ``affine`` has a constant operand; the last two are what happens to an image on its way in."""

HELPER_KINDS = ("convert", "stem_pack")
"""What the HVX does for the HMX: results back to their stored type, and pixels into the depth of a stem."""

_MEMBERS = {
    "add": "ElementWiseAdd ElementWiseSubtract ElementWiseMaximum ElementWiseMinimum ElementWiseEqual"
    " ElementWiseNotEqual ElementWiseGreater ElementWiseGreaterEqual ElementWiseLess ElementWiseLessEqual"
    " ElementWiseAnd ElementWiseOr ElementWiseXor ElementWiseNot ElementWiseSelect ElementWiseBinary",
    "multiply": "ElementWiseMultiply ElementWiseDivide ElementWiseSquaredDifference ElementWiseFloorDiv"
    " ElementWiseMod ElementWiseFmod",
    "affine": "Quantize Dequantize Convert Cast ElementWiseNeg ElementWiseAbs",
    "clamp": "Relu Relu1 Relu6 ReluMinMax Prelu",
    "unary": "Gelu Sigmoid Tanh Elu HardSwish ElementWiseNeuron ElementWiseExp ElementWiseLog ElementWisePower"
    " ElementWiseSquareRoot ElementWiseRsqrt ElementWiseSin ElementWiseCos ElementWiseAsin ElementWiseAtan"
    " ElementWiseCeil ElementWiseFloor ElementWiseRound ElementWiseSign ElementWiseSoftplus ElementWiseUnary",
    "softmax": "Softmax LogSoftmax MaskedSoftmax",
    "norm": "LayerNorm RmsNorm InstanceNorm GroupNorm L2Norm Lrn",
    "batchnorm": "Batchnorm",
    "pool": "PoolMax2d PoolAvg2d PoolMax3d PoolAvg3d",
    "reduce": "ReduceMean ReduceSum ReduceMax ReduceMin ReduceProd ReduceSumSquare Argmax Argmin TopK",
    "resize": "Resize ResizeBilinear ResizeNearestNeighbor GridSample",
    "move": "Split StridedSlice Pad Tile Pack UnPack CumulativeSum ExtractPatches",
    "concat": "Concat",
    "gather": "Gather GatherElements GatherNd ScatterElements ScatterNd OneHot",
    "transpose": "Transpose DepthToSpace SpaceToDepth ChannelShuffle SpaceToBatch BatchToSpace",
    "reshape": "Reshape Squeeze ExpandDims Shape",
}

_KIND_BY_OP = {op: kind for kind, ops in _MEMBERS.items() for op in ops.split()}


def kind_of_op(op: str) -> str | None:
    """The kind of an op by its name alone; None if no published network told what it costs."""
    return _KIND_BY_OP.get(op)
