"""Damaged files of language models: configs, tokenizers, safetensors, adapters, bundles, and sections to apply."""

from __future__ import annotations

import json
import os
import random
import shutil
import struct
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

import openhtp as htp
from openhtp import llm
from openhtp.genie.settings import GenieBundle
from openhtp.llm.genie_config import GENIE_CONFIG
from openhtp.llm.tokenizer import Tokenizer
from tests.hostile.fuzz_binaries import leaves
from tests.hostile.leaks import Holdings
from tests.hostile.probe import Neighbour
from tests.hostile.running import ROOT
from tests.hostile.tally import Budget, Watch
from tests.hostile.wire import mutated

SHORT = 400
"""Rounds of the short form."""

_ODD: tuple[Any, ...] = (
    *(10**400, 10**30, 2**63, 1 << 40, -1, 0, 0.5, 1e308, 5e-324, True, None, [], {}, [[]], {"rope_type": []}),
    *("x" * 300, "\ud800", "../config.json", "/dev/zero", "F16", "BF16", "I64", [4, 64], [0, 4], [0, 1 << 62]),
)
_CONFIG = {
    "architectures": ["LlamaForCausalLM"],
    "num_hidden_layers": 1,
    "hidden_size": 64,
    "num_attention_heads": 1,
    "num_key_value_heads": 1,
    "vocab_size": 32,
    "intermediate_size": 48,
    "max_position_embeddings": 256,
    "tie_word_embeddings": True,
    "rope_parameters": {"rope_theta": 500000.0},
    "rope_scaling": {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192,
    },
}
_LAYER = {
    "input_layernorm": (64,),
    "post_attention_layernorm": (64,),
    "self_attn.q_proj": (64, 64),
    "self_attn.k_proj": (64, 64),
    "self_attn.v_proj": (64, 64),
    "self_attn.o_proj": (64, 64),
    "mlp.gate_proj": (48, 64),
    "mlp.up_proj": (48, 64),
    "mlp.down_proj": (64, 48),
}
_PEFT = {"peft_type": "LORA", "r": 4, "lora_alpha": 8, "target_modules": ["q_proj"]}


def attack(rng: random.Random, budget: Budget, watch: Watch) -> None:
    """One damaged file after the other, the others beside it good."""
    with htp.Backend() as warm:
        Neighbour(warm.create_device())
    holdings = Holdings()
    with tempfile.TemporaryDirectory(prefix="hostile-models") as place, htp.Backend() as backend:
        device = backend.create_device()
        neighbour = Neighbour(device)
        folder = Path(place)
        kinds = [_checkpoint(folder), _adapter(folder), _tokenizer(folder), _bundle(folder, device)]
        sections = _Sections(device)
        while budget:
            if rng.random() < 0.2:
                sections.attack(rng, watch)
                continue
            path, load = rng.choice(rng.choices(kinds, weights=(8, 6, 1, 2))[0])
            good = path.read_bytes()
            words = damage(rng, path)
            with watch.call(f"{path.name}: {words}"):
                load()
            remove(path)
            path.write_bytes(good)
        sections.close()
        neighbour.check(watch)
        if device.restarts:
            watch.found("wrong", f"the device died {device.restarts} times")
    holdings.check(watch)


_Target = tuple[Path, Callable[[], object]]


def _safetensors(path: Path, shapes: dict[str, tuple[int, ...]]) -> Path:
    rng, header, data = np.random.default_rng(0), {}, b""
    for name, shape in shapes.items():
        array = rng.normal(size=shape).astype(np.float32)
        places = [len(data), len(data) + array.nbytes]
        header[name] = {"dtype": "F32", "shape": list(shape), "data_offsets": places}
        data += array.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)
    return path


def _checkpoint(folder: Path) -> list[_Target]:
    place = folder / "checkpoint"
    place.mkdir()
    (place / "config.json").write_text(json.dumps(_CONFIG))
    shapes: dict[str, tuple[int, ...]] = {f"model.layers.0.{name}.weight": shape for name, shape in _LAYER.items()}
    shapes |= {"model.embed_tokens.weight": (32, 64), "model.norm.weight": (64,)}
    weights = _safetensors(place / "part.safetensors", shapes)
    index = place / "model.safetensors.index.json"
    index.write_text(json.dumps({"weight_map": dict.fromkeys(shapes, weights.name)}))

    def load() -> None:
        model = llm.load(place)
        model.config.rotations(0, 4)

    return [(path, load) for path in (place / "config.json", weights, index)]


def _adapter(folder: Path) -> list[_Target]:
    place = folder / "adapter"
    place.mkdir()
    (place / "adapter_config.json").write_text(json.dumps(_PEFT))
    key = "base_model.model.model.layers.0.self_attn.q_proj.lora_"
    weights = _safetensors(
        place / "adapter_model.safetensors", {f"{key}A.weight": (4, 64), f"{key}B.weight": (64, 4)}
    )
    model = llm.load(folder / "checkpoint")

    def load() -> None:
        llm.load_adapter(place, model.config).merged(model)

    return [(path, load) for path in (place / "adapter_config.json", weights)]


def _tokenizer(folder: Path) -> list[_Target]:
    path = folder / "tokenizer.json"
    shutil.copyfile(ROOT / "examples/llm/austen/tokenizer.json", path)

    def load() -> None:
        tokenizer = Tokenizer.of(path, 1 << 20)
        tokenizer.decode(tokenizer.encode("It was a fine day"))

    return [(path, load)]


def _bundle(folder: Path, device: htp.Device) -> list[_Target]:
    model = llm.Llama(layers=1, hidden=64, heads=1, kv_heads=1, head_dim=64, vocab=96, ffn=96, context=256)
    place = llm.export(model, context=256, ar=(32, 1)).save(folder / "bundle")

    def load() -> None:
        bundle = llm.Bundle.at(place)
        chat = llm.Generator(bundle, device)
        chat.free()

    def describe() -> None:
        bundle = GenieBundle.at(place)
        bundle.chip(None)
        bundle.config(asynchronous=True)

    files = [path for path in sorted(place.iterdir()) if path.is_file()]
    shutil.copyfile(ROOT / "examples/llm/austen/tokenizer.json", place / "tokenizer.json")
    return [(path, describe if path.name == GENIE_CONFIG else load) for path in files]


def damage(rng: random.Random, path: Path) -> str:
    """Something else in the place of a file; says what."""
    seed = rng.randrange(1 << 40)
    own = random.Random(seed)
    if own.random() < 0.1:
        path.unlink()
        kind = own.choice(("folder", "pipe", "zero", "loop", "nothing"))
        if kind == "folder":
            path.mkdir()
        elif kind == "pipe":
            os.mkfifo(path)
        elif kind != "nothing":
            path.symlink_to("/dev/zero" if kind == "zero" else path)
        return kind
    data = path.read_bytes()
    if path.suffix == ".json" and own.random() < 0.7:
        tree = json.loads(data)
        _change(own, tree)
        path.write_text(json.dumps(tree))
    elif path.suffix == ".safetensors" and own.random() < 0.7:
        path.write_bytes(_with_other_header(own, data))
    elif own.random() < 0.2:
        path.write_bytes(data[: own.randrange(len(data))])
    else:
        part = own.choice((64, 1024, len(data)))
        path.write_bytes(mutated(own, data[:part]) + data[part:])
    return f"seed {seed}"


def _change(rng: random.Random, tree: Any) -> None:
    """Something odd in one place of a tree, each as likely as any other."""
    path = rng.choice([path for path, _ in leaves(tree)])
    for key in path[:-1]:
        tree = tree[key]
    tree[path[-1]] = rng.choice(_ODD)


def _with_other_header(rng: random.Random, data: bytes) -> bytes:
    (length,) = struct.unpack_from("<Q", data)
    header = json.loads(data[8 : 8 + length])
    _change(rng, header)
    text = json.dumps(header).encode()
    size = rng.choice((len(text), len(text), len(text), len(text) - 1, 0, 1 << 62))
    return struct.pack("<Q", size) + text + data[8 + length :]


def remove(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        path.rmdir()
    else:
        path.unlink(missing_ok=True)


class _Sections:
    """A graph with a tensor that may be exchanged, and damaged sections for it."""

    def __init__(self, device: htp.Device) -> None:
        self._context = device.create_context()
        graph = self._context.create_graph("updated")
        x = graph.add_tensor("x", (1, 8), "float32", kind="app_write")
        w = graph.add_tensor("w", (8, 8), "float32", kind="updateable_static", data=np.eye(8, dtype=np.float32))
        y = graph.add_tensor("y", (1, 8), "float32", kind="app_read")
        graph.add_node("FullyConnected", inputs=[x, w], outputs=[y])
        graph.finalize()
        self._graph = graph
        self._good = bytes(self._context.get_binary_section(graph))

    def attack(self, rng: random.Random, watch: Watch) -> None:
        """One damaged section; a refused one changes nothing."""
        data = mutated(rng, self._good)
        before = self._graph.execute({"x": np.ones((1, 8), np.float32)})["y"].copy()
        refused = True
        with watch.call(f"apply_binary_section({data[:60]!r}...)"):
            self._context.apply_binary_section(self._graph, data)
            refused = False
        if refused and not np.array_equal(self._graph.execute({"x": np.ones((1, 8), np.float32)})["y"], before):
            watch.found("wrong", "a section that was refused has changed the graph")

    def close(self) -> None:
        """Free it."""
        self._context.free()
