"""Every operation, alone and in random graphs, on our engine, on the vendor's library and in exact arithmetic.

What ``make vendor-diff`` and ``tests/vendor`` compare with. Start at ``differential.py``, which runs one case;
``agreement.py`` says how well many agree, and ``random_graphs.py`` draws whole graphs.
"""
