"""How the steps of a program are computed: on ONNX Runtime's CPU kernels.

Knows programs for a SoC and arrays. Must not know sockets, sessions, queues or priorities, nor how a program came
about. Start at ``protocol.py``, then ``ort.py``, ``lowering.py`` and ``sessions.py``.
"""
