"""Language models: from a checkpoint to AR graphs with a KV cache, and generation on a device.

Knows graphs, quantization and the runtime's objects. Must not know how the device schedules or computes. Start at
``export.py`` for what a model becomes, then ``cache.py`` and ``generator.py`` for how it runs.
"""

from __future__ import annotations

from openhtp.cost.llm import LlmEstimate, LlmShape, estimate_llm as estimate
from openhtp.llm.adapter import Adapter, load_adapter
from openhtp.llm.bundle import Bundle
from openhtp.llm.cache import KvCache
from openhtp.llm.checkpoint import load, shape_of
from openhtp.llm.config import LlamaConfig
from openhtp.llm.export import export
from openhtp.llm.generator import Generator, Sampling, Stats
from openhtp.llm.model import Llama
from openhtp.llm.tokenizer import Tokenizer, token_numbers

__all__ = [
    "Adapter",
    "Bundle",
    "Generator",
    "KvCache",
    "Llama",
    "LlamaConfig",
    "LlmEstimate",
    "LlmShape",
    "Sampling",
    "Stats",
    "Tokenizer",
    "estimate",
    "export",
    "load",
    "load_adapter",
    "shape_of",
    "token_numbers",
]
