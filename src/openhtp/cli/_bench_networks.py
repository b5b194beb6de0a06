"""The table of ``openhtp bench networks``."""

from __future__ import annotations

from openhtp.bench.networks import Contender, NetworksResult
from openhtp.cli._text_table import TextTable

HOW_TO_INSTALL = "the vendor's simulator is not installed: pip install 'openhtp[vendor]' (x86-64 Linux)"


def networks_sheet(result: NetworksResult) -> TextTable:
    """One line per network; the vendor's only if they were asked for."""
    with_vendor = result.vendor_installed is not None
    heads = ["network", "OpenHTP\nms", "ORT\nms", "times\nORT"]
    if with_vendor:
        heads += ["vendor\nms", "times\nvendor"]
    heads.append("dB to float:\nours/ORT/vendor" if with_vendor else "dB to float:\nours/ORT")
    sheet = TextTable("one inference, one thread (medians, measured in turns, wall clock)", heads)
    for row in result.rows:
        cells = [_ms(row.openhtp), _ms(row.onnxruntime), f"{row.times_onnxruntime:.2f}"]
        decibels = [row.openhtp, row.onnxruntime]
        if with_vendor:
            cells += [_ms(row.vendor), "-" if row.times_vendor is None else f"{row.times_vendor:.0f}"]
            decibels += [] if row.vendor is None else [row.vendor]
        sheet.add(f"{row.network} {row.activation}", *cells, " ".join(f"{one.sqnr_db:.1f}" for one in decibels))
    return sheet


def _ms(contender: Contender | None) -> str:
    return "not installed" if contender is None else f"{contender.ms:,.1f}"
