"""The client's objects: backend, device, context, graph, tensor, memory, signal, profile, log.

Knows the API's rules and the device's messages. Must not know how the device does its work. Start at ``graph.py``,
then ``calls/`` for the way of one execution and ``links/`` for the ways to a device; ``lifecycle.py`` has what may
be called when, as one table.
"""
