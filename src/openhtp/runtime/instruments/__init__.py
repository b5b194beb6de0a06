"""Instruments on the runtime: the saver of calls, injected faults, and the news for traces.

They cost a call nothing while none is installed. Start at ``instrument.py``.
"""
