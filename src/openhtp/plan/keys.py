"""The keys of a scenario file, mapping by mapping: for the reader, and for the schema that editors use."""

from __future__ import annotations

from openhtp.options.device import POLICIES as POLICIES
from openhtp.plan.scenario import Pattern

MODEL = ("model", "precision", "dims", "freeze")
"""Which model runs."""
PRECISIONS = ("float", "w8a8", "w8a16")

TOP = ("name", "unit", "device", "clients", "events", "policy", "duration")
DEVICE_SIZES = ("soc", "hvx", "hmx", "vtcm_mb", "vtcm_bytes", "cores", "dma_gbs", "eviction")
DEVICE = (*DEVICE_SIZES, "sharing", "windowing", "parallel_graphs", "platform")
CLIENT_SIZES = ("hmx", "hvx", "vtcm_mb", "vtcm_bytes", "page_mb", "core", "pd")
CLIENT = ("name", "kind", "priority", *CLIENT_SIZES, "deadline", "depth", "steps", "timeout", "run", *MODEL)
PATTERNS = tuple(pattern.value for pattern in Pattern)
EVENT = ("client", "run", *MODEL, *PATTERNS, "from", "until", "count", "seed", "think", "delay")
POLICY = ("name", "window")
KINDS = ("graph", "app")
