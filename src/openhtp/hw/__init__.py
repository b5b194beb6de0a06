"""A chip as data: which SoCs exist, what their HTP has, what each architecture can do.

Knows nothing of graphs, costs or schedules. Start at ``soc.py`` and ``catalog.py``; the data are in ``socs.toml``.
"""
