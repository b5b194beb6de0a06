"""What the vendor's command-line tools do, behind the commands of the same names.

Knows their input lists, raw files, output folders and configurations; calls ``runtime``. Must not know terminals:
``cli`` parses options and prints. Start at ``net_run.py``.
"""
