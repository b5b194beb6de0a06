"""The table of ``openhtp bench load``."""

from __future__ import annotations

from openhtp.bench.loading import LoadResult
from openhtp.cli._sheet import Sheet

NOT_PREPARED = "a device could not use what another had prepared: is there a home directory to keep a key in?"


def load_sheet(result: LoadResult) -> Sheet:
    """One line per network and way."""
    columns = ("network", "way", "file\nMB", "ready\nms", "first result\nms", "times\nORT")
    sheet = Sheet("from file to ready, one thread (medians, measured in turns, wall clock)", columns, ("way",))
    for row in result.rows:
        sheet.add(
            row.network,
            row.way,
            f"{row.file_bytes / 1e6:.1f}",
            f"{row.ready_s * 1e3:,.0f}",
            f"{row.first_result_s * 1e3:,.0f}",
            f"{row.times_onnxruntime:.2f}",
        )
    return sheet
