"""QNN clients from PyPI, unmodified, on our libraries: what ``make clients`` runs. Start reading at ``run.py``.

Files here run in the clients' own environments and import nothing of ours but where they say so.
"""
