"""The command line: parse, call, print. No behaviour of its own.

A command is a module with a function of the same name (``plan.py``: ``plan``), a group of commands is a module
with a Typer ``app`` (``device.py``). A new one is a new file. Start at ``main.py``, which finds them.
"""
