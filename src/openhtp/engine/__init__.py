"""How the steps of a program run: on ONNX Runtime's CPU kernels (``ort.py``), or not at all (``modelled.py``).

Knows programs for a SoC and arrays. Must not know sockets, sessions, queues or priorities, nor how a program came
about. Start at ``protocol.py``, then ``lowering.py`` and ``sessions.py``.
"""
