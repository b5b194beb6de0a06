"""The limits of the API and of the HTP, for every room that enforces them."""

from __future__ import annotations

from openhtp.core.units import MIB

SESSION_LIMIT_BYTES = 3840 * MIB
"""The bytes that one session (process domain) of an HTP can address: 3.75 GB, weights and tensors together."""

MAX_SHARED_WEIGHT_GRAPHS = 64
"""Graphs of one context whose common weights can be stored once."""

MAX_COMPRESSED_GRAPHS = 32
"""Graphs of one context of which some compress inputs or weights (DLBC); half as many if both are compressed."""

MAX_READ_BUDGET_MB = 1 << 20
"""The largest piece in which a binary is read; more than any file."""

DEFAULT_QUEUE_DEPTH = 10
MAX_QUEUE_DEPTH = 300
"""Executions that a context's queue holds."""

MAX_WAIT_US = 24 * 3600 * 1_000_000
"""The longest timeout or deadline: a day. More is a mistake of unit, and timers have limits of their own."""
