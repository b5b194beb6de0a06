"""The keys of a scenario file, mapping by mapping: for the reader, and for the schema that editors use."""

from __future__ import annotations

from openhtp.options.device import POLICIES as POLICIES
from openhtp.planning.scenario import Pattern

MODEL = ("model", "precision", "dims", "freeze")
"""Which model runs."""
PRECISIONS = ("float", "w8a8", "w8a16")

TOP = ("name", "unit", "device", "clients", "events", "policy", "duration", "switching")
DEVICE_SIZES = ("soc", "hvx", "hmx", "vtcm_mb", "vtcm_bytes", "cores", "dma_gbs", "eviction")
DEVICE = (*DEVICE_SIZES, "sharing", "windowing", "parallel_graphs", "platform", "perf_profile")
CLIENT_SIZES = ("hmx", "hvx", "vtcm_mb", "vtcm_bytes", "page_mb", "core", "pd")
CLIENT_TIMES = ("deadline", "depth", "steps", "timeout", "run", "size_mb", "load")
CLIENT = ("name", "kind", "priority", "perf_profile", "votes", *CLIENT_SIZES, *CLIENT_TIMES, *MODEL, "llm")
VOTES = ("core", "bus", "hmx")
LLM_SHAPE = ("layers", "hidden", "heads", "kv_heads", "head_dim", "ffn", "vocab")
LLM = ("preset", *LLM_SHAPE, "precision", "context", "prompt", "generate", "chunk", "parts")
LLM_PRECISIONS = ("w4a16", "w8a16", "w4fp16")
PATTERNS = tuple(pattern.value for pattern in Pattern)
EVENT = ("client", "run", *MODEL, *PATTERNS, "from", "until", "count", "seed", "think", "delay")
SWITCHING = ("graphs", "retained", "room_mb")
POLICY = ("name", "window")
KINDS = ("graph", "app")
