"""``openhtp device status``: what is on a device, as text that is drawn anew while one watches."""

from __future__ import annotations

from typing import Any

from rich.console import Group
from rich.text import Text

from openhtp.cli._sheet import Sheet
from openhtp.cli._terminal import console
from openhtp.core.units import bytes_in_words

_COLUMNS = ("graph", "context", "PD", "state", "queue", "buffers")


def status_of(device: dict[str, Any]) -> Group:
    """The whole picture: clients, their process domains, and every graph with what it is doing."""
    name, pid = device["name"], device["pid"]
    lines: list[Any] = [Text(f"device {name} (process {pid}), {_count(len(device['sessions']), 'client')}")]
    busy = {client["client"]: client for client in device["clients"]}
    for session in device["sessions"]:
        lines += _session(session, busy)
    return Group(*lines)


def _session(session: dict[str, Any], busy: dict[int, dict[str, Any]]) -> list[Any]:
    label = f" ({session['label']})" if session["label"] else ""
    head = (
        f"\nclient {session['pid']}{label}: {session['executions']} executions, {session['pending']} pending,"
        f" {len(session['domains'])} of {session['most_domains']} process domains"
    )
    lines: list[Any] = [Text(head), *(_bar(domain) for domain in session["domains"])]
    lines += [Text(f"  {_task(task)}", style="dim") for task in session["tasks"]]
    table = Sheet("", _COLUMNS, ("state",))
    rows = 0
    for domain in session["domains"]:
        for context in domain["contexts"]:
            for graph in context["graphs"]:
                rows += 1
                table.add(
                    graph.get("graph") or f"app {graph['app']}",
                    str(context["context"]),
                    str(domain["domain"]),
                    _state(graph, busy),
                    f"{context['pending']}/{context['queue_depth']}",
                    f"{context['buffers']}: {bytes_in_words(context['buffer_bytes'])}",
                )
    return [*lines, table.fitted(console)] if rows else lines


def _state(graph: dict[str, Any], busy: dict[int, dict[str, Any]]) -> str:
    """What a graph is doing."""
    words = ["not loaded"] if graph.get("loaded") is False else []
    doing = busy.get(graph["number"])
    if doing is not None and doing["running"]:
        words.append("runs")
    if doing is not None and doing["waiting"]:
        words.append(f"{doing['waiting']} waiting")
    return ", ".join(words) or "idle"


def _bar(domain: dict[str, Any]) -> Text:
    left = domain["limit"] - domain["bytes"]
    tail = f" {bytes_in_words(left)} left"
    width = max(10, min(console.width, 100) - len(tail) - 8)
    filled = -(-width * domain["bytes"] // domain["limit"])
    uses = ", ".join(f"{use.replace('_', '-')} {bytes_in_words(n)}" for use, n in domain["memory"].items() if n)
    text = f"PD {domain['domain']:<3} {'█' * filled:·<{width}}{tail}"
    return Text(f"{text}\n       {uses}" if uses else text)


def _task(task: dict[str, Any]) -> str:
    return f"{task['what']} is {task['state']}: {task['done']} of {task['total']} {task['now']}".rstrip()


def _count(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"
