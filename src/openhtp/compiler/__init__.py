"""From a QNN graph to a program, by passes that each do one thing.

Knows graphs, ops and programs. Must not know devices, sessions or how a program is run. Start at ``driver.py``,
which reads top to bottom.
"""
