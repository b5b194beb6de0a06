"""Quantization for the HTP, by onnxruntime's own quantizer with its QNN pre-processing and recipe.

This module repeats nothing of that quantizer: it feeds it, keeps it quiet, leaves no file behind, and makes sure
that the HTP takes the result.
"""

from __future__ import annotations

import difflib
import logging
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from onnx import numpy_helper

from openhtp.core.checks import items_of, shown
from openhtp.core.errors import BadModel, InvalidArgument, UnsupportedError, UnsupportedFeature
from openhtp.engine.onnxruntime import part
from openhtp.frontend.branches import settled
from openhtp.frontend.fixing import Dims, Freeze
from openhtp.frontend.onnx_import import RECURRENT, import_model
from openhtp.frontend.onnx_reader import ModelSource, model_bytes, parse_model, read_model
from openhtp.frontend.probing import (
    with_finite_masks,
    with_fixed_inputs,
    with_lifted_constants,
    with_opset,
    with_own_biases,
    without_unused_opsets,
)
from openhtp.frontend.typing_pass import settle_types

Feeds = Mapping[str, npt.NDArray[Any]]

_ort = part("quantization")
_qnn = part("quantization.execution_providers.qnn")

_TYPES = {
    "u8": _ort.QuantType.QUInt8,
    "s8": _ort.QuantType.QInt8,
    "u16": _ort.QuantType.QUInt16,
    "s16": _ort.QuantType.QInt16,
    "s4": _ort.QuantType.QInt4,
}
ACTIVATIONS = ("u8", "u16", "s8", "s16")
WEIGHTS = ("u8", "s8", "s16", "s4")
_METHODS = {
    "minmax": _ort.CalibrationMethod.MinMax,
    "entropy": _ort.CalibrationMethod.Entropy,
    "percentile": _ort.CalibrationMethod.Percentile,
}
METHODS = tuple(_METHODS)
_WHY_FLOAT = "the HTP computes it in floats"
_QUANTIZED_OPS = frozenset(
    (
        *("QuantizeLinear", "DequantizeLinear", "DynamicQuantizeLinear", "ConvInteger", "MatMulInteger"),
        *("QLinearConv", "QLinearMatMul", "QGemm", "QLinearAdd", "DynamicQuantizeLSTM", "DynamicQuantizeMatMul"),
    )
)
_WITH_WEIGHTS = ("Conv", "ConvTranspose", "Gemm", "MatMul")
_MOST_STEPS_16 = 0x8000
# The first opset in which DequantizeLinear has an axis.
_PER_CHANNEL_OPSET = 13


class _SampleReader(_ort.CalibrationDataReader):  # type: ignore[misc, name-defined]
    """Hands out the calibration samples one by one, and reports progress."""

    def __init__(self, samples: Sequence[Feeds], progress: Callable[[int], None] | None) -> None:
        self._samples = samples
        self._progress = progress
        self._next = 0

    def get_next(self) -> dict[str, Any] | None:
        if self._progress is not None:
            self._progress(self._next)
        if self._next >= len(self._samples):
            return None
        self._next += 1
        return dict(self._samples[self._next - 1])

    def rewind(self) -> None:
        self._next = 0

    def __len__(self) -> int:
        return len(self._samples)


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """How a model is quantized: 8 or 16 bits, a scale per tensor or per channel, and how ranges are found.

    Weights of signed types are symmetric, as the documents recommend; ``u8`` is not.
    ``layers`` has, by node name, the types of activations that differ from the rest.
    ``steps`` are the lowest and the highest code that 16-bit weights may have.
    """

    activation: str = "u16"
    weight: str = "s8"
    per_channel: bool = False
    method: str = "minmax"
    layers: Mapping[str, str] = field(default_factory=dict)
    steps: tuple[int, int] | None = None

    def check(self) -> None:
        """Raise InvalidArgument for an unknown choice."""
        for what, word, known in (
            ("activation", self.activation, ACTIVATIONS),
            ("weight", self.weight, WEIGHTS),
            ("method", self.method, METHODS),
            *((f"activation of layer {name!r}", word, ACTIVATIONS) for name, word in self.layers.items()),
        ):
            if not isinstance(word, str) or word not in known:
                raise InvalidArgument(f"{what} {shown(word)} is unknown; expected one of {', '.join(known)}")


DEFAULT = Recipe()


@dataclass(frozen=True, slots=True)
class Quantized:
    """The float model as the quantizer saw it (some operators merged), and the QDQ model made from it.

    ``masks`` counts the constants that hid positions from attention by a number too low to be quantized.
    ``floats`` has the nodes that stay in floats because the HTP would refuse them otherwise, and why.
    """

    prepared: bytes
    model: bytes
    masks: int = 0
    floats: Mapping[str, str] = field(default_factory=dict)


def quantize_model(
    model: ModelSource,
    samples: Sequence[Feeds],
    *,
    activation: str = DEFAULT.activation,
    weight: str = DEFAULT.weight,
    per_channel: bool = DEFAULT.per_channel,
    method: str = DEFAULT.method,
    layers: Mapping[str, str] | None = None,
    restrict_quantization_steps: str | None = None,
    dims: Dims | None = None,
    freeze: Freeze | None = None,
    progress: Callable[[int], None] | None = None,
) -> Quantized:
    """The QDQ form of a float model, with ranges measured on ``samples``. The HTP takes the result.

    ``layers`` gives nodes, by name, another type of activations than the rest. Values between two types are
    converted. ``restrict_quantization_steps``, as ``"-0x8000 0x7F7F"``, has the lowest and the highest code that
    16-bit weights may have; an HTP has none above 0x7F7F. ``progress(n)`` is called when sample ``n`` is about to
    run. Raises InvalidArgument for a bad choice or a model that is quantized already, and UnsupportedError when
    the HTP or the quantizer cannot take the model.
    """
    recipe = Recipe(
        activation=activation,
        weight=weight,
        per_channel=per_channel,
        method=method,
        layers=layers or {},
        steps=None if restrict_quantization_steps is None else _read_steps(restrict_quantization_steps),
    )
    recipe.check()
    samples = items_of(samples) or []
    if not samples or not all(isinstance(feeds, Mapping) for feeds in samples):
        raise InvalidArgument("no calibration samples were given; expected a list of mappings from input to array")
    fixed = with_fixed_inputs(model, dims, freeze)
    refuse_quantized(fixed)
    import_model(read_model(fixed))
    with _translated():
        # The quantizer's preparations crash on some Ifs. The HTP takes only those that go one way for all samples.
        straight = settled(fixed, samples)
    bare, notes = without_notes(straight)
    lifted, masks = with_finite_masks(with_own_biases(with_lifted_constants(bare)))
    if per_channel:
        lifted = with_opset(lifted, _PER_CHANNEL_OPSET)
    with tempfile.TemporaryDirectory(prefix="openhtp-quantize-") as folder, _quiet():
        prepared = _prepared(lifted, Path(folder))
        quantized, floats = _accepted(prepared, Path(folder), samples, recipe, progress)
        whole = with_notes(without_unused_opsets(quantized), notes)
        return Quantized(without_unused_opsets(prepared.read_bytes()), whole, masks, floats)


def refuse_quantized(model: bytes) -> None:
    """Raise InvalidArgument if a model computes in integers already."""
    nodes = [node for node in parse_model(model).graph.node if node.op_type in _QUANTIZED_OPS]
    if nodes:
        raise InvalidArgument(
            f"the model is quantized already: {len(nodes)} nodes like {nodes[0].name!r} ({nodes[0].op_type});"
            " give the float model that it was made from"
        )


def _prepared(model: bytes, folder: Path) -> Path:
    """The model after the quantizer's own preparations for QNN."""
    source, prepared = folder / "model.onnx", folder / "prepared.onnx"
    source.write_bytes(model)
    with _translated():
        return prepared if _qnn.qnn_preprocess_model(str(source), str(prepared)) else source


def _accepted(
    prepared: Path,
    folder: Path,
    samples: Sequence[Feeds],
    recipe: Recipe,
    progress: Callable[[int], None] | None,
) -> tuple[bytes, dict[str, str]]:
    """Quantize; nodes that the HTP refuses in the result stay in floats, and the rest is quantized again."""
    data = prepared.read_bytes()
    graph = parse_model(data).graph
    # The importer computes nodes that depend on sizes and constants only, and needs exact numbers for that.
    constants = settle_types(read_model(data)).constants
    exact = [node.name for node in graph.node if all(name in constants for name in node.output)]
    floats = {node.name: _WHY_FLOAT for node in graph.node if node.op_type in RECURRENT}
    while True:
        quantized = _quantize(prepared, folder, samples, recipe, [*exact, *floats], progress)
        try:
            import_model(read_model(quantized))
        except (UnsupportedError, BadModel) as error:
            blamed = _blamed(graph, str(error.where.get("node", "")))
            # If a refused node is in floats already, the nodes that it reads from are at fault.
            guilty = [name for name in (*blamed, *_makers(graph, blamed)) if name not in floats][:1]
            if not guilty:
                raise
            floats.update(dict.fromkeys(guilty, error.message))
        else:
            return quantized, floats


def _blamed(graph: Any, refused: str) -> list[str]:
    """Nodes of the float model that a refused node of the quantized one belongs to."""
    names = [node.name for node in graph.node]
    if refused in names:
        return [refused]
    # A part of a node that was written out, or what quantizes a value: then its maker or, without one, its
    # readers.
    whole = [name for name in names if name and refused.startswith(f"{name}/")]
    if whole:
        return [max(whole, key=len)]
    value = refused.removesuffix("_QuantizeLinear").removesuffix("_DequantizeLinear")
    makers = [node.name for node in graph.node if value in node.output]
    return makers or [node.name for node in graph.node if value in node.input]


def _makers(graph: Any, names: Sequence[str]) -> list[str]:
    """Nodes whose results these nodes read."""
    read = {name for node in graph.node if node.name in names for name in node.input}
    return [node.name for node in graph.node if not read.isdisjoint(node.output)]


def _quantize(
    prepared: Path,
    folder: Path,
    samples: Sequence[Feeds],
    recipe: Recipe,
    floats: list[str],
    progress: Callable[[int], None] | None,
) -> bytes:
    result = folder / "quantized.onnx"
    overrides = _overrides(prepared, recipe)
    with _translated():
        config = _qnn.get_qnn_qdq_config(
            str(prepared),
            _SampleReader(samples, progress),
            calibrate_method=_METHODS[recipe.method],
            activation_type=_TYPES[recipe.activation],
            weight_type=_TYPES[recipe.weight],
            per_channel=recipe.per_channel,
            nodes_to_exclude=floats,
            init_overrides=overrides,
        )
        _ort.quantize(str(prepared), str(result), config)
    return result.read_bytes()


@contextmanager
def _translated() -> Iterator[None]:
    """Turn any error of the quantizer into one of ours: its errors have no class in common."""
    try:
        yield
    except Exception as error:
        raise UnsupportedFeature(f"onnxruntime's quantizer refuses the model: {error}") from error


def _read_steps(text: object) -> tuple[int, int]:
    """The lowest and the highest step, as the vendor's quantizer takes them."""
    words = text.split() if isinstance(text, str) else []
    try:
        low, high = (int(word, 0) for word in words)
    except ValueError:
        low, high = 0, 0
    if not low < 0 < high:
        raise InvalidArgument(
            f"restrict_quantization_steps is {shown(text)}; expected the lowest and the highest step, as -0x8000"
            " 0x7F7F"
        )
    if low < -_MOST_STEPS_16 or high >= _MOST_STEPS_16:
        raise InvalidArgument(
            f"restrict_quantization_steps is {shown(text)}; 16 bits have {-_MOST_STEPS_16:#x} to"
            f" {_MOST_STEPS_16 - 1:#x}"
        )
    return low, high


def _overrides(prepared: Path, recipe: Recipe) -> dict[str, list[dict[str, Any]]] | None:
    """Types of results and ranges of weights that differ from the recipe, in the quantizer's own form."""
    graph = parse_model(prepared.read_bytes()).graph
    overrides = {**_layer_overrides(graph, recipe), **_weight_overrides(graph, recipe)}
    return overrides or None


def _weight_overrides(graph: Any, recipe: Recipe) -> dict[str, list[dict[str, Any]]]:
    """Wider ranges for 16-bit weights, which keep all codes within the steps."""
    if recipe.steps is None or recipe.weight != "s16":
        return {}
    readers = {node.input[1]: node for node in graph.node if node.op_type in _WITH_WEIGHTS and len(node.input) > 1}
    overrides = {}
    for stored in graph.initializer:
        if stored.name not in readers:
            continue
        data = np.abs(numpy_helper.to_array(stored))
        axis = _channel_axis(readers[stored.name], data.ndim) if recipe.per_channel else None
        most = [float(data.max())]
        if axis is not None:
            most = [float(one) for one in data.max(axis=tuple(each for each in range(data.ndim) if each != axis))]
        # The quantizer divides this range by all codes of the type.
        wider = (_MOST_STEPS_16 - 1) / min(-recipe.steps[0], recipe.steps[1])
        ranges = [
            {"rmin": np.float32(-one * wider), "rmax": np.float32(one * wider), "symmetric": True} for one in most
        ]
        if axis is not None:
            ranges[0]["axis"] = axis
        overrides[stored.name] = ranges
    return overrides


def _channel_axis(node: Any, rank: int) -> int:
    """The axis of output channels, along which the quantizer has scales of its own."""
    if node.op_type == "Gemm" and any(item.name == "transB" and item.i for item in node.attribute):
        return 0
    return {"Conv": 0, "ConvTranspose": 1}.get(node.op_type, rank - 1)


def _layer_overrides(graph: Any, recipe: Recipe) -> dict[str, list[dict[str, Any]]]:
    """The results of layers that are to have a type of their own."""
    if not recipe.layers:
        return {}
    outputs = {node.name: node.output[0] for node in graph.node}
    for name in recipe.layers:
        if name not in outputs:
            near = difflib.get_close_matches(name, outputs, n=3, cutoff=0.3) or list(outputs)[:3]
            raise InvalidArgument(f"the model has no node {name!r}; nearest known: {', '.join(near)}")
    differing = {name: word for name, word in recipe.layers.items() if word != recipe.activation}
    return {outputs[name]: [{"quant_type": _TYPES[word]}] for name, word in differing.items()}


@contextmanager
def _quiet() -> Iterator[None]:
    """The quantizer logs its advice through the root logger, and numpy warns about its divisions.

    Only errors are of interest here.
    """
    root = logging.getLogger()
    before = root.level
    root.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        root.setLevel(before)


# Files carry notes about themselves and their parts. Some tools fail on these, so they are taken off before.


Notes = dict[tuple[str, str], dict[str, str]]
"""Keys and values by part of a model: its kind and its name."""


def without_notes(model: bytes) -> tuple[bytes, Notes]:
    """The model without ``metadata_props`` at any level, and what they were."""
    proto = parse_model(model)
    notes: Notes = {}
    for owner, described in _pieces(proto):
        if described.metadata_props:
            notes[owner] = {item.key: item.value for item in described.metadata_props}
            del described.metadata_props[:]
    return (model_bytes(proto), notes) if notes else (model, notes)


def with_notes(model: bytes, notes: Notes) -> bytes:
    """The model with the notes of the parts that are still there. Notes that it has by now stay."""
    if not notes:
        return model
    proto = parse_model(model)
    for owner, described in _pieces(proto):
        known = {item.key for item in described.metadata_props}
        for key, value in notes.get(owner, {}).items():
            if key not in known:
                described.metadata_props.add(key=key, value=value)
    return model_bytes(proto)


def _pieces(proto: Any) -> Iterator[tuple[tuple[str, str], Any]]:
    graph = proto.graph
    yield ("model", ""), proto
    yield ("graph", ""), graph
    for node in graph.node:
        # A node without a name may get one in between; its results keep their names.
        yield ("node", next(iter(node.output), node.name)), node
    for tensor in graph.initializer:
        yield ("tensor", tensor.name), tensor
    for value in (*graph.input, *graph.output, *graph.value_info):
        yield ("value", value.name), value
