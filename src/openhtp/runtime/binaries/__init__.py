"""Context binaries: opened and validated, loaded to a device, saved, and updated by adapters.

Knows the container and the device's messages. Must not know executions. Start at ``load.py``.
"""
