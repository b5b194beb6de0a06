"""``libQnnHtp.so`` and ``libQnnSystem.so`` of ours: the C interface of QNN, answered by ``openhtp.runtime``.

Knows the C side's handles, structures and codes, and which call of the runtime each function is. The runtime
decides what a graph, a queue or a signal does. This package has what exists only in C: lists of options,
dimensions that are written back, binaries that the client keeps mapped, votes before there is a device.
``native/`` is the C stub, which hands every call to the function of that name here. Start at ``entries.py``, then
``boot.py`` and ``graph.py``.
"""
