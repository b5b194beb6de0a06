"""A QNN graph as data, the only way to build one, and the nodes that make and read each of its tensors.

Knows tensors, static data, and nodes that name the tensors they use. Must not know how graphs are compiled or run.
Start at ``graph.py``, then ``builder.py``; ``def_use.py`` is the view through which patterns are found.
"""
