"""Reads ONNX files into plain data.

Files may come from anywhere, so the reader trusts nothing in them. It checks sizes before it takes memory, insists
that external data lies beside the model, puts nodes in order and refuses cycles. Every refusal names the place.
"""

from __future__ import annotations

import contextlib
import graphlib
import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import onnx.defs
import onnx.inliner
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
from onnx import AttributeProto, GraphProto, ModelProto, NodeProto, TensorProto, helper, numpy_helper

from openhtp.core.checks import path_of, shown
from openhtp.core.errors import BadModel, InvalidArgument, QnnError, UnsupportedFeature, error_context
from openhtp.core.files import read_file
from openhtp.core.units import GIB, bytes_in_words
from openhtp.frontend.fixing import Ask, Dims, Freeze, fix_inputs
from openhtp.frontend.model import Array, Branch, OnnxModel, OnnxNode, ValueType
from openhtp.frontend.own_operators import type_of

OLDEST_OPSET = 7
MAX_FILE_BYTES = (1 << 31) - 1
# Many tensors may name the same bytes of an external file. No session holds more than this, even quantized.
_MAX_WEIGHT_BYTES = 16 * GIB
_DOMAINS = {"ai.onnx": ""}
_NARROW = {TensorProto.INT4: "int4", TensorProto.UINT4: "uint4"}

_ORT_FORMAT = b"ORTM"

ModelSource: TypeAlias = str | os.PathLike[str] | bytes | ModelProto
"""What a model is read from: a file, its bytes, or what ``onnx.load`` gives."""


def read_model(
    source: ModelSource, dims: Dims | None = None, freeze: Freeze | None = None, *, ask: Ask | None = None
) -> OnnxModel:
    """Read a model. ``fixing.fix_inputs`` explains ``dims``, ``freeze`` and ``ask``."""
    proto, folder, where = open_model(source)
    with error_context(model=where):
        refuse_non_tensors(proto.graph)
        proto = inlined(proto)
        fix_inputs(proto, dims, freeze, ask)
        return _ModelReader(proto, folder).model()


def open_model(source: ModelSource) -> tuple[Any, Path | None, str]:
    """The protobuf of a model, the folder of its file, and what messages call it."""
    folder: Path | None = None
    if isinstance(source, bytes | bytearray | memoryview):
        data, where = bytes(source), "model"
    elif isinstance(source, ModelProto):
        data, where = model_bytes(source), "model"
    else:
        path = check_path(source)
        where, folder = path.name, path.parent
        data = read_model_file(path)
    with error_context(model=where):
        return parse_model(data), folder, where


def model_bytes(proto: Any) -> bytes:
    """A model as the bytes of its file."""
    try:
        data: bytes = proto.SerializeToString()
    except ValueError as error:
        raise BadModel("the model has more than 2 GB of weights, which one file cannot hold") from error
    return data


def parse_model(data: bytes) -> Any:
    """The protobuf of a model. Raises BadModel when the bytes are not one."""
    if not data:
        raise BadModel("the file is empty; expected an ONNX model")
    if data[4:8] == _ORT_FORMAT:
        raise BadModel(
            "the model is in ONNX Runtime's own format (.ort); give the ONNX model that it was made from"
        )
    try:
        proto = ModelProto.FromString(data)
    except (DecodeError, ValueError, RecursionError) as error:
        raise BadModel(f"the bytes are not an ONNX model: {error}") from error
    if not proto.HasField("graph") or not proto.opset_import:
        raise BadModel("the bytes are not an ONNX model: there is no graph, or no opset is named")
    return proto


def read_model_file(path: Path) -> bytes:
    """Bytes of a model file. Protobuf limits them to 2 GiB: larger weights go to external data."""
    return read_file(path, most=MAX_FILE_BYTES, what="an ONNX model", error=BadModel)


def check_path(source: object) -> Path:
    """The path of a model's file."""
    path = path_of(source)
    if path is None:
        raise InvalidArgument(f"model is {shown(source)}; expected the path of a file, bytes, or a ModelProto")
    return path


_KINDS = {
    "sequence_type": "sequence",
    "map_type": "map",
    "optional_type": "value that may be missing",
    "sparse_tensor_type": "sparse tensor",
    "opaque_type": "value of a type of its own",
}


def refuse_non_tensors(graph: Any) -> None:
    """Raise UnsupportedFeature if an input or output is no tensor but, for example, a map of ONNX-ML."""
    for side, values in (("input", graph.input), ("output", graph.output)):
        for value in values:
            kind = value.type.WhichOneof("value")
            if kind not in (None, "tensor_type"):
                raise UnsupportedFeature(
                    f"{side} {value.name!r} is a {_KINDS.get(kind, kind)}; expected tensors only. Leave it out of"
                    " the model (a ZipMap at its end: export with zipmap=False), or run the model with"
                    " openhtp.InferenceSession, which leaves such models to the CPU"
                )


class _ModelReader:
    def __init__(self, proto: Any, folder: Path | None) -> None:
        self._proto = proto
        self._graph: GraphProto = proto.graph
        self._folder = folder
        self._narrow: dict[str, str] = {}
        self._weight_bytes = 0
        self._opsets = {_DOMAINS.get(item.domain, item.domain): item.version for item in proto.opset_import}

    def model(self) -> OnnxModel:
        self._check_opset()
        if self._graph.sparse_initializer:
            raise UnsupportedFeature("sparse initializers are not supported; store them as dense tensors")
        constants: dict[str, Array] = {}
        for tensor in self._graph.initializer:
            if tensor.name in constants:
                raise BadModel(f"initializer {tensor.name!r} is defined twice")
            constants[tensor.name] = self._constant(tensor)
        inputs = {v.name: self._input_type(v) for v in self._graph.input if v.name not in constants}
        if not self._graph.output:
            raise BadModel("the graph has no outputs")
        for value in (*self._graph.input, *self._graph.output):
            if not value.name:
                raise BadModel("an input or output of the graph has no name")
        proto = self._proto
        return OnnxModel(
            name=self._graph.name or "graph",
            nodes=self._ordered(set(inputs) | set(constants)),
            inputs=inputs,
            outputs={
                value.name: _declared_type(value) if value.type.tensor_type.elem_type else None
                for value in self._graph.output
            },
            constants=constants,
            narrow=self._narrow,
            metadata={item.key: item.value for item in proto.metadata_props},
            producer=proto.producer_name,
            version=proto.model_version,
            description=proto.doc_string,
            domain=proto.domain,
            declared=self._declared(),
        )

    def _declared(self) -> dict[str, ValueType]:
        """Usable types that the file declares, for operators without a rule for shapes."""
        declared = {}
        for value in (*self._graph.value_info, *self._graph.output):
            kind = value.type.tensor_type
            if kind.elem_type and kind.HasField("shape") and all(dim.dim_value > 0 for dim in kind.shape.dim):
                with contextlib.suppress(QnnError):
                    declared[value.name] = _declared_type(value)
        return declared

    def _check_opset(self) -> None:
        version, newest = self._opsets.get("", OLDEST_OPSET), onnx.defs.onnx_opset_version()
        if not OLDEST_OPSET <= version <= newest:
            raise UnsupportedFeature(
                f"the model uses opset {version}; expected {OLDEST_OPSET} to {newest}"
                " (onnx.version_converter can change it)"
            )

    # Values

    def _input_type(self, value: Any) -> ValueType:
        if not value.type.HasField("tensor_type"):
            raise UnsupportedFeature(f"input {value.name!r} is not a tensor")
        return _declared_type(value)

    def _constant(self, tensor: Any) -> Array:
        if tensor.data_type in _NARROW:
            self._narrow[tensor.name] = _NARROW[tensor.data_type]
        array = read_tensor(tensor, self._folder)
        self._weight_bytes += array.nbytes
        if self._weight_bytes > _MAX_WEIGHT_BYTES:
            raise BadModel(f"the weights take more than {bytes_in_words(_MAX_WEIGHT_BYTES)} in all")
        return array

    # Nodes

    def _ordered(self, known: set[str]) -> tuple[OnnxNode, ...]:
        """Nodes in the order of their data; ties as in the file."""
        protos = list(self._graph.node)
        makers: dict[str, int] = {}
        for index, proto in enumerate(protos):
            for name in proto.output:
                if name and (name in makers or name in known):
                    raise BadModel(f"value {name!r} is defined twice")
                if name:
                    makers[name] = index
        sorter = graphlib.TopologicalSorter[int]()
        in_order = True
        for index, proto in enumerate(protos):
            reads = node_reads(proto)
            before = {makers[name] for name in reads if name in makers}
            in_order = in_order and all(other < index for other in before)
            missing = [name for name in reads if name not in makers and name not in known]
            if missing:
                raise BadModel(f"{_title(proto, index)} reads {missing[0]!r}, which nothing defines")
            sorter.add(index, *before)
        for value in self._graph.output:
            if value.name not in makers and value.name not in known:
                raise BadModel(f"output {value.name!r} is defined by nothing")
        try:
            order: Iterable[int] = range(len(protos)) if in_order else list(sorter.static_order())
        except graphlib.CycleError as error:
            ring = [_title(protos[index], index) for index in error.args[1][:4]]
            raise BadModel(f"the graph is cyclic: {' -> '.join(ring)}") from None
        return self._named([(index, protos[index]) for index in order])

    def _named(self, protos: list[tuple[int, NodeProto]]) -> tuple[OnnxNode, ...]:
        names: set[str] = set()
        nodes = []
        for index, proto in protos:
            name = proto.name or f"{proto.op_type}_{index}"
            while name in names:
                name = f"{name}_{index}"
            names.add(name)
            domain = _DOMAINS.get(proto.domain, proto.domain)
            with error_context(node=name):
                attrs = {item.name: self._attribute(item, proto) for item in proto.attribute}
            opset, inputs, outputs = self._opsets.get(domain, 1), tuple(proto.input), tuple(proto.output)
            nodes.append(OnnxNode(type_of(domain, proto.op_type), domain, name, inputs, outputs, attrs, opset))
        return tuple(nodes)

    def _attribute(self, proto: Any, node: NodeProto) -> Any:
        if proto.type == AttributeProto.GRAPH and node.op_type == "If":
            return self._branch(proto.g)
        return read_attribute(proto, self._folder)

    def _branch(self, graph: GraphProto) -> Branch:
        """One side of an If. Names that it does not define belong to the surrounding graph."""
        constants = {tensor.name: self._constant(tensor) for tensor in graph.initializer}
        outputs = tuple(value.name for value in graph.output)
        return Branch(self._named(list(enumerate(graph.node))), outputs, constants)


def read_attribute(proto: Any, folder: Path | None = None) -> Any:
    """An attribute as a Python value or an array."""
    if proto.type in (AttributeProto.GRAPH, AttributeProto.GRAPHS):
        raise UnsupportedFeature(
            f"attribute {proto.name!r} is a graph; Loop and Scan are not supported: unroll it when exporting"
        )
    if proto.type == AttributeProto.TENSOR:
        return read_tensor(proto.t, folder)
    try:
        value = helper.get_attribute_value(proto)
        if isinstance(value, bytes):
            return value.decode() if proto.name != "ep_cache_context" else value
        if proto.type == AttributeProto.STRINGS:
            return [item.decode() for item in value]
    except (ValueError, UnicodeDecodeError) as error:
        raise BadModel(f"attribute {proto.name!r} cannot be read: {error}") from error
    if value is None:
        raise BadModel(f"attribute {proto.name!r} has no value")
    return list(value) if proto.type in (AttributeProto.INTS, AttributeProto.FLOATS) else value


def node_reads(proto: NodeProto) -> list[str]:
    """Names that a node reads, including those that the graphs inside it take from the surrounding graph."""
    names = [name for name in proto.input if name]
    for item in proto.attribute:
        if item.type == AttributeProto.GRAPH:
            own = {value.name for value in (*item.g.input, *item.g.initializer)}
            own.update(name for inner in item.g.node for name in inner.output)
            inside = [name for inner in item.g.node for name in node_reads(inner)]
            inside.extend(value.name for value in item.g.output)
            names.extend(name for name in inside if name not in own)
    return names


def read_tensor(tensor: Any, folder: Path | None) -> Array:
    """The numbers of a tensor of a file in ``folder``; their count is checked against its dims."""
    name = tensor.name or "constant"
    if any(size < 0 for size in tensor.dims):
        raise BadModel(f"tensor {name!r} has a negative dimension: {list(tensor.dims)}")
    if tensor.data_type == TensorProto.STRING:
        raise UnsupportedFeature(f"tensor {name!r} holds strings")
    dtype = _numpy_type(tensor.data_type, name)
    elements = math.prod(tensor.dims)
    try:
        if tensor.data_location == TensorProto.EXTERNAL:
            reference = {item.key: item.value for item in tensor.external_data}
            raw = read_external(reference, folder, name, most=_stored_bytes(tensor, dtype, elements))
            return _from_bytes(raw, tensor, dtype, elements)
        if tensor.HasField("raw_data"):
            return _from_bytes(tensor.raw_data, tensor, dtype, elements)
        stored = max(len(getattr(tensor, field)) for field in _FIELDS)
        if elements > 8 * stored:
            raise BadModel(f"tensor {name!r} has {elements} elements by its dims and {stored} in the file")
        array: Array = numpy_helper.to_array(tensor)
    except (ValueError, TypeError, OverflowError) as error:
        raise BadModel(f"tensor {name!r} cannot be read: {error}") from error
    return array.astype(dtype) if array.dtype != dtype else array


_FIELDS = ("float_data", "int32_data", "int64_data", "double_data", "uint64_data")


def _stored_bytes(tensor: Any, dtype: np.dtype[Any], elements: int) -> int:
    return (elements + 1) // 2 if tensor.data_type in _NARROW else elements * dtype.itemsize


def _from_bytes(raw: bytes, tensor: Any, dtype: np.dtype[Any], elements: int) -> Array:
    wanted = _stored_bytes(tensor, dtype, elements)
    if len(raw) != wanted:
        raise BadModel(f"tensor {tensor.name!r} takes {wanted} bytes by its dims and has {len(raw)}")
    if tensor.data_type not in _NARROW:
        return np.frombuffer(raw, dtype.newbyteorder("<")).reshape(tuple(tensor.dims)).astype(dtype, copy=False)
    packed = np.frombuffer(raw, np.uint8)
    nibbles = np.stack((packed & 15, packed >> 4), 1).reshape(-1)[:elements]
    if tensor.data_type == TensorProto.INT4:
        nibbles = ((nibbles.astype(np.int8) ^ 8) - 8).astype(np.int8)
    return nibbles.reshape(tuple(tensor.dims))


def _declared_type(value: Any) -> ValueType:
    kind = value.type.tensor_type
    return ValueType(value_type(kind.elem_type, value.name), tuple(int(dim.dim_value) for dim in kind.shape.dim))


def value_type(elem_type: int, name: str) -> np.dtype[Any]:
    """Numpy type of a value that is computed; 4-bit integers are for weights only."""
    if elem_type in _NARROW:
        raise UnsupportedFeature(f"value {name!r} has 4 bits; the HTP takes those as constant weights only")
    return _numpy_type(elem_type, name)


def _numpy_type(elem_type: int, name: str) -> np.dtype[Any]:
    """Numpy type of an ONNX element type; 4-bit integers take a byte each."""
    if elem_type in _NARROW:
        return np.dtype(np.int8 if elem_type == TensorProto.INT4 else np.uint8)
    try:
        dtype: np.dtype[Any] = np.dtype(helper.tensor_dtype_to_np_dtype(elem_type))
    except KeyError:
        raise BadModel(f"value {name!r} has the unknown element type {elem_type}") from None
    if dtype.kind not in "biuf":
        word = "string" if dtype.kind == "O" else dtype
        raise UnsupportedFeature(f"value {name!r} has element type {word}, which the HTP does not know")
    return dtype


def _title(proto: NodeProto, index: int) -> str:
    return f"node {proto.name or index!r} ({proto.op_type})"


def read_external(reference: Mapping[str, str], folder: Path | None, tensor: str, *, most: int) -> bytes:
    """At most ``most`` bytes of a tensor, from a regular file whose resolved path is inside the model's folder."""
    location = reference.get("location", "")
    if folder is None:
        raise BadModel(f"tensor {tensor!r} is in the file {location!r}; load the model by its path, not its bytes")
    root = folder.resolve()
    try:
        path = (root / location).resolve()
        is_file = path.is_file()
    except (OSError, RuntimeError, ValueError) as error:
        raise BadModel(f"tensor {tensor!r} is in {location[:80]!r}, which is no file name: {error}") from error
    if not location or not path.is_relative_to(root) or path == root:
        raise BadModel(
            f"tensor {tensor!r} is in {location!r}, outside the model's folder; external data must lie inside it"
        )
    try:
        offset, length = int(reference.get("offset", 0)), int(reference.get("length", -1))
    except ValueError:
        raise BadModel(f"tensor {tensor!r} has external data at no number: {dict(reference)}") from None
    if not is_file:
        raise BadModel(f"tensor {tensor!r} is in {location!r}, which is not a file")
    size = path.stat().st_size
    if length < 0:
        length = size - offset
    if offset < 0 or length < 0 or offset + length > size:
        raise BadModel(
            f"tensor {tensor!r} takes bytes {offset}..{offset + length} of {location!r}, which has {size}"
        )
    return read_file(path, most=most, what=f"tensor {tensor!r}", error=BadModel, offset=offset, nbytes=length)


def external_files(source: Path) -> list[Path]:
    """Files beside a model that hold data of its initializers, each once. Missing files are left out."""
    try:
        model = ModelProto.FromString(read_model_file(source))
    except DecodeError:
        return []  # the reader says what is wrong with it
    names = {
        entry.value
        for tensor in model.graph.initializer
        if tensor.data_location == TensorProto.EXTERNAL
        for entry in tensor.external_data
        if entry.key == "location"
    }
    paths = [source.parent / name for name in sorted(names)]
    return [path for path in paths if path.is_file()]


# Functions that call functions multiply: a small file must not become an endless graph.
_MAX_NODES = 1 << 18


def inlined(proto: Any) -> Any:
    """The model without functions of its own. Raises BadModel when they call each other in a circle."""
    if not proto.functions:
        return proto
    sizes = _function_sizes(proto)
    if sum(sizes.get(_operator(node), 1) for node in proto.graph.node) > _MAX_NODES:
        raise BadModel(f"the model's functions stand for more than {_MAX_NODES} nodes")
    try:
        return onnx.inliner.inline_local_functions(proto)
    except (RuntimeError, ValueError, TypeError) as error:
        raise BadModel(f"the model's functions cannot be put in place of their calls: {error}") from error


def _function_sizes(proto: Any) -> dict[tuple[str, str], int]:
    """How many nodes each function stands for."""
    functions = {(function.domain, function.name): function for function in proto.functions}
    calls = {
        key: {_operator(node) for node in function.node if _operator(node) in functions}
        for key, function in functions.items()
    }
    try:
        order = list(graphlib.TopologicalSorter(calls).static_order())
    except graphlib.CycleError as error:
        names = " -> ".join(name for _, name in error.args[1])
        raise BadModel(f"functions of the model call each other in a circle: {names}") from None
    sizes: dict[tuple[str, str], int] = {}
    for key in order:
        sizes[key] = sum(sizes.get(_operator(node), 1) for node in functions[key].node)
    return sizes


def _operator(node: Any) -> tuple[str, str]:
    return node.domain, node.op_type


# A model with other constants than those in its file.


def with_constants(source: ModelSource, tensors: Mapping[str, Array], files: Mapping[str, bytes]) -> bytes:
    """The model with these tensors in place of its constants of the same names, and all data inside.

    ``files`` has the external data by file name.
    """
    proto, folder, _ = open_model(source)
    known = {tensor.name: tensor for tensor in proto.graph.initializer}
    unknown = [name for name in tensors if name not in known]
    if unknown:
        raise InvalidArgument(f"the model has no initializer {shown(unknown[0])}; it has {shown(list(known))}")
    for name, tensor in known.items():
        if name in tensors:
            tensor.CopyFrom(numpy_helper.from_array(_fitting_constant(name, tensor, tensors[name]), name))
        elif tensor.data_location == TensorProto.EXTERNAL:
            tensor.CopyFrom(numpy_helper.from_array(_external_constant(tensor, folder, files), name))
    return model_bytes(proto)


def _fitting_constant(name: str, tensor: Any, array: Array) -> Array:
    wanted = numpy_helper.from_array(np.empty(0, array.dtype)).data_type
    if list(array.shape) != list(tensor.dims) or wanted != tensor.data_type:
        kind = TensorProto.DataType.Name(tensor.data_type).lower()
        raise InvalidArgument(
            f"initializer {name!r} is {array.dtype}{list(array.shape)}; the model has {kind}{list(tensor.dims)}"
        )
    return np.ascontiguousarray(array)


def _external_constant(tensor: Any, folder: Any, files: Mapping[str, bytes]) -> Array:
    reference = {item.key: item.value for item in tensor.external_data}
    data = files.get(reference.get("location", ""))
    if data is None:
        return read_tensor(tensor, folder)
    try:
        offset = int(reference.get("offset", 0))
        length = int(reference.get("length", len(data) - offset))
    except ValueError:
        raise BadModel(f"tensor {tensor.name!r} has external data at no number: {reference}") from None
    if not 0 <= offset <= offset + length <= len(data):
        raise BadModel(
            f"tensor {tensor.name!r} takes bytes {offset}..{offset + length} of a file of {len(data)} bytes"
        )
    inside = TensorProto(name=tensor.name, data_type=tensor.data_type, dims=tensor.dims)
    inside.raw_data = data[offset : offset + length]
    return read_tensor(inside, None)
