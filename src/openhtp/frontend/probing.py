"""Changes to ONNX files that tools need: more outputs to look at, open dimensions fixed, finite masks."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import ModelProto, TensorProto, helper, numpy_helper, version_converter

from openhtp.core.errors import BadModel, error_context
from openhtp.frontend.fixing import Ask, Dims, Freeze, fix_inputs
from openhtp.frontend.onnx_reader import (
    MAX_FILE_BYTES,
    ModelSource,
    model_bytes,
    open_model,
    parse_model,
    read_external,
    refuse_non_tensors,
)

_BIASED = ("Conv", "ConvTranspose", "Gemm")
_TAIL = "_DequantizeLinear_Output"


@dataclass(frozen=True, slots=True)
class ValueProbe:
    """A value that the float and the quantized model have in common, and the node that makes it.

    The quantized model does not store the value between a Conv and its Relu. Such nodes make one probe, with the
    types of all of them. ``inputs`` are the values of other probes that this one depends on.
    """

    node: str
    op_type: str
    float_name: str
    quantized_name: str
    inputs: tuple[str, ...]


def find_probes(prepared: bytes, quantized: bytes) -> list[ValueProbe]:
    """Values of the float model that the quantized one stores in an encoding, in running order."""
    nodes = ModelProto.FromString(quantized).graph.node
    stored = {name for node in nodes for name in node.output}
    # A float model that is compared with itself stores every value under its own name.
    tail = _TAIL if any(node.op_type == "DequantizeLinear" for node in nodes) else ""
    proto = ModelProto.FromString(prepared)
    outputs = {value.name for value in proto.graph.output}
    probes = []
    # For values that are not stored: the values that they depend on, and the types of the nodes in between.
    hidden: dict[str, tuple[tuple[str, ...], str]] = {}
    known: set[str] = set()
    for node in proto.graph.node:
        sources = [((name,), "") if name in known else hidden.get(name, ((), "")) for name in node.input]
        inputs = tuple(dict.fromkeys(name for names, _ in sources for name in names))
        op_type = "+".join([*dict.fromkeys(kind for _, kind in sources if kind), node.op_type])
        for name in node.output:
            # The quantizer keeps an output's name for the dequantized value, and adds a tail to all others.
            after = name if name in outputs else name + tail
            if after in stored:
                probes.append(ValueProbe(node.name or name, op_type, name, after, inputs))
                known.add(name)
            else:
                hidden[name] = (inputs, op_type)
    return probes


def with_outputs(model: bytes, names: Iterable[str]) -> bytes:
    """The model with these values as further outputs."""
    proto = ModelProto.FromString(model)
    known = {value.name for value in proto.graph.output}
    proto.graph.output.extend(helper.make_empty_tensor_value_info(name) for name in names if name not in known)
    return model_bytes(proto)


def whole_model(source: ModelSource) -> Any:
    """The protobuf of a model, with the data that lies beside its file put inside."""
    proto, folder, where = open_model(source)
    with error_context(model=where):
        refuse_non_tensors(proto.graph)
    left = MAX_FILE_BYTES - proto.ByteSize()
    for tensor in proto.graph.initializer:
        if tensor.data_location == TensorProto.EXTERNAL:
            reference = {item.key: item.value for item in tensor.external_data}
            tensor.raw_data = read_external(reference, folder, tensor.name, most=max(0, left))
            left -= len(tensor.raw_data)
            tensor.data_location = TensorProto.DEFAULT
            del tensor.external_data[:]
    return proto


def with_lifted_constants(model: bytes) -> bytes:
    """The model with initializers instead of Constant nodes, which the quantizer mistakes for activations."""
    proto = parse_model(model)
    kept = []
    for node in proto.graph.node:
        values = [item.t for item in node.attribute if item.name == "value"]
        if node.op_type == "Constant" and not node.domain and values:
            values[0].name = node.output[0]
            proto.graph.initializer.append(values[0])
        else:
            kept.append(node)
    if len(kept) == len(proto.graph.node):
        return model
    lifted = ModelProto()
    lifted.CopyFrom(proto)
    del lifted.graph.node[:]
    lifted.graph.node.extend(kept)
    return model_bytes(lifted)


def with_own_biases(model: bytes) -> bytes:
    """The model with a bias of its own for each node: the quantizer's names for copies may be taken."""
    proto = parse_model(model)
    constants = {tensor.name: tensor for tensor in proto.graph.initializer}
    seen: set[str] = set()
    for node in proto.graph.node:
        name = node.input[2] if node.op_type in _BIASED and len(node.input) > 2 else ""
        if name in constants and name in seen:
            copy = proto.graph.initializer.add()
            copy.CopyFrom(constants[name])
            copy.name = node.input[2] = f"{name}/{node.output[0]}"
        seen.update(node.input)
    return model_bytes(proto)


def with_opset(model: bytes, least: int) -> bytes:
    """The model in an opset of at least this number."""
    proto = parse_model(model)
    version = next((item.version for item in proto.opset_import if item.domain in ("", "ai.onnx")), least)
    if version >= least:
        return model
    try:
        return model_bytes(version_converter.convert_version(proto, least))
    except (RuntimeError, ValueError, TypeError) as error:
        raise BadModel(
            f"opset {version} cannot be converted to {least}; export the model anew: {error}"
        ) from error


def without_unused_opsets(model: bytes) -> bytes:
    """The model with the opsets that its nodes need.

    ONNX Runtime writes all that it knows into a file, also those of operators which the process registered.
    """
    proto = parse_model(model)
    used = {"", "ai.onnx", *_domains(proto.graph.node), *(function.domain for function in proto.functions)}
    kept = [item for item in proto.opset_import if item.domain in used]
    if len(kept) == len(proto.opset_import):
        return model
    del proto.opset_import[:]
    proto.opset_import.extend(kept)
    return model_bytes(proto)


def _domains(nodes: Iterable[Any]) -> Iterator[str]:
    for node in nodes:
        yield node.domain
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                yield from _domains(graph.node)


def with_fixed_inputs(
    model: ModelSource,
    dims: Dims | None = None,
    freeze: Freeze | None = None,
    *,
    ask: Ask | None = None,
    may_stay_open: bool = False,
) -> bytes:
    """The model as one file in memory, with sizes and inputs fixed as ``fixing.fix_inputs`` does."""
    proto = whole_model(model)
    fix_inputs(proto, dims, freeze, ask, may_stay_open=may_stay_open)
    return model_bytes(proto)


# Attention masks that can be quantized. Exporters hide positions by adding minus infinity, or the lowest float,
# before a Softmax. Such a number makes a quantizer's steps so large that all scores become one. There, a hundred
# is as good as infinity: exp(-100) is almost 0.

LOWEST_MASK = -100.0
# No weight or bias lies below this.
_HIDES = -1e4
_FLOATS = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.DOUBLE)
# Operators that make and apply masks. A bound of a Clip or of a comparison is no mask.
_MAKE = ("Cast", "CastLike", "Concat", "Expand", "Gather", "Max", "Reshape", "Slice", "Tile", "Trilu", "Unsqueeze")
MASK_USES = frozenset(("Add", "Mul", "Where", *_MAKE))


def with_finite_masks(model: bytes) -> tuple[bytes, int]:
    """The model with -100 for numbers that hide positions, and the count of changed constants."""
    proto = parse_model(model)
    readers: dict[str, set[str]] = defaultdict(set)
    for node in proto.graph.node:
        for name in node.input:
            readers[name].add(node.op_type)
    changed = 0
    for tensor in proto.graph.initializer:
        if readers[tensor.name] and readers[tensor.name] <= MASK_USES:
            changed += _raise_mask(tensor)
    for node in proto.graph.node:
        if node.op_type == "ConstantOfShape":
            changed += sum(_raise_mask(item.t) for item in node.attribute if item.name == "value")
    return (proto.SerializeToString(), changed) if changed else (model, 0)


def _raise_mask(tensor: Any) -> bool:
    """Raise numbers that hide positions to -100, in place; returns whether there were any."""
    if tensor.data_type not in _FLOATS or tensor.data_location == TensorProto.EXTERNAL:
        return False
    array = numpy_helper.to_array(tensor)
    if not np.any(array <= _HIDES):
        return False
    raised = np.where(array <= _HIDES, array.dtype.type(LOWEST_MASK), array)
    tensor.CopyFrom(numpy_helper.from_array(raised, tensor.name))
    return True
