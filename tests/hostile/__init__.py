"""Attacks: calls, messages, files and deaths that nobody should send, and what must hold all the same.

``make hostile`` runs all of them for ten minutes; ``test_hostile.py`` runs a short form of each with a fixed seed.
Start at ``tally.py`` for what counts as a defect. A module ``fuzz_NAME.py`` with ``attack(rng, budget, watch)``
is an attack; no list is to be edited.
"""
