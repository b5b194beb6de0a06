"""``openhtp llm``: text as it comes, bundles, estimates and perplexity."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

from openhtp import llm
from openhtp.cli.main import app
from tests.llm.test_prepared_bundle import saved_tiny
from tests.waiting import PATIENCE_S

AUSTEN = Path(__file__).parents[2] / "examples" / "llm" / "austen"


def openhtp(*words: str | Path, code: int = 0) -> str:
    done = CliRunner().invoke(app, ["llm", *map(str, words)])
    assert done.exit_code == code, done.output
    return done.output


def test_export_then_run(tmp_path: Path) -> None:
    calibration = tmp_path / "text.txt"
    calibration.write_text(
        "It is a truth universally acknowledged, that a single man must be in want of a wife. " * 3
    )
    bundle, told = tmp_path / "bundle", tmp_path / "run.json"
    output = openhtp("export", AUSTEN, "-o", bundle, "--ar", "32,1", "--calibration", calibration)
    assert "prompt_ar32_cl1024_1_of_1" in output
    output = openhtp("run", bundle, "It was a fine", "-n", "6", "--json", told)
    assert "It was a fine" in output
    assert "tokens/s (measured on this machine)" in " ".join(output.split())
    document = json.loads(told.read_text())
    assert document["new_tokens"] == 6
    assert document["times"] == "measured"
    assert document["text"] in output


def test_estimates_are_modelled_and_say_so() -> None:
    output = openhtp("estimate", "llama-3.2-3b", "--soc", "SM8750,SM8550", "--prompt", "512", "--json", "-")
    document = json.loads(output)
    assert document["times"] == "modelled"
    rows = [(row["soc"], row["kv"]) for row in document["estimates"]]
    assert rows == [(soc, kv) for soc in ("SM8750", "SM8550") for kv in ("flat", "native")]
    assert "no rates are published" in openhtp("estimate", "llama-3.2-1b", "--soc", "SM8550")


def test_an_estimate_needs_only_the_config_of_a_folder(tmp_path: Path) -> None:
    config = {
        "architectures": ["Gemma3ForCausalLM"],
        "num_hidden_layers": 26,
        "hidden_size": 1152,
        "head_dim": 256,
    }
    config |= {"num_attention_heads": 4, "num_key_value_heads": 1, "intermediate_size": 6912, "vocab_size": 262144}
    (tmp_path / "gemma").mkdir()
    (tmp_path / "gemma" / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 32768}))
    rows = json.loads(openhtp("estimate", tmp_path / "gemma", "--soc", "SM8750", "--json", "-"))["estimates"]
    assert [(row["model"], row["kv"]) for row in rows] == [("gemma", "flat"), ("gemma", "native")]
    shape = llm.shape_of(tmp_path / "gemma")
    assert (shape.kv_heads, shape.head_dim, shape.ffn) == (1, 256, 6912)
    assert rows[0]["tokens_per_s"] == llm.estimate(shape, "SM8750").tokens_per_s


def test_an_estimate_counts_wide_weights(tmp_path: Path) -> None:
    def row(*words: str | Path) -> dict[str, Any]:
        options = ("--precision", "w8a16", "--kv", "native", "--json", "-")
        return dict(json.loads(openhtp("estimate", *words, *options))["estimates"][0])

    plain, wide = row(AUSTEN, "--context", "1024", "--wide", "none"), row(AUSTEN, "--context", "1024")
    assert wide["wide"] == ["output", "down", "gate", "up"]
    # Half a byte for each weight of the four kinds.
    assert wide["weight_bytes"] - plain["weight_bytes"] == (1024 * 256 + 4 * 3 * 768 * 256) / 2
    assert wide["tokens_per_s"] < plain["tokens_per_s"]
    assert wide["pass_ms"] > plain["pass_ms"]
    assert row("llama-3.2-1b")["wide"] == []
    assert row("llama-3.2-1b", "--wide", "down")["wide"] == ["down"]
    assert "expected auto, none or some of wq" in openhtp("estimate", AUSTEN, "--wide", "sideways", code=2)
    output = openhtp("estimate", AUSTEN, "--precision", "w8a16", "--context", "1024")
    assert "Wide weights (output, down, gate, up) are read as 12 bits" in " ".join(output.split())


@pytest.mark.parametrize(
    ("when", "told"),
    [
        ("lm.export", "nothing was written to bundle"),
        ("write_file", "bundle has some files of a bundle and no bundle.json: export it again, or delete it"),
        ("confirm_written", "the bundle in bundle is complete"),
    ],
)
def test_an_interrupted_export_says_what_is_left(tmp_path: Path, when: str, told: str) -> None:
    """What the export calls interrupts it, so neither too early nor too late. A bundle of old is in the folder."""
    script = f"""
        import os, signal, sys, time
        import openhtp.cli.llm as command
        import openhtp.llm.bundle as bundle
        from openhtp.cli.main import main
        from openhtp.core.files import write_file

        def interrupted(*words, **options):
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(60)

        def once(path, data):
            write_file(path, data)
            if len(list(path.parent.iterdir())) > 1:
                interrupted()

        where = {{"lm.export": command.lm, "write_file": bundle, "confirm_written": command}}[{when!r}]
        setattr(where, {when.rpartition(".")[2]!r}, once if where is bundle else interrupted)
        sys.argv = ["openhtp", "llm", "export", "tiny", "-o", "bundle", "--ar", "1", "--rounding", "nearest"]
        sys.exit(main())
    """
    saved_tiny(tmp_path / "tiny")
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / "bundle.json").write_text("of old")
    command = [sys.executable, "-c", textwrap.dedent(script)]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert (done.returncode, " ".join(done.stderr.split())) == (130, f"interrupted: {told}")
    assert ((tmp_path / "bundle" / "bundle.json").exists()) == (when != "write_file")


def test_a_name_that_is_no_preset_is_told_of_folders() -> None:
    output = openhtp("estimate", "nonsense", code=2)
    assert "'nonsense' is neither a folder with a config.json here nor a preset" in output
    assert "qwen3-4b" in output


def test_chunks_are_shown_side_by_side() -> None:
    output = openhtp("chunks", "llama-3.2-3b", "--parts", "1,3")
    assert "128 tokens in 3 parts" in output
    assert "modelled" in output
    document = json.loads(openhtp("chunks", "llama-3.2-3b", "--parts", "3", "--json", "-"))
    assert [row["chunk"] for row in document["rows"]] == [128, 64, 32]
    assert document["times"] == "modelled"
    assert "--parts is 'x'" in openhtp("chunks", "llama-3.2-3b", "--parts", "x", code=2)


def test_the_second_run_is_from_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Quantized and compiled once; the text stays the same, whatever the cache holds."""
    told, store, model = tmp_path / "run.json", tmp_path / "cache", tmp_path / "model"
    monkeypatch.setenv("OPENHTP_CACHE", str(store))
    saved_tiny(model)

    def ran(*words: str) -> tuple[str, str]:
        output = openhtp("run", model, "ab", "-n", "5", "--json", told, *words)
        document = json.loads(told.read_text())
        assert document["first_token_from_start_s"] * 1e3 > document["ttft_ms"] > 0
        assert "after the start of the command" in " ".join(output.split())
        return document["model_was"], document["text"]

    origin, text = ran("--no-cache")
    assert (origin, store.exists()) == ("exported", False)
    assert [ran(), ran()] == [("exported", text), ("compiled", text)]
    assert ran("--wide", "none")[0] == "exported"  # another model
    monkeypatch.setenv("OPENHTP_CACHE", str(told / "models"))
    output = openhtp("run", model, "ab", "-n", "5")
    assert output.count("no cache, so everything is prepared anew each time") == 1


def test_the_cache_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENHTP_CACHE", str(tmp_path / "cache"))
    saved_tiny(tmp_path / "model")
    openhtp("run", tmp_path / "model", "ab", "-n", "1")

    def cache(*words: str, code: int = 0) -> str:
        done = CliRunner().invoke(app, ["cache", *words])
        assert done.exit_code == code, done.output
        return " ".join(done.output.split())

    assert "model, compiled for SM8650" in cache("show")
    cache("show", "--json", str(tmp_path / "cache.json"))
    document = json.loads((tmp_path / "cache.json").read_text())
    assert {row["kind"] for row in document["models"]} == {"llm", "llm-compiled"}
    assert document["bytes"] == sum(row["bytes"] for row in document["models"]) > 0
    assert cache("limit", "1GB").startswith("1 GiB at most")
    assert cache("limit") == cache("limit", "1GB")
    assert "expected a size like" in cache("limit", "much", code=2)
    assert cache("clear").startswith("removed ")
    assert cache("show").startswith("0 models, 0 B of at most")
    monkeypatch.setenv("OPENHTP_CACHE", "off")
    assert "switched off by OPENHTP_CACHE" in cache("show", code=2)


@pytest.mark.slow
def test_perplexity_compares(tmp_path: Path) -> None:
    told = tmp_path / "found.json"
    openhtp("perplexity", AUSTEN, AUSTEN / "held_out_tokens.npy", "--tokens", "992", "--json", told)
    rows = json.loads(told.read_text())["nats_per_token"]
    assert abs(rows["w8a16, emulated"] - rows["float"]) < 0.02
    assert abs(rows["w8a8, emulated"] - rows["float"]) < 0.15


def test_bad_input_is_one_line(tmp_path: Path) -> None:
    assert "config.json" in openhtp("run", tmp_path, code=2)
    bundle = tmp_path / "bundle"
    openhtp("export", AUSTEN, "-o", bundle, "--ar", "1", "--context", "256")
    (bundle / "tokenizer.json").write_text("{")
    refused = openhtp("run", bundle, "It was", code=2)
    assert refused.startswith("error: ")
    assert "cannot be read" in refused
    (tmp_path / "config.json").write_text('{"num_hidden_layers": 2, "num_local_experts": 8}')
    assert "num_local_experts is 8" in openhtp("estimate", str(tmp_path), code=2)
    assert "cannot read" in openhtp("estimate", str(tmp_path / "none"), code=2)
    assert "presets are llama-3.2-1b" in " ".join(openhtp("estimate", "gpt-9", code=2).split())
    assert "such as 128,32,1" in openhtp("export", AUSTEN, "-o", tmp_path / "b", "--ar", "x", code=2)
    wrong = tmp_path / "t.npy"
    np.save(wrong, np.array([5000]))
    assert "vocabulary ends at 1023" in " ".join(openhtp("perplexity", AUSTEN, wrong, code=2).split())
    assert not (tmp_path / "b").exists()
