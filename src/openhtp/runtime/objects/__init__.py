"""The objects that users hold: backend, device, context, graph, tensor, memory, signal, profile, log, app.

Knows the API's rules. Must not know how a link reaches its device. Start at ``graph.py``; ``lifecycle.py`` says
what may be called when, as one table.
"""
