"""``openhtp advise``: what to change in a network so that it runs faster on a chip. Gains are modelled."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from openhtp.advising import Finding, advise as find_advice
from openhtp.cli._config import ConfigFile, modelled_config, soc_of
from openhtp.cli._inputs import Dim, Freeze, parse_dims, parse_freeze
from openhtp.cli._terminal import JsonFile, TextTable, errors_reported, say, show, write_json
from openhtp.cost import NumberFormat
from openhtp.estimation import compiled, estimate, with_options
from openhtp.hw.catalog import find_soc
from openhtp.runtime.objects.chosen_options import ExtensionsConfig

_NODES = 4
_SOC = "SM8650"


def advise(
    model: Annotated[str, typer.Argument(help="ONNX file, or a network of the zoo: zoo:resnet50.")],
    soc: Annotated[str | None, typer.Option(help="Chip. Default: the config's, or SM8650.")] = None,
    precision: Annotated[
        str | None, typer.Option(help="float, w8a8 or w8a16: what a float model would be quantized to.")
    ] = None,
    dim: Dim = None,
    freeze: Freeze = None,
    config_file: ConfigFile = None,
    json_file: JsonFile = None,
) -> None:
    """Say what to change in a network, with the time that each change is modelled to save."""
    with errors_reported():
        config, _ = modelled_config(config_file)
        chip = find_soc(soc_of(config, soc, _SOC))
        asked = None if precision is None else NumberFormat.parse(precision)
        program = compiled(model, parse_dims(dim), parse_freeze(freeze))
        program = with_options(program, ExtensionsConfig(config).graph(program.name, {}))
        now = estimate(program, chip, precision=asked)
        findings = find_advice(program, chip, precision=asked)
        name = Path(model).name
        if findings:
            show(_table(f"{name} on {chip.name}: {now.total_us:,.0f} us now (modelled)", findings, now.total_us))
            say("Gains are modelled one by one: taken together they do not simply add up.", "dim")
        else:
            say(f"{name} on {chip.name}: nothing to change that would gain half a percent (modelled).")
        write_json(
            json_file,
            {
                "model": model,
                "soc": chip.name,
                "times": "modelled",
                "total_us": round(now.total_us, 3),
                "findings": [{**asdict(each), "gain_us": round(each.gain_us, 3)} for each in findings],
            },
        )


def _table(title: str, findings: list[Finding], total_us: float) -> TextTable:
    sheet = TextTable(title, ("what", "gain", "share", "change", "nodes"), ("change", "nodes"))
    for each in findings:
        more = len(each.nodes) - _NODES
        nodes = ", ".join(each.nodes[:_NODES]) + (f" and {more} more" if more > 0 else "")
        gain = f"{each.gain_us:,.1f} us" if each.gain_us else "accuracy"
        share = f"{each.gain_us / total_us:.1%}" if each.gain_us else "-"
        sheet.add(f"{each.rule}: {each.what}", gain, share, each.change, nodes or "all")
    return sheet
