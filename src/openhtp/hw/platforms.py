"""Operating systems that clients of an HTP run on; scheduling differs on Windows."""

from __future__ import annotations

PLATFORMS = ("android", "linux", "qnx", "windows")
