"""Helpers for tests of programs that use openhtp: a device on a virtual clock, faults to order, calls recorded.

>>> import openhtp.testing as testing
>>> sorted(name for name in testing.__all__)
['fail_next', 'hold', 'inject', 'record_calls', 'release', 'virtual_device']
"""

from openhtp.runtime.instruments.saving_calls import saved as record_calls
from openhtp.testing.devices import fail_next, hold, inject, release, virtual_device

__all__ = ["fail_next", "hold", "inject", "record_calls", "release", "virtual_device"]
