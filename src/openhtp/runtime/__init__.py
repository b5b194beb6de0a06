"""The client library, in five rooms.

``objects/`` has what users hold, ``calls/`` the way of one execution, ``links/`` the ways to a device,
``binaries/`` what is saved and loaded, and ``instruments/`` what records, replays and injects. Knows the API's
rules and the device's messages. Must not know how the device does its work. Start at ``objects/graph.py``.
"""
