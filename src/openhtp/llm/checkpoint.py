"""Checkpoints: a folder with ``config.json`` and safetensors, in Hugging Face's names or in ours.

A safetensors file has a header in JSON that says where each tensor's bytes lie. Nothing in it is executed.
"""

from __future__ import annotations

import json
import os
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from openhtp.core.checks import items_of, path_of, shown, type_in_words, whole_number
from openhtp.core.errors import BadModel, InvalidArgument, error_context
from openhtp.core.files import open_file, read_file
from openhtp.cost.llm import LlmShape
from openhtp.llm.config import DecoderFamily, LlamaConfig, config_from, family_of, sizes_from
from openhtp.llm.model import Llama

_MOST_JSON = 64 << 20
_INDEX = "model.safetensors.index.json"
_SINGLE = ("model.safetensors", "weights.safetensors")

_IGNORED = ("rotary_emb.inv_freq",)


def load(folder: str | os.PathLike[str]) -> Llama:
    """Load a checkpoint from a folder: a Llama, Mistral, Qwen2, Qwen3, Gemma, Gemma 2 or Phi-3.

    Raises BadModel, naming the tensor, for one that is missing, too much or misshapen, and UnsupportedFeature for
    other architectures.
    """
    path = folder_of(folder)
    with error_context(checkpoint=str(path)):
        content = read_object(path / "config.json", "a model's configuration")
        config = config_from(content)
        weights = _weights(_tensors(path), config, family_of(content))
        return Llama.of(config, weights, tokenizer=path / "tokenizer.json")


def shape_of(folder: str | os.PathLike[str]) -> LlmShape:
    """The sizes that a checkpoint's ``config.json`` says, for an estimate: weights are not needed.

    Any decoder will do whose layers all run, whatever its architecture is called.
    """
    path = folder_of(folder)
    with error_context(checkpoint=str(path)):
        sizes = sizes_from(read_object(path / "config.json", "a model's configuration"))
        sizes.pop("context")
        odd = next((name for name, size in sizes.items() if size < 1), None)
        if odd is not None:
            raise BadModel(f"config.json gives {odd} as {sizes[odd]}; expected a whole number from 1 up")
        known: dict[str, Any] = sizes
        return LlmShape(**known)


def folder_of(folder: object) -> Path:
    """The folder that a caller names. Raises InvalidArgument for what is no path."""
    path = path_of(folder)
    if path is None:
        raise InvalidArgument(f"folder is {shown(folder)}; expected the path of a folder")
    return path


def checkpoint_files(folder: Path) -> list[Path]:
    """All files of a checkpoint that decide its weights and sizes."""
    index = [folder / _INDEX] if (folder / _INDEX).exists() else []
    return [folder / "config.json", *index, *sorted(folder.glob("*.safetensors"))]


def read_object(path: Path, what: str, *, most: int = _MOST_JSON) -> Mapping[str, Any]:
    """The object that a JSON file holds. Raises BadModel for any other content."""
    text = read_file(path, most=most, what=what, error=BadModel)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadModel(f"{str(path)!r} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise BadModel(f"{str(path)!r} holds {type_in_words(content)}; expected an object")
    return content


def _tensors(folder: Path) -> dict[str, SafetensorsFile]:
    """The file that each tensor is in."""
    if (folder / _INDEX).exists():
        listed = read_object(folder / _INDEX, "a list of tensors").get("weight_map")
        if not isinstance(listed, dict) or not all(isinstance(name, str) for name in listed.values()):
            raise BadModel(f"{_INDEX} has no weight_map; expected one from tensors to files")
        names = sorted(set(listed.values()))
        odd = next((name for name in names if Path(name).name != name), None)
        if odd is not None:
            raise BadModel(f"{_INDEX} names {odd!r}; expected files of the same folder")
    else:
        names = [name for name in _SINGLE if (folder / name).exists()][:1]
        if not names:
            raise BadModel(f"{str(folder)!r} has none of {', '.join((*_SINGLE, _INDEX))}; expected the weights")
    files = [SafetensorsFile(folder / name) for name in names]
    return {tensor: file for file in files for tensor in file.names}


def _weights(
    tensors: Mapping[str, SafetensorsFile], config: LlamaConfig, family: DecoderFamily
) -> dict[str, npt.NDArray[np.float32]]:
    shapes = Llama.shapes(config)
    weights: dict[str, npt.NDArray[np.float32]] = {}
    used: set[str] = set()
    for name, shape in shapes.items():
        if name == "output" and config.tied:
            used.update(checkpoint_names("output"))  # some write the tied matrix twice
            continue
        source, rows = _source(name, shapes, tensors, config)
        expected = (rows.total, *shape[1:])
        if tensors[source].shape(source) != expected:
            raise BadModel(
                f"tensor {source!r} has shape {list(tensors[source].shape(source))}; expected {list(expected)} for"
                f" these sizes in config.json"
            )
        used.add(source)
        weights[name] = tensors[source].read(source)[rows.begin : rows.begin + shape[0]]
        if not np.isfinite(weights[name]).all():
            raise BadModel(f"tensor {source!r} holds numbers that are not finite")
        if name.endswith("norm"):
            weights[name] = weights[name] + np.float32(family.norm_offset)
    extra = [name for name in tensors if name not in used and not name.endswith(_IGNORED)]
    if extra:
        raise BadModel(
            f"{len(extra)} tensors belong to no model of this size, {extra[0]!r} for one; expected exactly the"
            f" weights of {config.layers} layers"
        )
    return weights


class _Rows(NamedTuple):
    """Where a weight begins in a checkpoint's matrix, and how many rows that matrix has."""

    begin: int
    total: int


def _source(
    name: str, shapes: Mapping[str, tuple[int, ...]], tensors: Mapping[str, SafetensorsFile], config: LlamaConfig
) -> tuple[str, _Rows]:
    """The tensor that holds a weight: one of its own, or one that holds several behind each other."""
    known = checkpoint_names(name, config)
    source = next((other for other in known if other in tensors), None)
    if source is not None:
        return source, _Rows(0, shapes[name][0])
    prefix, _, kind = name.rpartition(".")
    for fused, kinds in _FUSED.items():
        source = f"model.{prefix}.{fused}"
        if kind in kinds and source in tensors:
            heights = [shapes[f"{prefix}.{other}"][0] for other in kinds]
            return source, _Rows(sum(heights[: kinds.index(kind)]), sum(heights))
    raise BadModel(f"tensor {' or '.join(map(repr, known))} is missing")


# Names of weights: ours, and those in checkpoints of Hugging Face and of ours. ``N`` is the layer.


_OUTER = {
    "embed": ("model.embed_tokens.weight", "tok_embeddings.weight"),
    "norm": ("model.norm.weight", "norm.weight"),
    "output": ("lm_head.weight", "output.weight"),
}
_MODULES = {
    "wq": ("model.layers.N.self_attn.q_proj", "layers.N.wq"),
    "wk": ("model.layers.N.self_attn.k_proj", "layers.N.wk"),
    "wv": ("model.layers.N.self_attn.v_proj", "layers.N.wv"),
    "wo": ("model.layers.N.self_attn.o_proj", "layers.N.wo"),
    "gate": ("model.layers.N.mlp.gate_proj", "layers.N.w1"),
    "down": ("model.layers.N.mlp.down_proj", "layers.N.w2"),
    "up": ("model.layers.N.mlp.up_proj", "layers.N.w3"),
}
_INNER = {
    "attention_norm": ("model.layers.N.input_layernorm.weight", "layers.N.attention_norm.weight"),
    "ffn_norm": ("model.layers.N.post_attention_layernorm.weight", "layers.N.ffn_norm.weight"),
    "q_norm": ("model.layers.N.self_attn.q_norm.weight",),
    "k_norm": ("model.layers.N.self_attn.k_norm.weight",),
    **{kind: tuple(f"{name}.weight" for name in names) for kind, names in _MODULES.items()},
    **{f"{kind}_bias": tuple(f"{name}.bias" for name in names) for kind, names in _MODULES.items()},
}
# Where a block's result is normalized as well, the names of norms go by when they run.
_INNER_WITH_POST_NORMS = _INNER | {
    "attention_post_norm": ("model.layers.N.post_attention_layernorm.weight",),
    "ffn_norm": ("model.layers.N.pre_feedforward_layernorm.weight",),
    "ffn_post_norm": ("model.layers.N.post_feedforward_layernorm.weight",),
}
# Weights that Phi-3 has in one matrix, in the order of their rows.
_FUSED = {
    "self_attn.qkv_proj.weight": ("wq", "wk", "wv"),
    "mlp.gate_up_proj.weight": ("gate", "up"),
}
_LAYER = re.compile(r"layers\.(\d+)\.")
_KIND_OF = {other: kind for kind, others in (_OUTER | _INNER).items() for other in others}


def checkpoint_names(name: str, config: LlamaConfig | None = None) -> tuple[str, ...]:
    """The names that a weight of ours may have in a checkpoint; a Llama's unless another model is given."""
    if name in _OUTER:
        return _OUTER[name]
    _, layer, kind = name.split(".")
    names = _INNER_WITH_POST_NORMS if config is not None and config.post_norms else _INNER
    return tuple(other.replace("N", layer, 1) for other in names[kind])


def our_name(name: str) -> str | None:
    """Our name of a checkpoint's tensor; None if the tensor does not belong to a Llama."""
    layer = _LAYER.search(name)
    kind = _KIND_OF.get(_LAYER.sub("layers.N.", name, count=1))
    if kind is None:
        return None
    return kind if layer is None else f"layers.{int(layer[1])}.{kind}"


_TYPES: dict[str, np.dtype[Any]] = {
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "BF16": np.dtype("<u2"),
    "F64": np.dtype("<f8"),
}
_MOST_HEADER = 100 << 20
_WHAT = "tensors (safetensors)"


class SafetensorsFile:
    """An opened file. Tensors are read when they are asked for, as float32."""

    def __init__(self, path: Path) -> None:
        self._path = path
        with open_file(path, most=None, what=_WHAT, error=BadModel) as (_, size):
            self._size = size
        head = read_file(path, most=8, what=_WHAT, error=BadModel, nbytes=8)
        length = struct.unpack("<Q", head)[0] if len(head) == 8 else self._size
        if not 2 <= length <= min(_MOST_HEADER, self._size - 8):
            raise BadModel(f"{str(path)!r} is no safetensors file: its header would have {length} bytes")
        text = read_file(path, most=_MOST_HEADER, what=_WHAT, error=BadModel, offset=8, nbytes=length)
        try:
            header = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise BadModel(f"{str(path)!r} has a damaged header: {error}") from error
        if not isinstance(header, dict):
            raise BadModel(f"{str(path)!r} has a header that is {type_in_words(header)}; expected an object")
        self._begin = 8 + length
        self._entries: Mapping[str, Any] = {
            name: entry for name, entry in header.items() if name != "__metadata__"
        }

    @property
    def names(self) -> tuple[str, ...]:
        """Names of all tensors."""
        return tuple(self._entries)

    def shape(self, name: str) -> tuple[int, ...]:
        """Sizes of a tensor."""
        return self._entry(name)[1]

    def read(self, name: str) -> npt.NDArray[np.float32]:
        """A tensor as float32."""
        dtype, shape, begin, nbytes = self._entry(name)
        data = read_file(
            self._path, most=nbytes, what=_WHAT, error=BadModel, offset=self._begin + begin, nbytes=nbytes
        )
        stored = np.frombuffer(data, _TYPES[dtype])
        if dtype == "BF16":
            stored = (stored.astype(np.uint32) << 16).view(np.float32)
        return np.asarray(stored, np.float32).reshape(shape)

    def _entry(self, name: str) -> tuple[str, tuple[int, ...], int, int]:
        entry = self._entries[name]
        where = f"tensor {name!r} of {str(self._path)!r}"
        if not isinstance(entry, dict):
            raise BadModel(f"{where} is described by {shown(entry)}; expected dtype, shape and data_offsets")
        dtype = entry.get("dtype")
        if not isinstance(dtype, str) or dtype not in _TYPES:
            raise BadModel(f"{where} has type {shown(dtype)}; expected one of {', '.join(_TYPES)}")
        sizes = [whole_number(size) for size in items_of(entry.get("shape")) or ()]
        places = [whole_number(offset) for offset in items_of(entry.get("data_offsets")) or ()]
        if None in sizes or len(places) != 2 or any(size is not None and size < 0 for size in sizes):
            raise BadModel(f"{where} has shape {shown(entry.get('shape'))} at {shown(entry.get('data_offsets'))}")
        shape = tuple(size for size in sizes if size is not None)
        begin, end = (offset if offset is not None else -1 for offset in places)
        nbytes = int(np.prod(shape, dtype=object)) * _TYPES[dtype].itemsize
        if begin < 0 or end - begin != nbytes or self._begin + end > self._size:
            raise BadModel(
                f"{where}, {dtype}{list(shape)}, takes {nbytes} bytes; the file has bytes {begin} to {end} for it"
                f" and ends at {self._size - self._begin}"
            )
        return dtype, shape, begin, nbytes
