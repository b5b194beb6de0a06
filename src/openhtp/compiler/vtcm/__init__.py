"""What lies where in VTCM, and what has to go to DDR and back. Pure functions on sizes of kernels.

Knows sizes, lifetimes and the VTCM's capacity; must not know ops, rates or clocks. ``arena.py`` gives out ranges,
``strips`` says how small a kernel's pieces are, ``spill.py`` walks the kernels and evicts, ``weights.py`` lays out
what is fetched ahead, ``order.py`` reorders; start at ``place.py``, which calls them.
"""
