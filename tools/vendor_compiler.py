"""Both compilers side by side: context binaries of many networks by the vendor's library and by this package.

All binaries of a network are made in one process (``prepared_binaries.py``), and described by the system library
of whoever made them. Prints spill-fill buffers, sizes of files and processor time; a network that one side refuses
is a row with its reason. Files that ``torch_networks.py`` wrote are taken from ``out/exports``. Run by ``make
vendor-compiler``. For all networks, or with ``--page``, it writes docs/vendor-compiler.md. Results are kept in
``out/vendor-compiler``, so a run that was interrupted goes on: those of the vendor by the model's bytes and the
options, ours by those of this package's source as well.
"""

from __future__ import annotations

import argparse
import gzip
import itertools
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from openhtp.core.errors import QnnError
from openhtp.core.units import MIB
from openhtp.estimation import ZOO, zoo_model
from openhtp.zoo import MODELS, quantized
from prepared_binaries import FLOAT, LEVEL, ROOT, SOC, Case, CompiledBinary, Compiler
from trained_networks import NETWORKS, fetch

PAGE = ROOT / "docs" / "vendor-compiler.md"
RESULTS = ROOT / "out" / "vendor-compiler"
TORCH = ROOT / "out" / "exports"
VTCM_MB = (1, 2, 4, 8)
# Activations and weights, as `openhtp quantize` names them.
PRECISIONS = {FLOAT: None, "w8a8": ("u8", "s8"), "w8a16": ("u16", "s8")}
# A difference in a buffer of less than this is measured against this.
LEAST = 1_000_000
CLOSE, ENOUGH = 0.25, 0.15
_REASON = 160

sys.path.append(str(ROOT / "tests" / "cost"))


@dataclass(frozen=True, slots=True)
class Row:
    """What both compilers made of a case."""

    case: Case
    vendor: CompiledBinary
    ours: CompiledBinary

    @property
    def compared(self) -> bool:
        """Whether there are two binaries."""
        return not self.vendor.refused and not self.ours.refused

    @property
    def spill_error(self) -> float:
        """Of our spill-fill buffer against the vendor's, or against a megabyte if that is more."""
        return (self.ours.spill_fill - self.vendor.spill_fill) / max(LEAST, self.vendor.spill_fill)

    @property
    def size_error(self) -> float:
        """Of our file against the vendor's."""
        return self.ours.nbytes / self.vendor.nbytes - 1

    @property
    def time_ratio(self) -> float:
        """Our processor time, divided by the vendor's."""
        return self.ours.seconds / max(self.vendor.seconds, 1e-3)


# Networks by name: those of the zoo, trained ones from packages, exports of our own, and files.


def known_networks() -> dict[str, Callable[[], bytes]]:
    """The networks of the stored table."""
    from transformer_exports import EXPORTS

    zoo: dict[str, Callable[[], bytes]] = {f"{ZOO}{name}": lambda name=name: zoo_model(name) for name in MODELS}
    trained = {name: lambda network=network: fetch(network) for name, network in NETWORKS.items()}
    exports = {f"transformer, {name}": make for name, make in EXPORTS.items()}
    files = {f"PyTorch, {path.stem.replace('_', ' ')}": _reader(path) for path in sorted(TORCH.glob("*.onnx"))}
    return {**zoo, **trained, **exports, **files}


def chosen_networks(words: Sequence[str]) -> dict[str, Callable[[], bytes]]:
    """Files, and known networks that have one of the words in their names; without words, all known ones."""
    files = {Path(word).name.removesuffix(".gz"): _reader(Path(word)) for word in words if Path(word).is_file()}
    others = [word for word in words if not Path(word).is_file()]
    known = {
        name: make for name, make in known_networks().items() if not words or any(word in name for word in others)
    }
    if not known and not files:
        raise SystemExit(f"no network has {' or '.join(others)} in its name; known: {', '.join(known_networks())}")
    return {**known, **files}


def _reader(path: Path) -> Callable[[], bytes]:
    return lambda: gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


def vendor_library(given: str | None) -> Path:
    """The vendor's library: at the path that is given, or in the package of the vendor's provider."""
    if given:
        return Path(given)
    import onnxruntime_qnn

    return next(Path(onnxruntime_qnn.__file__).parent.rglob("libQnnHtp.so"))


def rows_of(
    networks: dict[str, Callable[[], bytes]], asked: argparse.Namespace, vendor: Compiler, ours: Compiler
) -> Iterator[Row]:
    """The rows of the table, as they come."""
    for (name, make), precision in itertools.product(networks.items(), asked.precisions):
        try:
            model = _in_precision(make(), precision)
        except (QnnError, OSError, subprocess.CalledProcessError) as error:
            reason = CompiledBinary(refused=" ".join(str(error).split())[:_REASON])
            yield Row(Case(network=name, precision=precision, vtcm_mb=0), reason, reason)
            continue
        for soc in asked.socs:
            cases = [
                Case(network=name, precision=precision, soc=soc, vtcm_mb=size, level=level)
                for level, size in itertools.product(asked.levels, asked.vtcm)
            ]
            yield from map(Row, cases, vendor.make(model, cases), ours.make(model, cases))


def _in_precision(model: bytes, precision: str) -> bytes:
    types = PRECISIONS[precision]
    return model if types is None else quantized(model, *types, samples=1)


# Showing.

_COLUMNS = (
    *("network", "precision", "SoC", "O", "VTCM MB"),
    *("spill-fill MB, vendor", "ours", "error"),
    *("file MB, vendor", "ours", "error"),
    *("s, vendor", "ours"),
)


def cells_of(row: Row) -> list[str]:
    """A row as words."""
    case, vendor, ours = row.case, row.vendor, row.ours
    first = [case.network, case.precision, case.soc, str(case.level), str(case.vtcm_mb)]
    if not row.compared:
        who = "both" if vendor.refused and ours.refused else "vendor" if vendor.refused else "ours"
        other = ours if vendor.refused else vendor
        left = "" if other.refused else f"; the other: spill-fill {other.spill_fill / MIB:.2f} MB"
        return [*first, f"refused ({who}): {vendor.refused or ours.refused}{left}".replace("|", "/")]
    return [
        *first,
        f"{vendor.spill_fill / MIB:.2f}",
        f"{ours.spill_fill / MIB:.2f}",
        f"{row.spill_error:+.0%}",
        f"{vendor.nbytes / MIB:.2f}",
        f"{ours.nbytes / MIB:.2f}",
        f"{row.size_error:+.0%}",
        f"{vendor.seconds:.1f}",
        f"{ours.seconds:.1f}",
    ]


def summary(rows: Iterable[Row], title: str) -> str:
    """A sentence on all rows that can be compared, and one on those in which somebody spills."""
    compared = [row for row in rows if row.compared]
    if not compared:
        return f"{title}: nothing to compare."
    spilling = [row for row in compared if row.vendor.spill_fill or row.ours.spill_fill]
    parts = [f"{title}: {len(compared)} cases"]
    for words, some in (("all", compared), ("those that spill on either side", spilling)):
        if some:
            errors = [abs(row.spill_error) for row in some]
            within = sum(error <= CLOSE for error in errors)
            parts.append(
                f"spill-fill of {words} ({len(some)}): median error {statistics.median(errors):.0%},"
                f" {within / len(some):.0%} within {CLOSE:.0%}"
            )
    sizes = [abs(row.size_error) for row in compared]
    within = sum(error <= ENOUGH for error in sizes)
    parts.append(
        f"size of the file: median error {statistics.median(sizes):.0%},"
        f" {within / len(sizes):.0%} within {ENOUGH:.0%}"
    )
    return "; ".join(parts) + "."


HEAD = """# The vendor's compiler and ours

Made by `make vendor-compiler`: context binaries of the same networks by the compiler in Qualcomm's x86 library and
by ours, described by the system library of whoever made them.
Spill-fill is the buffer in DDR for what does not fit into VTCM. Its error is relative to the vendor's buffer, or
to a million bytes if that is more. Seconds are processor time from a graph in memory to its binary. The page has
the networks of its last run: `zoo:` are those of this package, `PyTorch` are exports with random weights
(`torch_networks.py`), others are trained ones from PyPI packages (`trained_networks.py`) and transformers in the
form in which exporters write them. How our compiler decides, and which cases each rule
explains, is on the page about [the compiler](compiler.md).

"""


def write_page(rows: Sequence[Row]) -> None:
    """The stored table."""
    lines = [
        f"* {summary(rows, 'All networks')}",
        *(f"* {summary([r for r in rows if r.case.precision == p], p)}" for p in _precisions(rows)),
        *(f"* {summary([r for r in rows if r.case.vtcm_mb == mb], f'VTCM {mb} MB')}" for mb in VTCM_MB),
        "",
        f"| {' | '.join(_COLUMNS)} |",
        f"|{'---|' * 5}{'---:|' * (len(_COLUMNS) - 5)}",
        *(f"| {' | '.join(cells_of(row))} |" for row in rows),
    ]
    PAGE.write_text(HEAD + "\n".join(lines) + "\n", encoding="utf-8")


def _precisions(rows: Sequence[Row]) -> list[str]:
    return list(dict.fromkeys(row.case.precision for row in rows))


def main(words: Sequence[str]) -> int:
    """Make the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("networks", nargs="*", help="ONNX files (also .gz), or parts of names of known networks")
    parser.add_argument("--vtcm", type=int, nargs="+", default=VTCM_MB, metavar="MB")
    parser.add_argument("--levels", type=int, nargs="+", default=(LEVEL,), choices=(1, 2, 3))
    parser.add_argument("--precisions", nargs="+", default=(FLOAT,), choices=list(PRECISIONS))
    parser.add_argument("--socs", nargs="+", default=(SOC,))
    parser.add_argument("--backend", help="the vendor's libQnnHtp.so; that of the vendor extra unless given")
    parser.add_argument("--results", type=Path, default=RESULTS, help="the folder in which results are kept")
    parser.add_argument("--json", type=Path, metavar="FILE", help="the rows as JSON")
    parser.add_argument("--page", action="store_true", help="write the page for these networks, too")
    asked = parser.parse_args(words)
    vendor, ours = Compiler(vendor_library(asked.backend), asked.results), Compiler(None, asked.results)
    rows = []
    for row in rows_of(chosen_networks(asked.networks), asked, vendor, ours):
        rows.append(row)
        print("  ".join(cells_of(row)), flush=True)
    print(summary(rows, "All networks"))
    if asked.json is not None:
        asked.json.write_bytes(msgspec.json.format(msgspec.json.encode(rows)))
    if asked.page or not asked.networks:
        write_page(rows)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
