"""Instruments on the runtime: the saver of calls, injected faults, and what traces are told.

Nothing of them is on a call's way while none is on. Start at ``instrument.py``.
"""
