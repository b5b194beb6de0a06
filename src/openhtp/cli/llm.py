"""``openhtp llm``: language models on an emulated HTP: run, export, measure, and estimate on real chips."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.progress import Progress

from openhtp import llm as lm
from openhtp.cli._config import ConfigFile, PerfProfileName, modelled_config, open_device, preset_of, soc_of
from openhtp.cli._terminal import (
    JsonFile,
    TextTable,
    command_began_s,
    complain,
    confirm_written,
    console,
    errors_reported,
    progress_console,
    say,
    show,
    write_json,
)
from openhtp.config import BackendConfig
from openhtp.core.errors import BadModel, InvalidArgument
from openhtp.core.files import read_file
from openhtp.core.model_store import user_store
from openhtp.core.units import MS, duration_ns
from openhtp.cost.llm import PRESETS, LlmEstimate, estimate_llm
from openhtp.llm.bundle import BUNDLE_FILE
from openhtp.llm.perplexity import device_nats, fitting_window, float_nats
from openhtp.llm.prepared_bundle import prepare_bundle
from openhtp.planning.chunks import ChunkRow, compare_chunks
from openhtp.runtime.objects.backend import Backend

app = typer.Typer(help="Language models: run, export, estimate, chunks, perplexity.", no_args_is_help=True)

_MOST_TEXT = 64 << 20
_SOC = "SM8750"
Model = Annotated[Path, typer.Argument(help="Folder of a checkpoint, or of an exported bundle.")]
Soc = Annotated[str | None, typer.Option(help="Chip to emulate; SM8650, unless a config names one.")]
Precision = Annotated[str, typer.Option(help="w8a16, w8a8 or w4a16.")]
Wide = Annotated[
    str,
    typer.Option(
        help="Weights of 12 bits, as two matrices: some of wq,wk,wv,wo,gate,up,down,output; none; or auto, which"
        " makes the last four wide in small models (w8a16). Nearer to the float model; tokens take longer."
    ),
]
Context = Annotated[
    int | None, typer.Option(help="Tokens of the KV cache; the model's own, up to 4096, unless given.")
]
Ar = Annotated[str, typer.Option(help="Tokens that the graphs take at a time.")]
Parts = Annotated[int, typer.Option(min=1, help="Graphs that a pass is split into.")]
Flat = Annotated[bool, typer.Option("--flat", help="A flat KV cache instead of a native one.")]
NoCache = Annotated[bool, typer.Option("--no-cache", help="Neither use nor keep prepared models (openhtp cache).")]
Masked = Annotated[str | None, typer.Option(help="Masked softmax in the attention: A, B, C or none.")]

_ORIGINS = {
    "compiled": "compiled before, from the cache",
    "quantized": "quantized before, from the cache",
    "exported": "quantized and compiled now",
    "bundle": "exported before",
}


@app.command()
def run(
    model: Model,
    prompt: Annotated[str, typer.Argument(help="Text to go on with.")] = "It is a truth universally acknowledged,",
    tokens: Annotated[int, typer.Option("--tokens", "-n", min=1, help="Tokens to write.")] = 64,
    soc: Soc = None,
    precision: Precision = "w8a16",
    temperature: Annotated[float, typer.Option(min=0.0, help="0: always the likeliest token.")] = 0.0,
    top_k: Annotated[int, typer.Option(min=0, help="Choose among so many of the likeliest; 0: all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Choose among the likeliest that make up this share.")] = 1.0,
    seed: Annotated[int | None, typer.Option(help="Of the choice.")] = None,
    lookahead: Annotated[int, typer.Option(min=0, help="Guess so many tokens and check them in one pass.")] = 0,
    adapter: Annotated[
        str | None, typer.Option(help="LoRA adapter: a PEFT folder, or the name of one in the bundle.")
    ] = None,
    flat: Flat = False,
    wide: Wide = "auto",
    perf_profile: PerfProfileName = None,
    config_file: ConfigFile = None,
    no_cache: NoCache = False,
    json_file: JsonFile = None,
) -> None:
    """Write text on an emulated device, as it comes, with its speed (measured here)."""
    began_s = command_began_s()
    with errors_reported():
        config = preset_of(config_file, perf_profile)
        sampling = lm.Sampling(temperature=temperature, top_k=top_k, top_p=top_p, seed=seed)
        with Backend() as backend:
            with _steps() as progress:
                device = open_device(backend, config, soc)
                prepared = prepare_bundle(
                    model,
                    adapter=adapter,
                    soc=device.soc if config is None else f"{device.soc} with {config!r}",
                    store=None if no_cache else user_store(lambda line: complain(line, "yellow")),
                    progress=progress,
                    precision=precision,
                    native_kv=False if flat else None,
                    wide=_wide_kinds(wide),
                )
                progress("loading the graphs onto the device", 0.0)
                chat = lm.Generator(prepared.bundle, device, lookahead=lookahead, adapter=prepared.adapter)
            ready_s = time.monotonic()
            text = asyncio.run(_stream(chat, prompt, tokens, sampling))
            say("")
            with _steps() as progress:
                progress("keeping the compiled model for the next time", 0.0)
                prepared.keep(chat)
        stats = chat.stats
        first_s = ready_s - began_s + stats.ttft_ms / 1e3
        _print_speed(stats, first_s, prepared.origin)
        document = {"prompt": prompt, "text": text, "times": "measured", **dataclasses.asdict(stats)}
        document |= {"first_token_from_start_s": first_s, "model_was": prepared.origin}
        write_json(json_file, {**document, "passes": {str(ar): count for ar, count in stats.passes.items()}})


def _print_speed(stats: lm.Stats, first_s: float, origin: str) -> None:
    passes = ", ".join(f"{count} of {ar}" for ar, count in sorted(stats.passes.items(), reverse=True))
    say(
        f"{stats.new_tokens} tokens: the first {first_s:,.1f} s after the start of the command"
        f" ({_ORIGINS[origin]}) and {stats.ttft_ms:,.0f} ms after the prompt was submitted,"
        f" then {stats.tokens_per_s:,.1f} tokens/s (measured on this machine); passes: {passes}",
        "dim",
    )


async def _stream(chat: lm.Generator, prompt: str, tokens: int, sampling: lm.Sampling) -> str:
    pieces: list[str] = []
    try:
        async for text in chat.generate(prompt, max_new=tokens, sampling=sampling):
            if not pieces:  # not before: a prompt that is refused is not echoed
                console.print(prompt, end="", style="bold", markup=False, highlight=False, soft_wrap=True)
            pieces.append(text)
            console.print(text, end="", markup=False, highlight=False, soft_wrap=True)
    except BaseException:
        if pieces:  # what is said about it has a line of its own
            console.print()
        raise
    return "".join(pieces)


@app.command()
def export(
    model: Annotated[Path, typer.Argument(help="Folder of a checkpoint (Hugging Face).")],
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder to write the bundle to.")],
    precision: Precision = "w8a16",
    context: Context = None,
    ar: Ar = "128,32,1",
    parts: Parts = 1,
    flat: Flat = False,
    native_out: Annotated[bool, typer.Option(help="Give new KV in the native layout, too.")] = False,
    concat: Annotated[
        bool, typer.Option("--concat", help="Flat caches with Concat, as AI Hub exports them for Genie.")
    ] = False,
    embeddings: Annotated[
        bool,
        typer.Option("--embeddings", help="Graphs take embedded tokens; for Genie and its embedding queries."),
    ] = False,
    masked_softmax: Masked = None,
    calibration: Annotated[Path | None, typer.Option(help="Text, or .npy of tokens, to find ranges.")] = None,
    rounding: Annotated[
        str | None, typer.Option(help="Of weights: nearest, or compensated (the default for small models).")
    ] = None,
    wide: Wide = "auto",
    adapter: Annotated[
        list[Path] | None, typer.Option(help="Folder of a LoRA adapter (PEFT) to have in the bundle; repeatable.")
    ] = None,
    json_file: JsonFile = None,
) -> None:
    """Quantize a checkpoint into AR graphs with shared weights: one context binary for each part."""
    with errors_reported(), _interruption_told(output):
        loaded = lm.load(model)
        ids = None if calibration is None else _tokens_of(calibration, loaded.tokenizer, loaded.config.vocab)
        bundle = _exported(
            loaded,
            precision=precision,
            context=context,
            ar=_numbers(ar),
            parts=parts,
            native_kv=False if flat or concat else None,
            native_out=native_out,
            concat_kv=concat,
            embedding_input=embeddings,
            masked_softmax=masked_softmax,
            calibration=ids,
            rounding=rounding,
            wide=_wide_kinds(wide),
            adapters=[lm.load_adapter(folder, loaded.config) for folder in adapter or ()],
        )
        bundle.save(output)
        sizes = [len(binary) for binary in bundle.binaries]
        confirm_written(output, f"({len(sizes)} parts, {sum(sizes):,} bytes)")
        graphs = [bundle.graph_name(n, part) for part in range(1, bundle.parts + 1) for n in bundle.ar]
        for name in graphs:
            say(f"  {name}", "dim")
        for name, sections in bundle.adapters.items():
            say(f"  adapter {name}: {sum(map(len, sections)):,} bytes", "dim")
        document = {"folder": str(output), "graphs": graphs, "bytes": sizes, "adapters": list(bundle.adapters)}
        write_json(json_file, document)


@app.command()
def estimate(
    model: Annotated[str, typer.Argument(help="A preset, such as qwen3-4b, or a folder with a config.json.")],
    soc: Annotated[
        str | None,
        typer.Option(help="Chip; several side by side: SM8750,SM8850. Default: the config's, or SM8750."),
    ] = None,
    precision: Annotated[str, typer.Option(help="w4a16, w8a16 or w4fp16.")] = "w4a16",
    context: Annotated[int, typer.Option(min=1, help="Tokens of the KV cache.")] = 4096,
    prompt: Annotated[int, typer.Option(min=1, help="Tokens before the first one is written.")] = 128,
    accepted: Annotated[float, typer.Option(min=1.0, help="Tokens a decoding pass yields (speculation).")] = 1.0,
    kv: Annotated[str, typer.Option(help="Layout of the cache: flat, native, or both.")] = "flat,native",
    masked_softmax: Annotated[bool, typer.Option(help="Attention masks by MaskedSoftmax, not by adding.")] = False,
    valid: Annotated[
        int | None, typer.Option(min=1, help="Places of the context that a MaskedSoftmax lets take part.")
    ] = None,
    wide: Wide = "auto",
    config_file: ConfigFile = None,
    json_file: JsonFile = None,
) -> None:
    """Estimate time to first token and tokens per second on a chip (modelled)."""
    with errors_reported():
        config, _ = modelled_config(config_file)
        chips = [name.strip() for name in soc_of(config, soc, _SOC).split(",") if name.strip()]
        name, shape = _shape_named(model)
        estimates = [
            estimate_llm(
                shape,
                chip,
                name=name,
                precision=precision,
                context=context,
                prompt=prompt,
                accepted=accepted,
                kv=form.strip(),
                masked_softmax=masked_softmax,
                valid=valid,
                wide=_wide_kinds(wide),
            )
            for chip in chips
            for form in kv.split(",")
        ]
        if not estimates:
            raise InvalidArgument("--soc names no chip; expected one, like SM8750")
        show(
            _llm_sheet(
                estimates, f"{estimates[0].model} {precision}, context {context}, prompt {prompt}: modelled"
            )
        )
        for line in _llm_notes(estimates):
            say(line, "dim")
        write_json(json_file, {"times": "modelled", "estimates": [dataclasses.asdict(one) for one in estimates]})


def _shape_named(model: str) -> tuple[str | None, str | lm.LlmShape]:
    """A preset's name, or the name and the shape of the model in a folder."""
    folder = Path(model)
    if folder.is_dir() or folder.name != model:
        return folder.resolve().name, lm.shape_of(folder)
    if model.lower() not in PRESETS:
        raise InvalidArgument(
            f"{model!r} is neither a folder with a config.json here nor a preset; presets are {', '.join(PRESETS)}"
        )
    return None, model


def _llm_sheet(estimates: list[LlmEstimate], title: str) -> TextTable:
    columns = ("SoC", "KV", "first token", "tokens/s", "range", "pass of 128", "token", "bound by", "energy")
    sheet = TextTable(title, columns)
    least = min(one.token_energy_pj for one in estimates)
    for one in estimates:
        sheet.add(
            one.soc + ("" if one.fitted else " *"),
            one.kv,
            f"{one.ttft_ms:,.0f} ms",
            f"{one.tokens_per_s:,.1f}",
            f"{one.tokens_per_s_low:,.1f} to {one.tokens_per_s_high:,.1f}",
            f"{one.pass_ms:,.1f} ms",
            f"{one.decode_ms:,.1f} ms",
            one.bound_by,
            f"{one.token_energy_pj / least:.3f}x",
        )
    return sheet


def _llm_notes(estimates: list[LlmEstimate]) -> list[str]:
    first = estimates[0]
    notes = [
        f"Modelled. Models that had no part in the fit were off by {first.decode_error:.0%} (tokens/s) and"
        f" {first.ttft_error:.0%} (first token) in the median of published rates."
    ]
    if not all(one.fitted for one in estimates):
        notes.append("* no rates are published for this chip: scaled by the bandwidth of its memory.")
    low, high = first.native_gain_ms
    notes.append(
        "Published rates are of flat caches. A native one saves the time to put it into tiles, which nobody has"
        f" published; at 60 to 20 GB/s that would be {low:,.1f} to {high:,.1f} ms a pass. Here it is a share of"
        " the cost of the context. Energy of a token is a ratio to the least here."
    )
    if first.wide:
        notes.append(
            f"Wide weights ({', '.join(first.wide)}) are read as 12 bits and multiplied twice:"
            f" {first.weight_bytes:,} bytes a token."
        )
    return notes


def _wide_kinds(words: str) -> tuple[str, ...] | str:
    """``auto``, or kinds of weights: ``output,down``; ``none`` or nothing for none."""
    if words in ("", "none"):
        return ()
    return words if words == "auto" else tuple(word.strip() for word in words.split(","))


def _milliseconds(option: str, text: str) -> float:
    """``5ms``, ``1/30s``; a number alone is in milliseconds."""
    time_ns = duration_ns(text, MS)
    if not time_ns:
        raise typer.BadParameter(f"{option} {text!r}: expected a time above 0, as 5ms or 1/30s")
    return time_ns / MS


@app.command()
def chunks(
    model: Annotated[str, typer.Argument(help="A preset, such as llama-3.2-3b.")],
    soc: Annotated[str, typer.Option(help="Chip.")] = "SM8750",
    run: Annotated[str, typer.Option("--run", help="Run of the camera's network: 5ms, or 5 for ms.")] = "5ms",
    every: Annotated[str, typer.Option(help="Time between two frames: 33ms, 1/30s.")] = "33ms",
    deadline: Annotated[str | None, typer.Option(help="Of a frame, 50ms; the next frame unless given.")] = None,
    prompt: Annotated[int, typer.Option(min=1, help="Tokens before the first one is written.")] = 512,
    generate: Annotated[int, typer.Option(min=1, help="Tokens to write.")] = 128,
    parts: Annotated[str, typer.Option(help="Graphs that a pass is split into: one or several numbers.")] = "1,3",
    json_file: JsonFile = None,
) -> None:
    """Plan a language model beside a camera for every size of its passes (modelled)."""
    times = {"--run": run, "--every": every, "--deadline": deadline}
    milliseconds = {option: _milliseconds(option, text) for option, text in times.items() if text is not None}
    with errors_reported(), _waiting("planning") as progress:
        rows = compare_chunks(
            model,
            soc,
            run_ms=milliseconds["--run"],
            every_ms=milliseconds["--every"],
            deadline_ms=milliseconds.get("--deadline"),
            prompt=prompt,
            generate=generate,
            parts=_numbers(parts, "--parts"),
            progress=progress,
        )
        show(_chunk_sheet(rows, f"{model} beside a camera: {run} every {every}, on {soc} (modelled)"))
        say(
            "Pairs: where frames wait for a run (Windows) / where they pre-empt it. Run: the longest; first: first"
            f" token; missed and p99 (ms): of {rows[0].beside['waits'].frames} frames.",
            "dim",
        )
        write_json(json_file, {"times": "modelled", "rows": [dataclasses.asdict(row) for row in rows]})


def _chunk_sheet(rows: list[ChunkRow], title: str) -> TextTable:
    sheet = TextTable(title, ("pass", "run ms", "missed", "p99", "first ms", "tokens/s"))
    for row in rows:
        waits, yields = row.beside["waits"], row.beside["pre-empts"]
        sheet.add(
            f"{row.chunk} tokens" + ("" if row.parts == 1 else f" in {row.parts} parts"),
            f"{row.longest_ms:,.1f}",
            f"{waits.missed} / {yields.missed}",
            f"{waits.camera_p99:,.1f} / {yields.camera_p99:,.1f}",
            f"{waits.ttft_p50:,.0f} / {yields.ttft_p50:,.0f}",
            f"{waits.tokens_per_s:,.1f} / {yields.tokens_per_s:,.1f}",
        )
    return sheet


@app.command()
def perplexity(
    model: Annotated[Path, typer.Argument(help="Folder of a checkpoint (Hugging Face).")],
    text: Annotated[Path, typer.Argument(help="Text, or .npy of token numbers.")],
    tokens: Annotated[int, typer.Option(min=2, help="How many tokens of it.")] = 8192,
    precision: Annotated[str, typer.Option(help="One or several: w8a16,w8a8,w4a16.")] = "w8a16,w8a8,w4a16",
    soc: Soc = None,
    flat: Flat = False,
    library: Annotated[Path | None, typer.Option(help="The vendor's libQnnHtp.so, to be measured, too.")] = None,
    config_file: ConfigFile = None,
    json_file: JsonFile = None,
) -> None:
    """Compare float, emulated and (given its library) the vendor's results on a text, in nats per token."""
    with errors_reported():
        config = preset_of(config_file, None)
        loaded = lm.load(model)
        ids = _tokens_of(text, loaded.tokenizer, loaded.config.vocab)[:tokens]
        window = min(len(ids), fitting_window(loaded.config.context))
        with _waiting("float") as progress:
            exact = float_nats(loaded, ids, window, progress)
        rows: dict[str, float] = {"float": exact}
        for name in (word.strip() for word in precision.split(",")):
            bundle = _exported(loaded, precision=name, ar=(128, 1), native_kv=False if flat else None)
            for kind, path in (("emulated", None), ("vendor", library)):
                if kind == "emulated" or path is not None:
                    where = LlmTarget(config, soc, path)
                    rows[f"{name}, {kind}"] = _measured(bundle, where, ids, window, f"{name}, {kind}")
        sheet = TextTable(
            f"{len(ids)} tokens in windows of {window} (measured)", ("model", "nats", "loss", "perplexity")
        )
        for name, nats in rows.items():
            sheet.add(name, f"{nats:.4f}", f"{nats - exact:+.4f}", f"{np.exp(nats):.2f}")
        show(sheet)
        write_json(json_file, {"tokens": len(ids), "window": window, "nats_per_token": rows})


@dataclasses.dataclass(frozen=True, slots=True)
class LlmTarget:
    """On what something is measured: a config, a chip, the vendor's library."""

    config: BackendConfig | None
    soc: str | None
    library: Path | None


def _measured(bundle: lm.Bundle, where: LlmTarget, ids: list[int], window: int, what: str) -> float:
    library = None if where.library is None else str(where.library)
    with Backend(library=library) as backend, _waiting(what) as progress:
        chat = lm.Generator(bundle, open_device(backend, where.config, where.soc))
        return device_nats(chat, ids, window, progress)


@contextlib.contextmanager
def _interruption_told(folder: Path) -> Iterator[None]:
    """On Ctrl-C, a line that says what is left in the folder for a bundle."""
    files, made_ns = _found_in(folder)
    try:
        yield
    except KeyboardInterrupt:
        files_now, made_now_ns = _found_in(folder)
        left = f"{folder} has some files of a bundle and no {BUNDLE_FILE}: export it again, or delete it"
        if made_now_ns is not None and made_now_ns != made_ns:
            left = f"the bundle in {folder} is complete"
        elif (files_now, made_now_ns) == (files, made_ns):
            left = f"nothing was written to {folder}"
        complain(f"interrupted: {left}", "yellow")
        raise


def _found_in(folder: Path) -> tuple[set[str], int | None]:
    """The files of a folder, if there is one, and when the description of a bundle was written there."""
    names = {path.name for path in folder.iterdir()} if folder.is_dir() else set()
    return names, (folder / BUNDLE_FILE).stat().st_mtime_ns if BUNDLE_FILE in names else None


def _exported(model: lm.Llama, **options: Any) -> lm.Bundle:
    with _steps() as progress:
        return lm.export(model, progress=progress, **options)


@contextlib.contextmanager
def _steps() -> Iterator[Callable[[str, float], None]]:
    """A bar on the terminal that says which step is under way."""
    quiet = not progress_console.is_terminal
    with Progress(console=progress_console, transient=True, disable=quiet) as bar:
        task = bar.add_task("starting", total=1.0)
        yield lambda what, done: bar.update(task, description=what, completed=done)


@contextlib.contextmanager
def _waiting(what: str) -> Iterator[Callable[[float], None]]:
    """A bar on the terminal while something takes its time."""
    quiet = not progress_console.is_terminal
    with Progress(console=progress_console, transient=True, disable=quiet) as bar:
        task = bar.add_task(what, total=1.0)
        yield lambda done: bar.update(task, completed=done)


def _numbers(words: str, option: str = "--ar") -> tuple[int, ...]:
    try:
        return tuple(int(word) for word in words.split(","))
    except ValueError:
        raise InvalidArgument(f"{option} is {words!r}; expected numbers, such as 128,32,1") from None


def _tokens_of(path: Path, tokenizer: Path | None, vocab: int) -> list[int]:
    """Token numbers in a file: a numpy array, or text."""
    data = read_file(path, most=_MOST_TEXT, what="text or token numbers (.npy)", error=BadModel)
    if path.suffix == ".npy":
        return lm.token_numbers(data, vocab, str(path))
    return lm.Tokenizer.of(tokenizer, vocab).encode(data.decode("utf-8", "replace"))
