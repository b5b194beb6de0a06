"""How client and device process talk: sockets for words, shared memory for tensors.

Knows bytes, descriptors and message shapes. Must not know what a message leads to on either side. Start at
``messages.py`` (rare, readable control messages) and ``frames.py`` (the two fixed frames of every execution).
"""
