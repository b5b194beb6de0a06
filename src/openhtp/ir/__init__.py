"""A QNN graph as data, and the only way to build one.

Knows tensors, static data, nodes and which node makes what. Must not know how graphs are compiled or run.
Start at ``graph.py``, then ``builder.py``.
"""
