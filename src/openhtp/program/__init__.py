"""A compiled graph, ready for a device, and the bytes it is stored in.

Knows nodes after fusion, their work, static data, graph options and the context binary. Must not know how a
program was compiled nor how it is run. Start at ``program.py``; ``container.py`` describes the bytes.
"""
