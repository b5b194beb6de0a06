"""The configuration with which Genie, Qualcomm's engine for language models, runs an exported bundle.

Keys and their meaning are those of the public page "Genie Dialog JSON configuration string". Files are named as
they lie beside the configuration, so that the folder can be moved: Genie is started in that folder, or is given
absolute names, as ``openhtp genie chat`` does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from openhtp.core.hmx_layout import BLOCK
from openhtp.llm.config import LlamaConfig
from openhtp.llm.positions import RopeScaling, frequencies

GENIE_CONFIG = "genie_config.json"
# Genie takes this for "no such token".
_NO_TOKEN = -1


def genie_config(
    config: LlamaConfig,
    parts: Sequence[str],
    tokenizer: str,
    *,
    context: int,
    native: bool,
    adapters: Mapping[str, Sequence[str]],
    embedding: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """A dialog that always takes the likeliest token, so that two runs can be compared.

    ``adapters`` has the files of each adapter, one for every part; ``embedding`` says where Genie looks tokens up
    for graphs that do not.
    """
    end = list(config.eos) or [_NO_TOKEN]
    return {
        "dialog": {
            "version": 1,
            "type": "basic",
            "context": {
                "version": 1,
                "size": longest_dialog(context, native=native),
                "n-vocab": config.vocab,
                "bos-token": _NO_TOKEN if config.bos is None else config.bos,
                "eos-token": end[0] if len(end) == 1 else end,
            },
            "sampler": {"version": 1, "seed": 1, "temp": 1.0, "top-k": 1, "top-p": 1.0},
            "tokenizer": {"version": 1, "path": tokenizer},
            **({} if embedding is None else {"embedding": dict(embedding)}),
            "engine": {
                "version": 1,
                "n-threads": 2,
                "backend": {"version": 1, "type": "QnnHtp", "QnnHtp": _backend(config)},
                "model": {
                    "version": 1,
                    "type": "binary",
                    "binary": {"version": 1, "ctx-bins": list(parts), **_lora(adapters)},
                    "positional-encoding": _positions(config, context),
                },
            },
        }
    }


def longest_dialog(context: int, *, native: bool) -> int:
    """The most tokens that Genie may be told a cache has.

    Genie fills a cache to the last place and then asks for one more pass, whose new tokens have no room: a native
    cache needs a whole block for them, any other one place. Given this number, Genie ends the query itself;
    otherwise the query fails, or Genie's process ends.
    """
    return context - (BLOCK if native else 1)


def _lora(adapters: Mapping[str, Sequence[str]]) -> dict[str, Any]:
    if not adapters:
        return {}
    sections = [{"version": 1, "name": name, "bin-sections": list(files)} for name, files in adapters.items()]
    # Genie wants the name of an input that scales adapters, whether the graphs have one or not.
    return {"lora": {"version": 1, "alpha-tensor-name": "lora_alpha", "adapters": sections}}


def _backend(config: LlamaConfig) -> dict[str, Any]:
    return {
        "version": 1,
        "use-mmap": True,
        "spill-fill-bufsize": 0,
        "mmap-budget": 0,
        "poll": False,
        "cpu-mask": "0x3",
        "kv-dim": config.head_dim,
        "allow-async-init": False,
    }


def _positions(config: LlamaConfig, context: int) -> dict[str, Any]:
    rope: dict[str, Any] = {"type": "rope", "rope-dim": config.head_dim // 2, "rope-theta": _number(config.theta)}
    scaling = config.scaling
    if scaling is not None:
        llama3 = scaling.kind == "llama3"
        rope["rope-scaling"] = _llama3(scaling) if llama3 else _each_pair(config, scaling, context)
    return rope


def _llama3(scaling: RopeScaling) -> dict[str, Any]:
    return {
        "rope-type": "llama3",
        "factor": scaling.factor,
        "low-freq-factor": scaling.low,
        "high-freq-factor": scaling.high,
        "original-max-position-embeddings": int(scaling.original),
    }


def _each_pair(config: LlamaConfig, scaling: RopeScaling, context: int) -> dict[str, Any]:
    """Any stretching as LongRoPE, the one kind that names a divisor for each frequency.

    Genie does not know ``linear`` and ``yarn``. It would also multiply cosines and sines by what follows from the
    factor; the graphs have that in their scores, so the factor is 1.
    """
    plain = frequencies(config.theta, config.head_dim, None, context)
    divisors = [float(divisor) for divisor in plain / scaling.stretched(plain, config.theta, context)]
    return {
        "rope-type": "longrope",
        "factor": 1.0,
        "original-max-position-embeddings": int(scaling.original),
        "short-factor": divisors,
        "long-factor": divisors,
    }


def _number(value: float) -> int | float:
    """Genie wants whole numbers written as such."""
    return int(value) if float(value).is_integer() else value
