"""Llama checkpoints: a folder with ``config.json`` and safetensors, in Hugging Face's names or in ours."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from openhtp.core.errors import BadModel, error_context
from openhtp.core.files import read_file
from openhtp.llm.config import LlamaConfig, config_from
from openhtp.llm.model import Llama
from openhtp.llm.names import checkpoint_names
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
