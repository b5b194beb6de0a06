"""How tests wait: for an event, however long it takes.

How soon something happens says how busy the machine is. A wait for what must happen therefore ends with it, and
``PATIENCE_S`` only turns what never happens into a failure that names its line. It is shorter than the limit of a
test (``timeout`` in ``pyproject.toml``), which would end the test without saying which event was missing.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

PATIENCE_S = 300.0
_LOOK_AGAIN_S = 0.001


def wait_until(condition: Callable[[], object]) -> None:
    """Wait for what can be seen but does not announce itself."""
    end = time.monotonic() + PATIENCE_S
    while not condition():
        assert time.monotonic() < end, "it never came"
        threading.Event().wait(_LOOK_AGAIN_S)
