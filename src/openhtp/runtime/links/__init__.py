"""The ways to a device: a process of its own, this process, the vendor's library.

Knows sockets, processes and the device's messages. Must not know graphs or tensors. Start at ``link.py``, the
protocol that all links follow, then ``rpc_link.py``.
"""
