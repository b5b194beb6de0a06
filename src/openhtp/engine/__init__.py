"""How a step of a program runs: on ONNX Runtime's CPU kernels, or only in modelled time.

Knows programs and arrays. Must not know sockets, sessions, queues or priorities. Start at ``protocol.py``.
"""
