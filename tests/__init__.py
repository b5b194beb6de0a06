"""The tests. Folders mirror ``src``; what many share is in ``conftest.py``, ``waiting.py`` and ``browser.py``."""

import os

# Before numpy is loaded, here and in processes that tests start. Threads that wait for each other's part of a
# small product keep other tests from the processors: beside others, an export took eight times as much of them.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
# Beside other tests there is no quiet moment, and a benchmark that waits for one takes both processors.
os.environ.setdefault("OPENHTP_BENCH_PATIENCE_S", "0")
# Of the width of the terminal that the tests were started in; those that are about widths give their own.
os.environ.pop("COLUMNS", None)
