"""The tables of ``openhtp bench load`` and ``abort``."""

from __future__ import annotations

from openhtp.bench.binaries import BinaryFigures
from openhtp.bench.cancelling import CancelResult
from openhtp.bench.loading import LoadResult
from openhtp.cli._text_table import TextTable, figures

NOT_PREPARED = "a device could not use what another had prepared: is there a home directory to keep a key in?"


def load_sheet(result: LoadResult) -> TextTable:
    """One line per network and way."""
    columns = ("network", "way", "file\nMB", "ready\nms", "first result\nms", "times\nORT", "of saved\n.ort")
    sheet = TextTable("from file to ready, one thread (medians, measured in turns, wall clock)", columns, ("way",))
    for row in result.rows:
        sheet.add(
            row.network,
            row.way.removeprefix("OpenHTP, ").replace("ONNX Runtime", "ORT"),
            f"{row.file_bytes / 1e6:.1f}",
            f"{row.ready_s * 1e3:,.0f}",
            f"{row.first_result_s * 1e3:,.0f}",
            f"{row.times_onnxruntime:.2f}",
            f"{row.time_to_saved_ort:.2f}",
        )
    return sheet


def binaries_sheet(found: BinaryFigures) -> TextTable:
    """What large binaries cost."""
    sheet = figures("large binaries (measured: wall clock, and memory of the device process)")
    size = f"{found.metadata_file_bytes / 1e9:.2f} GB"
    sheet.add(f"{size}: validated", f"{found.validate_s * 1e3:.1f} ms")
    sheet.add(f"{size}: a context that knows its graphs", f"{found.metadata_s * 1e3:.1f} ms")
    sheet.add("two ResNet50 graphs of equal weights to one: file", f"{found.shared_file_ratio:.3f}")
    sheet.add("the same: memory of the device", f"{found.shared_memory_ratio:.3f}")
    sheet.add("memory of the one", f"{found.one_graph_bytes / 1e6:.1f} MB")
    sheet.add("a float ResNet18 to the bytes of its weights: file", f"{found.float_file_ratio:.3f}")
    sheet.add("the same at two resolutions to one: file", f"{found.sizes_file_ratio:.3f}")
    sheet.add("the same: memory of the device", f"{found.sizes_memory_ratio:.3f}")
    dense, budget = f"{found.budget_file_bytes / 1e6:.0f} MB", f"{found.budget_bytes / 1e6:.0f} MB"
    sheet.add(f"peak over resident while loading {dense}", f"{found.peak_over_bytes / 1e6:.1f} MB")
    sheet.add(f"the same with a read budget of {budget}", f"{found.peak_over_with_budget_bytes / 1e6:.1f} MB")
    return sheet


def list_sheet(result: LoadResult) -> TextTable:
    """One line per network: its contexts one after the other, the same with acceleration, and by one call."""
    columns = (
        "network",
        "contexts",
        "one by one\nms",
        "CPUs\nbusy",
        "acceler-\nated ms",
        "as a list\nms",
        "CPUs\nbusy",
        "times\nsooner",
    )
    sheet = TextTable("several contexts of a network until all are ready (medians, measured in turns)", columns)
    for row in result.lists:
        sheet.add(
            row.network,
            str(row.contexts),
            f"{row.one_by_one_s * 1e3:,.0f}",
            f"{row.one_by_one_cpus:.1f}",
            f"{row.accelerated_s * 1e3:,.0f}",
            f"{row.list_s * 1e3:,.0f}",
            f"{row.list_cpus:.1f}",
            f"{row.ratio:.2f}",
        )
    return sheet


def cancel_sheet(result: CancelResult) -> TextTable:
    """One line per call and kind of signal."""
    columns = ("call", "signal", "usually\nms", "stopped", "late, median\nms", "late, worst\nms", "left over")
    title = f"{result.network}: from the signal until the call is back (measured, wall clock)"
    sheet = TextTable(title, columns, ("signal",))
    for row in result.rows:
        sheet.add(
            row.what,
            row.signal,
            f"{row.usual_s * 1e3:,.0f}",
            f"{row.stopped} of {row.moments}",
            f"{row.late_median_ms:.1f}",
            f"{row.late_worst_ms:.1f}",
            str(row.left_over),
        )
    return sheet
