"""From a QNN graph to a program: first the portable one, then the one for a SoC, by passes that each do one thing.

Knows graphs, ops, programs and chips as data. Must not know devices, sessions or how a program is run. Start at
``driver.py``, which reads top to bottom; ``pass_base.py`` says what a pass is.
"""
