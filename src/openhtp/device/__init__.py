"""The device process: our cDSP. Owns loaded graphs, mapped memory, the scheduler and the thread that computes.

Knows messages, programs, how they are compiled for its SoC, and the scheduler. Must not know the client's objects.
Start at ``loop.py`` (what runs), then ``requests`` (what a client may ask for), ``tasks.py`` (requests that are
slow), ``sessions.py`` (what a client has) and ``server.py`` (how a client asks). In ``target.py`` a portable
program becomes one that can run.
"""
