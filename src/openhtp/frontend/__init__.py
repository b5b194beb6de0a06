"""From ONNX files to QNN graphs; the nodes that an HTP takes (``partitioning.py``); quantizing (``quantize.py``).

Knows ONNX models, QNN ops and how the one becomes the other. Must not know programs, devices or sessions. Start at
``onnx_import.py``, which reads top to bottom; ``onnx_reader.py`` is the only module on that way that imports
``onnx``, and ``rules/`` holds one function per ONNX operator.
"""
