"""``openhtp device``: named devices that several processes share."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Container, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Group
from rich.live import Live
from rich.text import Text

from openhtp.cli._config import ConfigFile, preset_of
from openhtp.cli._inputs import op_packages_of
from openhtp.cli._terminal import JsonFile, TextTable, console, errors_reported, say, show, write_json
from openhtp.core.errors import UsageError
from openhtp.core.foreign_text import printable
from openhtp.core.units import bytes_in_words
from openhtp.device.config import DeviceConfig
from openhtp.options import DEVICE
from openhtp.rpc import messages as ms, rendezvous, windows
from openhtp.runtime.links.device_process import DeviceOptions
from openhtp.runtime.links.rpc_link import RpcLink
from openhtp.session.options import soc_of

app = typer.Typer(help="Start, list and stop named devices.", no_args_is_help=True, add_completion=False)

_DEFAULT = DEVICE.defaults()


def _option(name: str) -> Any:
    """A device's option on the command line."""
    row = DEVICE.option(name)
    return typer.Option(help=f"{row.about} Accepts {row.kind.words}.")


Name = Annotated[str, typer.Option(help="The device's name.")]


@app.command()
def start(
    name: Name,
    soc: Annotated[str | None, _option("soc")] = None,
    policy: Annotated[str, _option("policy")] = _DEFAULT.policy,
    platform: Annotated[str, _option("platform")] = _DEFAULT.platform,
    threads: Annotated[int, _option("threads")] = _DEFAULT.threads,
    parallel_graphs: Annotated[bool, _option("parallel_graphs")] = _DEFAULT.parallel_graphs,
    allow_faults: Annotated[
        bool, typer.Option("--allow-faults", help="Let clients hold or fail their own executions, for tests.")
    ] = False,
    op_package: Annotated[
        list[str] | None,
        typer.Option("--op-package", help="Operators for clients: module:attribute, or library.so:provider."),
    ] = None,
    config_file: ConfigFile = None,
    json_file: JsonFile = None,
) -> None:
    """Start a device that stays until ``openhtp device stop``. A config chooses only its chip; clients vote."""
    with errors_reported():
        soc = soc or soc_of(preset_of(config_file, None))
        chosen = DEVICE.read(
            {
                "soc": soc,
                "policy": policy,
                "platform": platform,
                "threads": threads,
                "parallel_graphs": parallel_graphs,
            }
        )
        config = DeviceConfig.chosen(chosen)
        options = DeviceOptions(
            config=config, name=name, keep=True, allow_faults=allow_faults, op_packages=_found(op_package)
        )
        options.check()
        with rendezvous.locked():
            running = rendezvous.connect(name)
        if running is not None:
            running.close()
            raise UsageError(f"device {name!r} is already running; stop it first or use another name")
        link = RpcLink(options, lambda _: None)
        pid = link.pid
        link.close()
    say(f"device {name} ({soc}) is running as process {pid}")
    write_json(json_file, {"name": name, "soc": soc, "pid": pid})


def _found(references: list[str] | None) -> tuple[str, ...]:
    """Name the packages as another process finds them; the look-up here reports a mistake at once."""
    return tuple(package.reference for package in op_packages_of(references))


@app.command("list")
def list_(json_file: JsonFile = None) -> None:
    """List named devices, their clients and what these hold."""
    with errors_reported():
        devices = [device for device in look_around() if device.get("name") is not None]
    columns = ("device", "pid", "client pid", "graphs", "memory", "pending", "executions")
    table = TextTable("named devices", columns, ("graphs",))
    for device in devices:
        sessions = device["sessions"] or [None]
        for session in sessions:
            table.add(*_row(device, session))
    if devices:
        show(table)
    else:
        say("no named device is running")
    write_json(json_file, {"devices": devices})


@app.command()
def status(
    name: Annotated[str | None, typer.Option(help="Only the device with this name.")] = None,
    pid: Annotated[int | None, typer.Option(help="Only the device of this process, or of this client.")] = None,
    watch: Annotated[bool, typer.Option("--watch", help="Look repeatedly, until Ctrl-C.")] = False,
    interval: Annotated[float, typer.Option(min=0.05, help="Seconds between two looks.")] = 1.0,
    looks: Annotated[int | None, typer.Option(min=1, help="Watch for so many looks, not until Ctrl-C.")] = None,
    json_file: JsonFile = None,
) -> None:
    """Show all devices of this user: clients, process domains, contexts, graphs, buffers, who runs and who waits.

    Devices without a name, which programs start for themselves, are shown, too. Showing them changes nothing.
    """
    with errors_reported():
        running = look_around()
        devices = _selected(running, name, pid)
        if not devices and (name is not None or pid is not None):
            raise UsageError(_not_found(running, name, pid))
        live = Live(console=console, auto_refresh=False)
        with live if watch and console.is_terminal else contextlib.nullcontext():
            for look in itertools.count(1):
                if live.is_started:
                    live.update(status_of(devices), refresh=True)
                else:
                    console.print(status_of(devices))
                write_json(json_file, {"devices": devices})
                if look == looks or not watch:
                    return
                time.sleep(interval)
                devices = _selected(look_around(), name, pid, {device["pid"] for device in devices})


def _selected(
    devices: list[dict[str, Any]], name: str | None, pid: int | None, before: Container[int] = ()
) -> list[dict[str, Any]]:
    """Return the devices asked for. A device that does not answer now is shown as it was ``before``."""
    return [
        device
        for device in devices
        if (not _answers(device) and device["pid"] in before)
        or (
            (name is None or device.get("name") == name)
            and (pid is None or pid in (device["pid"], *(client["pid"] for client in device.get("sessions", ()))))
        )
    ]


def _answers(device: dict[str, Any]) -> bool:
    return "sessions" in device


def _not_found(devices: list[dict[str, Any]], name: str | None, pid: int | None) -> str:
    which = f"device {name!r}" if name is not None else f"device of process {pid}"
    deaf = ", ".join(str(device["pid"]) for device in devices if not _answers(device))
    if deaf:
        return (
            f"no {which} answers; the devices of these processes do not, being busy or stopped: {deaf}; look again"
        )
    return f"no {which} is running; `openhtp device status` shows all there are"


@app.command()
def stop(name: Name, json_file: JsonFile = None) -> None:
    """Stop a named device at once; its clients see a subsystem restart."""
    with errors_reported():
        link = _join(name)
        if link is None:
            raise UsageError(f"no device {name!r} is running; see `openhtp device list`")
        pid = link.pid
        link.request(ms.Shutdown(now=True))
        link.close()
    say(f"device {name} (process {pid}) was stopped")
    write_json(json_file, {"name": name, "pid": pid})


def _join(name: str) -> RpcLink | None:
    """A session of our own on a device that already runs."""
    with rendezvous.locked():
        sock = rendezvous.connect(name)
    if sock is None:
        return None
    sock.close()
    return RpcLink(DeviceOptions(name=name), lambda _: None)


def _row(device: dict[str, Any], session: dict[str, Any] | None) -> list[str]:
    if session is None:
        return [device["name"], str(device["pid"]), "-", "no clients", "", "", ""]
    return [
        device["name"],
        str(device["pid"]),
        str(session["pid"]),
        ", ".join(session["graphs"]) or "none",
        bytes_in_words(session["bytes"]),
        str(session["pending"]),
        str(session["executions"]),
    ]


# ``openhtp device status``: what is on the devices, as text that is drawn anew while one watches.

_COLUMNS = ("graph", "context", "PD", "state", "queue", "buffers")
# Interpreters: the name of the script says more about the program than theirs does.
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
    for index, word in enumerate(arguments):
        if word in ("-c", "-m"):
            return f"{name} {word}" if word == "-c" else f"{name} -m {' '.join(arguments[index + 1 : index + 2])}"
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
        f" {len(session['domains'])} of {session['most_domains']}"
        f" {'signed ' if session['pd_session'] == 'signed' else ''}process domains"
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
