"""The client's objects: backend, device, context, graph, tensor, memory, signal, profile, log.

Knows the API's rules and the device's messages. Must not know how the device does its work. Start at ``graph.py``
and ``execution.py``; ``lifecycle.py`` has what may be called when, as one table.
"""
