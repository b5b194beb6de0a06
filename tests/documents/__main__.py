"""``python -m tests.documents [PAGE...] [--all] [--count]``: see running.py."""

import sys

from tests.documents.running import main

sys.exit(main())
