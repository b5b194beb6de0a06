"""The device process: our cDSP. Owns loaded graphs, mapped memory, the scheduler and the thread that computes.

Knows messages, programs, how they are compiled for its SoC, and the scheduler. Must not know the client's objects.
Start at ``loop.py`` (what runs), then ``core.py`` (what a client may ask for) and ``server.py`` (how it asks);
``target.py`` is where a portable program becomes one that can run.
"""
