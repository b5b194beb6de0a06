"""What the API and the HTP allow at most, for every room that has to hold a caller to it."""

from __future__ import annotations

from openhtp.core.units import MIB

SESSION_LIMIT_BYTES = 3840 * MIB
"""What one session (process domain) of an HTP can address: 3.75 GB, weights and tensors together."""

DEFAULT_QUEUE_DEPTH = 10
MAX_QUEUE_DEPTH = 300
"""Executions that a context's queue holds."""

MAX_WAIT_US = 24 * 3600 * 1_000_000
"""The longest timeout or deadline: a day. More is a mistake of unit, and timers have limits of their own."""
