"""Llama checkpoints: a folder with ``config.json`` and safetensors, in Hugging Face's names or in ours."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from openhtp.core.errors import BadModel, error_context
from openhtp.core.files import read_file
from openhtp.llm.config import LlamaConfig, config_from
from openhtp.llm.model import Llama
from openhtp.llm.safetensors import SafetensorsFile

_MOST_JSON = 64 << 20
_INDEX = "model.safetensors.index.json"
_SINGLE = ("model.safetensors", "weights.safetensors")

_IGNORED = ("rotary_emb.inv_freq",)


def load(folder: str | os.PathLike[str]) -> Llama:
    """Load a Llama-type checkpoint from a folder.

    Raises BadModel, naming the tensor, for one that is missing, too much or misshapen, and UnsupportedFeature for
    other architectures.
    """
    place = Path(folder)
    with error_context(checkpoint=str(place)):
        content = _json(place / "config.json", "a model's configuration")
        config = config_from(content)
        weights = _weights(_tensors(place), config)
        return Llama.of(config, weights, tokenizer=place / "tokenizer.json")


def _json(path: Path, what: str) -> Mapping[str, Any]:
    text = read_file(path, most=_MOST_JSON, what=what, error=BadModel)
    try:
        content = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadModel(f"{str(path)!r} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise BadModel(f"{str(path)!r} holds a {type(content).__name__}; expected an object")
    return content


def _tensors(folder: Path) -> dict[str, SafetensorsFile]:
    """The file that each tensor is in."""
    if (folder / _INDEX).exists():
        listed = _json(folder / _INDEX, "a list of tensors").get("weight_map")
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


def _weights(tensors: Mapping[str, SafetensorsFile], config: LlamaConfig) -> dict[str, npt.NDArray[np.float32]]:
    shapes = Llama.shapes(config)
    found: dict[str, npt.NDArray[np.float32]] = {}
    used: set[str] = set()
    for name, shape in shapes.items():
        if name == "output" and config.tied:
            used.update(checkpoint_names("output"))  # some write the tied matrix twice
            continue
        known = checkpoint_names(name)
        source = next((other for other in known if other in tensors), None)
        if source is None:
            raise BadModel(f"tensor {known[0]!r} (or {known[1]!r}) is missing")
        if tensors[source].shape(source) != shape:
            raise BadModel(
                f"tensor {source!r} has shape {list(tensors[source].shape(source))}; expected {list(shape)} for"
                f" these sizes in config.json"
            )
        used.add(source)
        found[name] = tensors[source].read(source)
        if not np.isfinite(found[name]).all():
            raise BadModel(f"tensor {source!r} holds numbers that are not finite")
    extra = [name for name in tensors if name not in used and not name.endswith(_IGNORED)]
    if extra:
        raise BadModel(
            f"{len(extra)} tensors belong to no Llama of this size, {extra[0]!r} for one; expected exactly the"
            f" weights of {config.layers} layers"
        )
    return found


# What weights are called: our names, and those in checkpoints of Hugging Face and of ours. ``N`` is the layer.


_OUTER = {
    "embed": ("model.embed_tokens.weight", "tok_embeddings.weight"),
    "norm": ("model.norm.weight", "norm.weight"),
    "output": ("lm_head.weight", "output.weight"),
}
_INNER = {
    "attention_norm": ("model.layers.N.input_layernorm.weight", "layers.N.attention_norm.weight"),
    "ffn_norm": ("model.layers.N.post_attention_layernorm.weight", "layers.N.ffn_norm.weight"),
    "wq": ("model.layers.N.self_attn.q_proj.weight", "layers.N.wq.weight"),
    "wk": ("model.layers.N.self_attn.k_proj.weight", "layers.N.wk.weight"),
    "wv": ("model.layers.N.self_attn.v_proj.weight", "layers.N.wv.weight"),
    "wo": ("model.layers.N.self_attn.o_proj.weight", "layers.N.wo.weight"),
    "gate": ("model.layers.N.mlp.gate_proj.weight", "layers.N.w1.weight"),
    "down": ("model.layers.N.mlp.down_proj.weight", "layers.N.w2.weight"),
    "up": ("model.layers.N.mlp.up_proj.weight", "layers.N.w3.weight"),
}
_LAYER = re.compile(r"layers\.(\d+)\.")
_KIND_OF = {other: kind for kind, others in (_OUTER | _INNER).items() for other in others}


def checkpoint_names(name: str) -> tuple[str, ...]:
    """The names that a weight of ours may have in a checkpoint."""
    if name in _OUTER:
        return _OUTER[name]
    _, layer, kind = name.split(".")
    return tuple(other.replace("N", layer, 1) for other in _INNER[kind])


def our_name(name: str) -> str | None:
    """Our name of a checkpoint's tensor; None if it is none of a Llama's."""
    layer = _LAYER.search(name)
    kind = _KIND_OF.get(_LAYER.sub("layers.N.", name, count=1))
    if kind is None:
        return None
    return kind if layer is None else f"layers.{int(layer[1])}.{kind}"
