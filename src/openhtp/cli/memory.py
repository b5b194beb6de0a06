"""``openhtp memory``: what fits into the process domains of a chip, before anything is loaded."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from rich.text import Text

from openhtp.cli._config import ConfigFile, config_of, soc_of
from openhtp.cli._terminal import JsonFile, TextTable, console, errors_reported, say, show, write_file, write_json
from openhtp.config import BackendConfig
from openhtp.core.errors import BadModel, InvalidArgument
from openhtp.core.files import read_file
from openhtp.core.limits import SESSION_LIMIT_BYTES
from openhtp.core.units import bytes_in_words
from openhtp.hw.catalog import find_soc
from openhtp.memory.advice import MemoryAdvice, advise
from openhtp.memory.ledger import largest_backup
from openhtp.memory.needs import needs_of
from openhtp.memory.planning import (
    ContextPlan,
    DomainPlan,
    Load,
    MapIo,
    MemoryPlan,
    context_from_words,
    contexts_from_document,
    io_after_each,
    plan_memory,
    size_in_bytes,
)
from openhtp.report.domains import act_in_words, plan_to_html, remedies, what_failed
from openhtp.runtime.binaries.opening import open_given

app = typer.Typer(help="What fits into memory.", no_args_is_help=True, add_completion=False)

_MOST_TEXT = 1 << 20
_SOC = "SM8650"
_FILES = (".yaml", ".yml", ".json")
_FILL = {"weights": "█", "spill_fill": "▓", "vtcm_backup": "▓", "io": "▒", "reserve": "░"}


@app.callback()
def _group() -> None:
    """Commands about memory."""


@app.command()
def plan(
    contexts: Annotated[
        list[str],
        typer.Argument(help="Context binaries, sizes like llm=1.5GB,io=60MB,spill_fill=30MB,backup=8MB, or YAML."),
    ],
    soc: Annotated[
        str | None, typer.Option(help="Chip: it has so many process domains. Default: the config's, or SM8650.")
    ] = None,
    domains: Annotated[int | None, typer.Option(min=1, help="So many process domains instead.")] = None,
    limit: Annotated[str | None, typer.Option(help="Size of a process domain instead of 3.75GB.")] = None,
    optimize: Annotated[bool, typer.Option("--optimize", help="Find what to change so that it fits.")] = False,
    html: Annotated[Path | None, typer.Option(help="Write a picture of the process domains.")] = None,
    config_file: ConfigFile = None,
    json_file: JsonFile = None,
) -> None:
    """Show which context goes into which process domain, what is left for I/O, and what will fail and why."""
    with errors_reported():
        config, _ = config_of(config_file, None)
        chip = find_soc(soc_of(config, soc, _SOC))
        most = chip.process_domains if domains is None else domains
        nbytes = SESSION_LIMIT_BYTES if limit is None else size_in_bytes(limit, "--limit")
        backup = largest_backup(chip.vtcm_bytes, nbytes)
        if not nbytes:
            raise InvalidArgument(f"--limit is {limit!r}; expected a size above 0, as 2GB")
        read: list[ContextPlan] = []
        for item in contexts:
            read += _read(item, backup, read)
        wanted = [_configured(context, config) for context in read]
        # Room that is estimated holds for buffers that are registered before the next context is made.
        estimated = config is not None and config.context_options().get("io_memory_estimation", False)
        acts = io_after_each(wanted) if estimated else None
        planned = plan_memory(wanted, acts, most=most, limit=nbytes)
        advice = advise(wanted, acts, most=most, limit=nbytes) if optimize else None
        _print(planned, f"{chip.name}: {most} process domains of {bytes_in_words(nbytes)} (counted, not measured)")
        best = planned
        if advice is not None:
            best = advice.plan
            _print_advice(advice, planned)
        if html is not None:
            words = () if advice is None or planned.fits else advice.words
            write_file(html, plan_to_html(best, title=f"Memory of {chip.name}", words=words, before=planned))
        write_json(json_file, {} if json_file is None else _document(planned, advice))
    if not best.fits:
        raise typer.Exit(1)


def _read(item: str, backup: int, others: Sequence[ContextPlan]) -> list[ContextPlan]:
    path = Path(item)
    if path.suffix.lower() in _FILES:
        data = read_file(path, most=_MOST_TEXT, what="a file of contexts", error=BadModel)
        try:
            document = yaml.safe_load(data)
        except (yaml.YAMLError, UnicodeDecodeError) as error:
            raise InvalidArgument(f"{item} cannot be read: {error}") from error
        return contexts_from_document(document, item)
    if "=" in item and not path.exists():
        return [context_from_words(item)]
    binary = open_given(path)
    graphs = [(binary.packed(name), binary.data_of(name)) for name in binary.graph_names]
    return [ContextPlan(name=_unlike(path.stem, others), needs=needs_of(graphs, largest_backup=backup))]


def _unlike(name: str, others: Sequence[ContextPlan]) -> str:
    """The name of a file's context; of two files that are called ``a``, the second is ``a (2)``."""
    names = {context.name for context in others}
    numbered = (name, *(f"{name} ({number})" for number in range(2, len(names) + 2)))
    return next(each for each in numbered if each not in names)


def _configured(context: ContextPlan, config: BackendConfig | None) -> ContextPlan:
    """The context as a config has it loaded; values given for the context itself come first."""
    if config is None:
        return context
    options = config.context_options()
    needs = context.needs
    enabled = [graph for graph in needs.graphs if graph.name in (options.get("enable_graphs") or ())]
    if enabled:
        needs = replace(needs, graphs=tuple(enabled))
    names = [graph.name for graph in needs.graphs]
    switching = options.get("memory_limit_hint", 0) > 0
    order = options.get("graph_retention_order") or () if switching else ()
    return replace(
        context,
        needs=needs,
        io_estimation=context.io_estimation or options.get("io_memory_estimation", False),
        switching=context.switching or switching,
        retained=context.retained or tuple(name for name in order if name in names),
        group=context.group or ("config" if config.spill_fill_group_bytes else None),
    )


def _print(plan: MemoryPlan, title: str) -> None:
    columns = ("context", "data", "spill-fill", "VTCM backup", "I/O", "goes to", "why not")
    table = TextTable(title, columns, ("goes to", "why not"))
    for context in plan.contexts:
        errors = [outcome.error for outcome in plan.failures if _concerns(outcome.act, context.name)]
        domain = plan.domain_of(context.name)
        table.add(
            context.name,
            bytes_in_words(context.weights_bytes),
            bytes_in_words(context.spill_fill_bytes),
            bytes_in_words(context.backup_bytes),
            bytes_in_words(context.needs.io_bytes),
            "nowhere" if domain is None else f"PD {domain}",
            "; ".join("no room for its I/O" if domain is not None else "no room" for _ in errors),
        )
    show(table)
    for domain_plan in plan.domains:
        console.print(_bar(domain_plan))
    for outcome in plan.failures:
        say("")
        say(f"{act_in_words(outcome.act)} fails: {what_failed(outcome)}", "red")
    for remedy in remedies(plan):
        say("")
        say(f"what helps: {remedy}", "yellow")
    say("")
    say("everything fits" if plan.fits else "not everything fits", "green" if plan.fits else "red")


def _concerns(act: object, name: str) -> bool:
    return isinstance(act, (Load, MapIo)) and act.context == name


def _bar(domain: DomainPlan) -> Text:
    """One line: what lies in a domain, and what is left."""
    tail = f" {bytes_in_words(domain.left)} left"
    width = max(10, min(console.width, 100) - len(tail) - 8)
    cells, exact = "", 0.0
    for holding in domain.holdings:
        exact += width * holding.nbytes / domain.limit
        cells += _FILL[holding.use] * (round(exact) - len(cells))
    return Text(f"PD {domain.number:<3} {cells[:width]:·<{width}}{tail}", no_wrap=True)


def _print_advice(advice: MemoryAdvice, planned: MemoryPlan) -> None:
    if planned.fits:
        return
    say("")
    for line in advice.words:
        say(f"• {line}")
    if advice.fits:
        say("")
        _print(advice.plan, "then")


def _document(plan: MemoryPlan, advice: MemoryAdvice | None) -> dict[str, Any]:
    document = _plan_document(plan)
    if advice is not None:
        document["advice"] = {"way": advice.way, "words": list(advice.words), "plan": _plan_document(advice.plan)}
    return document


def _plan_document(plan: MemoryPlan) -> dict[str, Any]:
    return {
        "fits": plan.fits,
        "domain_limit_bytes": plan.limit,
        "most_domains": plan.most,
        "contexts": [
            {
                "name": context.name,
                "weights_bytes": context.weights_bytes,
                "spill_fill_bytes": context.spill_fill_bytes,
                "vtcm_backup_bytes": context.backup_bytes,
                "io_bytes": context.needs.io_bytes,
                "graphs": [graph.name for graph in context.needs.graphs],
                "switching": context.switching,
                "retained": list(context.retained),
                "domain": plan.domain_of(context.name),
            }
            for context in plan.contexts
        ],
        "acts": [
            {
                "act": act_in_words(outcome.act),
                "domain": outcome.domain,
                "bytes": outcome.nbytes,
                "error": outcome.error,
            }
            for outcome in plan.outcomes
        ],
        "domains": [
            {
                "domain": domain.number,
                "used_bytes": domain.used,
                "left_bytes": domain.left,
                "holdings": [
                    {"owner": holding.owner, "use": holding.use, "bytes": holding.nbytes}
                    for holding in domain.holdings
                ],
            }
            for domain in plan.domains
        ],
    }
