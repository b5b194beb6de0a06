"""The table of ``openhtp bench networks``."""

from __future__ import annotations

from rich.box import SIMPLE
from rich.table import Table

from openhtp.bench.networks import Contender, NetworksResult

HOW_TO_INSTALL = "the vendor's simulator is not installed: pip install 'openhtp[vendor]' (x86-64 Linux)"


def networks_table(result: NetworksResult) -> Table:
    """One line per network, in 80 columns; the vendor's only if they were asked for."""
    title = "one inference, one thread (medians, measured in turns, wall clock)"
    table = Table(title=title, box=SIMPLE, pad_edge=False, collapse_padding=True)
    table.add_column("network", no_wrap=True)
    with_vendor = result.vendor_installed is not None
    heads = ["OpenHTP\nms", "ORT\nms", "times\nORT"]
    if with_vendor:
        heads += ["vendor\nms", "times\nvendor"]
    for head in (*heads, "dB to float:\nours/ORT/vendor" if with_vendor else "dB to float:\nours/ORT"):
        table.add_column(head, justify="right")
    for row in result.rows:
        cells = [_ms(row.openhtp), _ms(row.onnxruntime), f"{row.times_onnxruntime:.2f}"]
        decibels = [row.openhtp, row.onnxruntime]
        if with_vendor:
            cells += [_ms(row.vendor), "-" if row.times_vendor is None else f"{row.times_vendor:.0f}"]
            decibels += [] if row.vendor is None else [row.vendor]
        table.add_row(
            f"{row.network} {row.activation}", *cells, " ".join(f"{one.sqnr_db:.1f}" for one in decibels)
        )
    return table


def _ms(contender: Contender | None) -> str:
    return "not installed" if contender is None else f"{contender.ms:,.1f}"
