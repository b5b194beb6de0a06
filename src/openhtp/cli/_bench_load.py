"""The table of ``openhtp bench load``."""

from __future__ import annotations

from rich.box import SIMPLE
from rich.table import Table

from openhtp.bench.loading import LoadResult

NOT_PREPARED = "a device could not use what another had prepared: is there a home directory to keep a key in?"


def load_table(result: LoadResult) -> Table:
    """One line per network and way, in 80 columns."""
    title = "from file to ready, one thread (medians, measured in turns, wall clock)"
    table = Table(title=title, box=SIMPLE, pad_edge=False, collapse_padding=True)
    table.add_column("network", no_wrap=True)
    table.add_column("way", no_wrap=True)
    for head in ("file\nMB", "ready\nms", "first result\nms", "times\nORT"):
        table.add_column(head, justify="right")
    for row in result.rows:
        table.add_row(
            row.network,
            row.way,
            f"{row.file_bytes / 1e6:.1f}",
            f"{row.ready_s * 1e3:,.0f}",
            f"{row.first_result_s * 1e3:,.0f}",
            f"{row.times_onnxruntime:.2f}",
        )
    return table
