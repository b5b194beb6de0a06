"""Quantizes a float network, compares the accuracy, and saves a context binary that loads without the model.

python examples/quantize_and_ship.py [folder]
"""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path

import openhtp as htp
import openhtp.onnx
from openhtp import zoo
from openhtp.frontend.quantize import quantize_model
from openhtp.session.accuracy import compare_outputs


def main(folder: Path) -> None:
    model = zoo.small_cnn()
    samples = zoo.random_feeds(model, 12)
    quantized = quantize_model(model, samples[:8], activation="u16", weight="s8", per_channel=True)
    for output in compare_outputs(model, quantized.model, samples):
        print(
            f"{output.name}: CPU {output.cpu.sqnr_db:.1f} dB, HTP {output.htp.sqnr_db:.1f} dB from the float model"
        )
    target = folder / "small_cnn.bin"
    with htp.Backend() as backend:
        device = backend.create_device(soc="SM8650")
        with device.create_context() as context:
            context.compose_graph(openhtp.onnx.load(quantized.model), "net").finalize()
            target.write_bytes(context.get_binary())
        with device.create_context_from_binary(target.read_bytes()) as context:
            shapes = {tensor.name: list(tensor.shape) for tensor in context.graph("net").inputs}
    print(f"{target.name}: {target.stat().st_size} bytes, inputs {shapes}")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        main(Path(sys.argv[1]))
    else:
        with tempfile.TemporaryDirectory() as temporary:
            main(Path(temporary))
