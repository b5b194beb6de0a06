"""What an export holds for Genie: a configuration, the form with Concat, a warning where Genie goes wrong."""

from __future__ import annotations

import dataclasses
import json
import logging
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest

import openhtp as htp
from openhtp import llm
from openhtp.core.dtype import DType
from openhtp.core.errors import BadModel, InvalidArgument, UnsupportedFeature
from openhtp.core.quant import ScaleOffset
from openhtp.llm.config import RopeScaling, config_from
from openhtp.llm.positions import stored_turns
from openhtp.llm.quantizing import activation_encoding
from openhtp.program.binary import read_binary
from openhtp.program.sections import section_graphs
from tests.llm.conftest import AUSTEN
from tests.llm.test_adapter import pairs, peft


def test_a_bundle_has_a_configuration_for_genie(tiny: llm.Llama, tmp_path: Path) -> None:
    llm.export(tiny, ar=(32, 1), parts=2).save(tmp_path)
    dialog = json.loads((tmp_path / "genie_config.json").read_text())["dialog"]
    # Genie fills the cache to the last place; a pass of one token needs a whole block.
    assert dialog["context"]["size"] == 256 - 32
    assert dialog["context"]["n-vocab"] == 96
    assert dialog["engine"]["model"]["binary"]["ctx-bins"] == ["part_1_of_2.bin", "part_2_of_2.bin"]
    assert dialog["engine"]["backend"]["QnnHtp"]["kv-dim"] == 64
    assert dialog["engine"]["model"]["positional-encoding"] == {
        "type": "rope",
        "rope-dim": 32,
        "rope-theta": 10000,
    }
    flat = llm.export(tiny, ar=(1,), native_kv=False).genie_config()["dialog"]
    assert flat["context"]["size"] == 255


def test_tokens_and_rope_scaling_of_the_checkpoint_are_told_to_genie(tiny: llm.Llama) -> None:
    assert llm.load(AUSTEN).config.bos == 0
    bundle = llm.export(tiny, ar=(1,))
    scaling = RopeScaling(factor=8.0, low=1.0, high=4.0, original=8192)
    config = dataclasses.replace(bundle.config, bos=7, eos=(8, 9), scaling=scaling, theta=500000.0)
    about = msgspec.structs.replace(bundle.about, model=config)
    dialog = dataclasses.replace(bundle, about=about).genie_config()["dialog"]
    assert (dialog["context"]["bos-token"], dialog["context"]["eos-token"]) == (7, [8, 9])
    assert dialog["engine"]["model"]["positional-encoding"]["rope-scaling"] == {
        "rope-type": "llama3",
        "factor": 8.0,
        "low-freq-factor": 1.0,
        "high-freq-factor": 4.0,
        "original-max-position-embeddings": 8192,
    }


_HALF = 32
_STRETCHED = {
    "linear": RopeScaling(kind="linear", factor=4.0, original=256),
    "yarn": RopeScaling(kind="yarn", factor=4.0, low=1.0, high=32.0, original=64, attention=1.14),
    "longrope, long": RopeScaling(
        kind="longrope", factor=4.0, original=64, attention=1.15, short=(1.0,) * _HALF, long=(3.0,) * _HALF
    ),
    "longrope, short": RopeScaling(
        kind="longrope", factor=4.0, original=512, attention=1.15, short=(1.5,) * _HALF, long=(3.0,) * _HALF
    ),
}


@pytest.mark.parametrize("kind", _STRETCHED)
def test_genie_turns_positions_as_the_checkpoint_does(tiny: llm.Llama, kind: str) -> None:
    bundle = llm.export(tiny, ar=(1,))
    config = dataclasses.replace(bundle.config, scaling=_STRETCHED[kind])
    about = msgspec.structs.replace(bundle.about, model=config)
    dialog = dataclasses.replace(bundle, about=about).genie_config()["dialog"]
    told = dialog["engine"]["model"]["positional-encoding"]["rope-scaling"]
    # What Genie makes of a factor of 1 is nothing: the scores of the graphs are stretched already.
    assert (told["rope-type"], told["factor"]) == ("longrope", 1.0)
    plain = config.theta ** (-np.arange(0, config.head_dim, 2) / config.head_dim)
    cos, _ = config.rotations(1, 1, bundle.context)
    for divisors in (told["short-factor"], told["long-factor"]):
        np.testing.assert_allclose(np.cos(plain / divisors), np.ravel(cos)[:_HALF], atol=1e-6)
    json.dumps(told)


def test_positions_are_cut_off_to_whole_steps_as_genie_does(tiny: llm.Llama) -> None:
    quant = activation_encoding((-1.0, 1.0), DType.UFIXED_POINT_16)
    angles = tiny.config.angles(0, 256)
    cos, sin = stored_turns(angles, quant, np.dtype(np.uint16))
    for stored, values in ((cos, np.cos(angles)), (sin, np.sin(angles))):
        over = values / quant.scale - quant.offset - stored
        assert over.min() >= 0
        assert 0.9 < over.max() < 1
    # An encoding that does not reach as far as 1 ends at its last step.
    narrow = ScaleOffset(0.5 / 65535, 0)
    assert stored_turns(angles, narrow, np.dtype(np.uint16))[0].max() == 65535


@pytest.mark.parametrize("given", [96, -1, "x", [1, 2.5]])
def test_a_token_outside_the_vocabulary_is_refused(given: object) -> None:
    content = {"vocab": 96, "d": 64, "layers": 1, "heads": 1, "ffn": 64, "context": 256, "eos_token_id": given}
    with pytest.raises(BadModel, match="eos_token_id"):
        config_from(content)


def test_masked_softmax_a_is_warned_of(tiny: llm.Llama, caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        llm.export(tiny, ar=(1,), masked_softmax="B")
    assert not caplog.records
    with caplog.at_level(logging.WARNING):
        llm.export(tiny, ar=(1,), masked_softmax="A")
    assert "Take B or C for Genie" in caplog.text


def test_concat_caches_are_shorter_by_the_new_tokens(tiny: llm.Llama, device: htp.Device) -> None:
    bundle = llm.export(tiny, ar=(32, 1), concat_kv=True)
    info = read_binary(bundle.binaries[0]).graph_info("prompt_ar32_cl256_1_of_1")
    shapes = {spec.name: spec.shape for spec in info.inputs}
    assert "cache_index" not in shapes
    assert (shapes["past_key_0_in"], shapes["past_value_0_in"]) == ((1, 1, 64, 224), (1, 1, 224, 64))
    with pytest.raises(UnsupportedFeature, match="openhtp genie chat"):
        llm.Generator(bundle, device)
    with pytest.raises(InvalidArgument, match="native_kv and concat_kv"):
        llm.export(tiny, native_kv=True, concat_kv=True)


def test_a_pass_with_concat_gives_the_bits_of_one_with_scatter(tiny: llm.Llama, device: htp.Device) -> None:
    """The same 32 tokens behind the same 40: new ones lie at the end of the context, or where the index says."""
    results = {}
    random = np.random.default_rng(3)
    past = {name: random.integers(100, 156, (1, 1, 40, 64), np.uint8) for name in ("key", "value")}
    turns = [random.integers(0, 65536, (1, 1, 32, 32), np.uint16) for _ in range(2)]
    for concat in (False, True):
        bundle = llm.export(tiny, ar=(32,), native_kv=False, concat_kv=concat, calibration=list(range(96)))
        graph = device.create_context_from_binary(bundle.binaries[0]).graph("prompt_ar32_cl256_1_of_1")
        place = 224 if concat else 64
        mask = np.zeros((1, 1, 32, 256), np.uint16)
        mask[..., :40] = 65535
        mask[..., place : place + 32] = np.tri(32) * 65535
        inputs: dict[str, Any] = {"input_ids": np.arange(32, dtype=np.int32)[None], "attention_mask": mask}
        inputs |= dict(zip(("position_ids_cos", "position_ids_sin"), turns, strict=True))
        if not concat:
            inputs["cache_index"] = np.array([place], np.int32)
        for spec in graph.inputs:
            if spec.name.startswith("past_"):
                cache = np.full(spec.shape, 128, np.uint8)
                if "key" in spec.name:
                    cache[..., :40] = past["key"].swapaxes(2, 3)
                else:
                    cache[:, :, :40] = past["value"]
                inputs[spec.name] = cache
        results[concat] = graph.execute(inputs)
    for name, values in results[False].items():
        np.testing.assert_array_equal(results[True][name], values, name)
    assert results[True]["logits"].std() > 0


@pytest.mark.parametrize("precision", ["w8a16", "w8a8"])
def test_embedded_tokens_have_the_bits_of_token_numbers(
    tiny: llm.Llama, device: htp.Device, tmp_path: Path, precision: str
) -> None:
    # Rows from outside have the axes of the checkpoint, so other weights are rounded than behind token numbers.
    options: dict[str, Any] = {"ar": (1,), "precision": precision, "calibration": list(range(96))}
    options["rounding"] = "nearest"
    given = llm.export(tiny, embedding_input=True, **options)
    read = llm.Bundle.at(given.save(tmp_path))
    lookup = json.loads((tmp_path / "genie_config.json").read_text())["dialog"]["embedding"]
    dtype = {"ufixed16": np.uint16, "ufixed8": np.uint8}[lookup["datatype"]]
    table = np.frombuffer((tmp_path / lookup["lut-path"]).read_bytes(), dtype)
    graphs = [
        device.create_context_from_binary(bundle.binaries[0]).graph("token_ar1_cl256_1_of_1")
        for bundle in (read, llm.export(tiny, **options))
    ]
    inputs = {spec.name: np.full(spec.shape, 128, spec.dtype.numpy) for spec in graphs[1].inputs}
    inputs["cache_index"][...] = 0
    embedded = graphs[0].tensors["inputs_embeds"]
    assert embedded.quant == ScaleOffset(lookup["quant-param"]["scale"], lookup["quant-param"]["offset"])
    for token in (0, 5, 95):
        inputs["input_ids"][...] = token
        rows = {"inputs_embeds": table.reshape(96, 1, 1, lookup["size"])[token]}
        expected = graphs[1].execute(inputs)["logits"]
        others = {name: array for name, array in inputs.items() if name != "input_ids"}
        np.testing.assert_array_equal(graphs[0].execute(rows | others)["logits"], expected)
    with pytest.raises(UnsupportedFeature, match="openhtp genie chat"):
        llm.Generator(read, device)


def test_adapters_are_told_to_genie_with_a_section_for_every_graph(tiny: llm.Llama, tmp_path: Path) -> None:
    adapter = llm.load_adapter(peft(tmp_path / "one", pairs(1)), tiny.config)
    bundle = llm.export(tiny, ar=(32, 1), parts=2, adapters=[adapter])
    binary = bundle.genie_config()["dialog"]["engine"]["model"]["binary"]
    (told,) = binary["lora"]["adapters"]
    assert (told["name"], told["bin-sections"]) == ("one", ["adapter_one_1_of_2.bin", "adapter_one_2_of_2.bin"])
    for part, section in zip(bundle.binaries, bundle.adapters["one"], strict=True):
        assert section_graphs(section) == read_binary(part).graph_names


def test_rows_of_an_app_have_the_axes_of_the_checkpoint(tiny: llm.Llama, tmp_path: Path) -> None:
    given = llm.export(tiny, embedding_input=True, ar=(1,), calibration=list(range(96)))
    assert given.about.embedding is not None
    given.save(tmp_path)
    stored = np.frombuffer((tmp_path / "embedding.raw").read_bytes(), np.uint16).reshape(tiny.table.shape)
    rows = (stored.astype(np.float64) + given.about.embedding.offset) * given.about.embedding.scale
    np.testing.assert_allclose(rows, tiny.table, atol=given.about.embedding.scale)
