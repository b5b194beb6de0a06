"""``openhtp genie``: Qualcomm's engine for language models, unmodified, on our library: chat, compare, links."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
import typer

from openhtp.cli._terminal import (
    JsonFile,
    TextTable,
    confirm_written,
    console,
    errors_reported,
    progress_console,
    say,
    show,
    write_json,
)
from openhtp.cli._tool_options import logged
from openhtp.core.foreign_text import printable
from openhtp.genie import Chat
from openhtp.genie.calls import LogDepth
from openhtp.genie.chat import compare_settings
from openhtp.genie.libraries import link_libraries, require_genie

app = typer.Typer(help="Genie on our library, unmodified: chat, compare, links.", no_args_is_help=True)

Bundle = Annotated[Path, typer.Argument(help="Folder of an exported bundle, or a genie_config.json.")]
Prompt = Annotated[list[str], typer.Argument(help="What to ask; several are asked one after another.")]
Tokens = Annotated[int, typer.Option("--tokens", "-n", min=1, help="Tokens to write at most.")]
Library = Annotated[Path | None, typer.Option(help="libGenie.so or its folder; onnxruntime-qnn's by default.")]
Soc = Annotated[str | None, typer.Option(help="Chip to emulate; that of the binaries, or SM8650.")]

# The tools' words for how much a log has, of which Genie knows fewer.
_DEPTHS = {depth.name.lower(): depth for depth in LogDepth} | {"debug": LogDepth.VERBOSE}


@app.command()
def chat(
    bundle: Bundle,
    prompt: Prompt,
    tokens: Tokens = 64,
    asynchronous: Annotated[
        bool, typer.Option("--async", help="Have Genie queue the parts of a pass without waiting for each.")
    ] = False,
    trace: Annotated[Path | None, typer.Option(help="Write what the NPU did, for ui.perfetto.dev.")] = None,
    faults: Annotated[str | None, typer.Option(help="Faults that calls meet: ssr@graphExecute:20.")] = None,
    neighbour: Annotated[
        Path | None, typer.Option(help="Scenario (YAML) whose clients run on the same NPU meanwhile.")
    ] = None,
    vendor: Annotated[bool, typer.Option("--vendor", help="The same on Qualcomm's x86 simulator.")] = False,
    reset: Annotated[bool, typer.Option("--reset", help="Forget what was said between two prompts.")] = False,
    stop: Annotated[list[str] | None, typer.Option(help="End an answer at this text; repeatable.")] = None,
    priority: Annotated[str | None, typer.Option(help="Of contexts: low, normal, normal_high, high.")] = None,
    adapter: Annotated[str | None, typer.Option(help="LoRA adapter of the configuration.")] = None,
    process: Annotated[bool, typer.Option("--process", help="The NPU in a process of its own.")] = False,
    device: Annotated[str | None, typer.Option(help="Share the device of this name.")] = None,
    library: Library = None,
    soc: Soc = None,
    log: Annotated[str | None, typer.Option(help="Of Genie's log, show: error, warn, info, verbose.")] = None,
    json_file: JsonFile = None,
) -> None:
    """Hold a dialog through an unmodified libGenie.so: text as it comes, with its speed (measured here)."""
    with errors_reported(), logged(log):
        answers = []
        with progress_console.status("starting Genie..."):
            dialog = Chat(
                bundle,
                library=library,
                soc=soc,
                asynchronous=asynchronous,
                host="process" if process else "thread",
                device=device,
                faults=faults,
                neighbour=neighbour,
                trace=trace,
                vendor=vendor,
                depth=_DEPTHS.get(log or ""),
            )
        with dialog:
            if priority is not None:
                dialog.set_priority(priority)
            if adapter is not None:
                dialog.use_adapter(adapter)
            if stop:
                dialog.stop_at(stop)
            for number, text in enumerate(prompt):
                if number and reset:
                    dialog.reset()
                answers.append(_stream(dialog, text, tokens))
        if trace is not None:
            confirm_written(trace)
        write_json(json_file, {"times": "measured", "answers": answers})


def _stream(dialog: Chat, prompt: str, tokens: int) -> dict[str, object]:
    has_begun = False
    try:
        for piece in dialog.query(prompt, tokens=tokens):
            if not has_begun:  # not before: a prompt that is refused is not echoed
                _print(prompt, "bold")
            has_begun = True
            _print(piece)
    finally:
        if has_begun:  # what is said about it has a line of its own
            console.print()
    answer = dialog.answer
    remark = "" if answer.end == "complete" else f"; {answer.end.replace('_', ' ')}"
    say(
        f"first piece after {answer.first_ms:,.0f} ms, then {answer.pieces_per_s:,.1f} tokens/s (measured on this"
        f" machine){remark}",
        "dim",
    )
    return {"prompt": prompt, **msgspec.to_builtins(answer)}


def _print(text: str, style: str | None = None) -> None:
    words = printable(text, keep="\n")
    console.print(words, end="", style=style, markup=False, highlight=False, soft_wrap=True)


@app.command()
def compare(
    bundle: Bundle,
    prompt: Annotated[str, typer.Argument(help="What to ask.")] = "It was a fine",
    tokens: Tokens = 40,
    vendor: Annotated[bool, typer.Option("--vendor", help="Also on Qualcomm's x86 simulator (minutes).")] = False,
    library: Library = None,
    soc: Soc = None,
    json_file: JsonFile = None,
) -> None:
    """Ask the same synchronously, asynchronously and on the vendor's library: texts and speeds side by side."""
    with errors_reported():
        with progress_console.status("asking..."):
            rows = compare_settings(bundle, prompt, tokens, vendor=vendor, library=library, soc=soc)
        sheet = TextTable(
            f"{tokens} tokens after {printable(prompt)!r} (measured)",
            ("on", "first ms", "tokens/s", "text"),
            ("text",),
        )
        for row in rows:
            same = "the same" if row.answer.text == rows[0].answer.text else printable(row.answer.text)
            text = printable(row.answer.text) if row is rows[0] else same
            sheet.add(row.where, f"{row.answer.first_ms:,.0f}", f"{row.answer.pieces_per_s:,.1f}", text)
        show(sheet)
        write_json(json_file, {"times": "measured", "rows": [msgspec.to_builtins(row) for row in rows]})


@app.command()
def links(
    folder: Annotated[Path, typer.Argument(help="Folder to make; it must not exist.")],
    library: Library = None,
) -> None:
    """Make a folder in which libGenie.so finds our libraries: for an app of your own that loads it from there."""
    with errors_reported():
        link_libraries(require_genie(library), folder)
        confirm_written(folder, f"({len(list(folder.iterdir()))} links; load {folder / 'libGenie.so'})")
