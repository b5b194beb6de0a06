"""``openhtp device status``: what is on the devices, as text that is drawn anew while one watches."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.text import Text

from openhtp.cli._terminal import console
from openhtp.cli._text_table import TextTable
from openhtp.core.foreign_text import printable
from openhtp.core.units import bytes_in_words
from openhtp.rpc import windows

_COLUMNS = ("graph", "context", "PD", "state", "queue", "buffers")
# Interpreters, of whose program the script says more than they do.
_INTERPRETERS = ("python", "pypy")


def look_around() -> list[dict[str, Any]]:
    """All devices of this user, the one started last at the end, each with the programs of its clients."""
    devices = sorted(windows.look(), key=lambda device: (_started(device["pid"]), device["pid"]))
    for device in devices:
        for session in device.get("sessions", ()):
            session["program"] = program_of(session["pid"])
    return devices


def program_of(pid: int) -> str:
    """What a process runs, in a few words; empty if it has gone, or is out of sight."""
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
    except OSError:
        return ""
    program, *arguments = [word for word in words if word] or [""]
    name = Path(program).name
    if not name.startswith(_INTERPRETERS):
        return name
    for place, word in enumerate(arguments):
        if word in ("-c", "-m"):
            return f"{name} {word}" if word == "-c" else f"{name} -m {' '.join(arguments[place + 1 : place + 2])}"
        if not word.startswith("-"):
            return f"{name} {Path(word).name}"
    return name


def _started(pid: int) -> float:
    """When a process began; 0 if it has gone."""
    try:
        return Path(f"/proc/{pid}").stat().st_mtime
    except OSError:
        return 0.0


def status_of(devices: Sequence[dict[str, Any]]) -> Group:
    """The whole picture: devices, clients, their process domains, and every graph with what it is doing."""
    if not devices:
        return Group(Text("no device is running"))
    parts: list[Any] = []
    for device in devices:
        parts += [*([Text("")] if parts and isinstance(parts[-1], Text) else []), *_device(device)]
    return Group(*parts)


def _device(device: dict[str, Any]) -> list[Any]:
    if "sessions" not in device:
        return [Text(f"device of process {device['pid']} does not answer", style="red")]
    name = f"device {device['name']}" if device["name"] else "unnamed device"
    clients = _count(len(device["sessions"]), "client")
    lines: list[Any] = [
        Text(f"{printable(name)} ({device['soc']}, process {device['pid']}), {clients}", style="bold")
    ]
    busy = {client["client"]: client for client in device["clients"]}
    for session in device["sessions"]:
        lines += _session(session, busy)
    return lines


def _session(session: dict[str, Any], busy: dict[int, dict[str, Any]]) -> list[Any]:
    label = f" ({session['program']})" if session.get("program") else ""
    head = (
        f"client {session['pid']}{label}: {_count(session['executions'], 'execution')},"
        f" {session['pending'] or 'none'} pending,"
        f" {len(session['domains'])} of {session['most_domains']} process domains"
    )
    lines: list[Any] = [Text(printable(head)), *(_bar(domain) for domain in session["domains"])]
    lines += [Text(printable(f"  {_task(task)}"), style="dim") for task in session["tasks"]]
    table = TextTable("", _COLUMNS, ("state",))
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
    done = f": {task['done']} of {task['total']}" if task["total"] else ""
    now = f", now {task['now']}" if task["now"] else ""
    return f"{task['what']} is {task['state']}{done}{now}"


def _count(number: int, what: str) -> str:
    return f"{number or 'no'} {what}{'' if number == 1 else 's'}"
