"""The scheduler. Knows clients, jobs, priorities, HMX, HVX and VTCM, and how to put what it does on record.

Must not know time sources, threads, tensors or programs: time comes with each event, in integer nanoseconds.
Start at ``scheduler.py``; ``events.py`` and ``actions.py`` are everything that goes in and out; ``arbiter.py``
decides which jobs run side by side and which must yield; ``timed.py`` is the arithmetic of jobs that take a given
time, ``virtual.py`` the clock of plans and tests, ``recorder.py`` the way from either clock into a trace.
"""
