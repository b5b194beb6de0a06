"""The scheduler. Knows clients, jobs, priorities, HMX, HVX and VTCM.

Must not know time sources, threads, tensors or programs: time comes with each event, in integer nanoseconds.
Start at ``scheduler.py``; ``events.py`` and ``actions.py`` are everything that goes in and out;
``arbiter.py`` decides who runs beside whom and who must yield; ``virtual.py`` the clock of plans and tests.
"""
