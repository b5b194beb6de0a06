"""Measurements that compare: sync with async, ours with peers, always side by side in one run.

Knows the public API and how to tell a quiet machine from a busy one. Must not know how results are shown. Start
at ``quiet.py``, which says why a number from a shared machine needs a gate; then one file for each command.
"""
