"""A compiled graph on its two levels, and its stored bytes.

Knows the portable program (QNN ops and encodings), the program for one SoC (kernels, steps, buffers), options of
graphs and the context binary. Must not know how a program was compiled or how it is run. Start at
``qnn_program.py``, then ``htp_program.py``; ``container.py`` describes the bytes.
"""
