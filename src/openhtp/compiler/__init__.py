"""Compiles a QNN graph: first to a portable program, then to one for a SoC, by passes that each do one thing.

Knows graphs, ops, programs and chips as data. Must not know devices, sessions or how a program is run. Start at
``driver.py``, which reads top to bottom; ``pass_base.py`` says what a pass is.
"""
