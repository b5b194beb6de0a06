"""Words everyone shares: data types, quantization, tensor specs, status codes, errors, priorities.

Knows nothing of the rest of the package and imports none of it. Start at ``tensor.py``, ``errors.py`` and
``status.py``.
"""
