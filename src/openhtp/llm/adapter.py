"""LoRA adapters: two thin matrices beside a large one, read from a PEFT folder, and fitted to a common shape.

An adapter adds ``up @ (down @ x)`` to the product of a weight with ``x``. Graphs hold both as updateable tensors,
so adapters can be exchanged without compiling a graph again; all adapters of a bundle therefore have one rank for
each weight, and one encoding. Rows of ``down`` are scaled to 1, and columns of ``up`` by the inverse, so that one
encoding suits all adapters.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from openhtp.core.checks import real_number, shown, type_in_words, whole_number
from openhtp.core.dtype import DType
from openhtp.core.errors import BadModel, InvalidArgument, UnsupportedFeature, error_context
from openhtp.core.quant import AxisScaleOffset, ScaleOffset
from openhtp.llm.checkpoint import SafetensorsFile, folder_of, our_name, read_object
from openhtp.llm.config import LlamaConfig
from openhtp.llm.model import Llama, Thin, product_factor

Array = npt.NDArray[np.float32]

_MOST_CONFIG = 1 << 20
_CONFIG, _WEIGHTS = "adapter_config.json", "adapter_model.safetensors"
# Prefixes that training tools put before the names of the checkpoint.
_PREFIX = "base_model.model."
_KEY = re.compile(r"(?P<module>.+)\.lora_(?P<half>[AB])(?:\.default)?\.weight")
# It becomes the name of files.
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True, eq=False)
class Adapter:
    """Matrices to add to weights, by our names of the weights; ``up`` includes the scaling by alpha."""

    name: str
    matrices: Mapping[str, Thin]

    def __post_init__(self) -> None:
        check_name(self.name)

    def merged(self, model: Llama) -> Llama:
        """The model with the adapter added to its weights."""
        weights = dict(model.weights)
        for name, thin in self.matrices.items():
            weights[name] = weights[name] + thin.up @ thin.down
        if model.config.tied:
            weights.pop("output", None)
        return Llama.of(model.config, weights, tokenizer=model.tokenizer)


class Half(NamedTuple):
    """One of an adapter's matrices in the form that graphs have."""

    name: str
    shape: tuple[int, int]
    dtype: DType
    quant: ScaleOffset | AxisScaleOffset


@dataclass(frozen=True, slots=True)
class AdapterPlan:
    """The weights that adapters may change, with their ranks and the largest number in every row of ``up``."""

    ranks: Mapping[str, int]
    largest: Mapping[str, Array]

    def fitted(self, adapter: Adapter, config: LlamaConfig) -> Adapter:
        """The adapter with all weights and ranks of the plan; weights that it leaves alone get zeros."""
        shapes = Llama.shapes(config)
        matrices = {}
        for name, rank in self.ranks.items():
            rows, columns = shapes[name]
            down, up = np.zeros((rank, columns), np.float32), np.zeros((rows, rank), np.float32)
            thin = adapter.matrices.get(name)
            if thin is not None:
                scaled = _scaled(thin)
                down[: len(scaled.down)] = scaled.down
                up[:, : len(scaled.down)] = scaled.up
            matrices[name] = Thin(down, up)
        return Adapter(adapter.name, matrices)

    def halves(self, weight: str, config: LlamaConfig, bits: int) -> tuple[Half, Half]:
        """The updateable tensors beside a weight, for activations of ``bits`` bits."""
        rows, columns = Llama.shapes(config)[weight]
        rank, dtype = self.ranks[weight], DType.SFIXED_POINT_16 if bits == 16 else DType.SFIXED_POINT_8
        most = dtype.integer_range[1]
        scales = np.maximum(self.largest[weight] * product_factor(weight, config), 1e-8) / most
        return (
            Half(f"{weight}.lora_a", (rank, columns), dtype, ScaleOffset(1.0 / most, 0)),
            Half(f"{weight}.lora_b", (rows, rank), dtype, AxisScaleOffset(0, tuple(map(float, scales)))),
        )

    def stored(self, adapter: Adapter, config: LlamaConfig, bits: int) -> dict[str, npt.NDArray[Any]]:
        """The data of all updateable tensors for an adapter, by their names."""
        by_name = {}
        for weight, thin in self.fitted(adapter, config).matrices.items():
            real = thin.down, thin.up * product_factor(weight, config)
            for half, values in zip(self.halves(weight, config, bits), real, strict=True):
                steps = half.quant.quantize(values, *half.dtype.integer_range)
                by_name[half.name] = steps.astype(half.dtype.numpy)
        return by_name

    def runs(self, adapters: Sequence[Adapter], config: LlamaConfig) -> list[Mapping[str, Thin]]:
        """All ways in which a model may run: without an adapter, which means zeros, and with each of these."""
        return [self.fitted(adapter, config).matrices for adapter in (Adapter("none", {}), *adapters)]


def check_name(name: object) -> None:
    """Whether an adapter may have this name."""
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidArgument(
            f"an adapter is named {shown(name)}; expected letters, digits, '.', '_' and '-', 64 at most"
        )


def plan_for(adapters: Sequence[Adapter]) -> AdapterPlan:
    """Room for any of these adapters."""
    ranks: dict[str, int] = {}
    largest: dict[str, Array] = {}
    for adapter in adapters:
        for name, thin in adapter.matrices.items():
            ranks[name] = max(ranks.get(name, 0), len(thin.down))
            peaks = np.abs(_scaled(thin).up).max(axis=1)
            largest[name] = np.maximum(largest.get(name, peaks), peaks)
    return AdapterPlan(ranks, largest)


def _scaled(thin: Thin) -> Thin:
    """The thin pair with rows of ``down`` that reach 1; its product is the same."""
    peaks = np.abs(thin.down).max(axis=1)
    peaks = np.where(peaks > 0, peaks, 1.0).astype(np.float32)
    return Thin(thin.down / peaks[:, None], thin.up * peaks)


def load_adapter(folder: str | os.PathLike[str], config: LlamaConfig, name: str | None = None) -> Adapter:
    """Read a LoRA adapter of a model of this size from a PEFT folder.

    Its name is the folder's unless given. Raises BadModel, naming the tensor, for one that is missing, too much or
    misshapen, and UnsupportedFeature for other kinds of adapters.
    """
    path = folder_of(folder)
    if not isinstance(config, LlamaConfig):
        raise InvalidArgument(f"config is {type_in_words(config)}; expected the LlamaConfig of the model")
    with error_context(adapter=str(path)):
        about = _config(path / _CONFIG)
        file = SafetensorsFile(path / _WEIGHTS)
        return Adapter(path.resolve().name if name is None else name, _matrices(file, about, config))


def adapter_files(folder: Path) -> list[Path]:
    """All files that ``load_adapter`` reads."""
    return [folder / _CONFIG, folder / _WEIGHTS]


def _config(path: Path) -> Mapping[str, Any]:
    content = read_object(path, "an adapter's configuration", most=_MOST_CONFIG)
    kind = content.get("peft_type", "LORA")
    if kind != "LORA":
        raise UnsupportedFeature(f"the adapter is of type {shown(kind)}; expected 'LORA'")
    for option, expected in (("use_dora", False), ("fan_in_fan_out", False), ("bias", "none")):
        if content.get(option, expected) != expected:
            raise UnsupportedFeature(f"{option} is {shown(content[option])}; expected {expected!r}")
    for option in ("modules_to_save", "alpha_pattern"):
        if content.get(option):
            raise UnsupportedFeature(f"{option} is {shown(content[option])}; expected none")
    return content


def _matrices(file: SafetensorsFile, about: Mapping[str, Any], config: LlamaConfig) -> dict[str, Thin]:
    shapes = Llama.shapes(config)
    halves: dict[str, dict[str, str]] = {}
    for key in file.names:
        match = _KEY.fullmatch(key.removeprefix(_PREFIX))
        weight = None if match is None else our_name(f"{match['module']}.weight")
        if match is None or len(shapes.get(weight or "", ())) != 2 or weight in ("embed", "output"):
            raise BadModel(f"tensor {key!r} belongs to no matrix of a Llama with {config.layers} layers")
        halves.setdefault(str(weight), {})[match["half"]] = key
    if not halves:
        raise BadModel(f"{_WEIGHTS} holds no tensors; expected pairs like ...q_proj.lora_A.weight, lora_B.weight")
    matrices = {}
    for weight, pair in halves.items():
        if len(pair) < 2:
            only = next(iter(pair.values()))
            raise BadModel(f"tensor {only!r} has no partner; expected lora_A and lora_B of each matrix")
        matrices[weight] = _pair(file, pair, shapes[weight], about)
    return matrices


def _pair(
    file: SafetensorsFile, pair: Mapping[str, str], shape: tuple[int, ...], about: Mapping[str, Any]
) -> Thin:
    rows, columns = shape
    rank = file.shape(pair["A"])[0] if len(file.shape(pair["A"])) == 2 else 0
    for key, expected in ((pair["A"], (rank, columns)), (pair["B"], (rows, rank))):
        if file.shape(key) != expected or not 1 <= rank <= min(shape):
            raise BadModel(
                f"tensor {key!r} has shape {list(file.shape(key))}; expected [rank, {columns}] for lora_A and"
                f" [{rows}, rank] for lora_B"
            )
    down, up = file.read(pair["A"]), file.read(pair["B"])
    for key, array in ((pair["A"], down), (pair["B"], up)):
        if not np.isfinite(array).all():
            raise BadModel(f"tensor {key!r} holds numbers that are not finite")
    return Thin(down, up * np.float32(_scaling(about, rank)))


def _scaling(about: Mapping[str, Any], rank: int) -> float:
    """The factor that PEFT applies. ``r`` may differ for this matrix (rank_pattern), whose shape has the rank."""
    alpha = real_number(about.get("lora_alpha", about.get("r", rank)))
    stated = whole_number(about.get("r", rank))
    if alpha is None or stated is None or stated < 1:
        raise BadModel(
            f"{_CONFIG} gives lora_alpha {shown(about.get('lora_alpha'))} and r {shown(about.get('r'))}; expected"
            " numbers"
        )
    if stated != rank and not about.get("rank_pattern"):
        raise BadModel(f"{_CONFIG} says rank {stated}; tensors have {rank}")
    return float(alpha / (rank**0.5 if about.get("use_rslora") else rank))
