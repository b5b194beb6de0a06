"""The placement of data in VTCM, and the transfers to DDR and back. Pure functions on sizes of kernels.

Knows sizes, lifetimes and the VTCM's capacity; must not know ops, rates or clocks. ``spill.py`` gives out ranges,
walks the kernels and evicts. Start at ``place.py``, which cuts kernels into tiles, lays out the weights that are
fetched ahead, and calls the walk. ``spill_fill.py`` says how large the buffer in DDR is, by rules of its own.
"""
