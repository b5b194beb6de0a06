"""The one way to watch the runtime and to intercept its calls: an ``Instrument``, a set of optional hooks.

A class says with ``hooked`` which of its methods have hooks. While an instrument is installed, a call of such a
method goes to its hook, as ``hook(proceed, *arguments, **options)``; ``proceed`` is the method itself. Events that
are not calls are methods of ``News``.

Hooks are resolved when an instrument is installed. Without an instrument, a method is the function that its class
defines, and costs nothing extra. An instrument holds for the whole process, as programs and the environment ask
for recordings and faults before there is a backend, and for all backends.
"""

from __future__ import annotations

import functools
import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeVar

from openhtp.core.errors import InternalError

if TYPE_CHECKING:
    from openhtp.runtime.objects.device import Device
    from openhtp.runtime.objects.graph import Graph

log = logging.getLogger(__name__)

Hook = Callable[..., Any]
_C = TypeVar("_C", bound=type)

HOOKS = frozenset(
    {
        # Calls of a backend, and of the signals it makes
        *("device_create", "signal_create", "signal_trigger", "profile_create", "log_create", "capability_ask"),
        # Of a device
        *("context_create", "context_open", "context_restore", "binary_validate"),
        *("power_config_create", "power_vote", "perf_profile_set"),
        # Of a context and its graphs
        *("graph_create", "graph_compose", "tensor_add", "node_add", "graph_finalize", "config_set"),
        *("binary_get", "section_get", "section_apply", "memory_register"),
        # Of one execution: it is about to be queued, its outcome is known, its notification is handed over
        *("execution_begin", "execution_end", "notification"),
        # Of one run of a session: the call that computes it, or puts it into a queue
        *("session_run", "session_queue"),
        # Of anything that can be freed
        "free",
        # News
        *("device_made", "device_leaves", "graph_loaded", "entry_answered"),
    }
)
_OF_EXECUTIONS = frozenset({"execution_begin", "execution_end", "notification"})


class _HookPoint(NamedTuple):
    """A method, and the function that its class defines for it."""

    owner: type
    method: str
    defined: Callable[..., Any]


class Instrument:
    """Hooks by name; ``HOOKS`` has all names. Install an instrument, and remove it again."""

    def __init__(self, hooks: Mapping[str, Hook]) -> None:
        unknown = sorted(hooks.keys() - HOOKS)
        if unknown:
            raise InternalError(f"no hook is called {', '.join(unknown)}; expected some of {sorted(HOOKS)}")
        self.hooks = dict(hooks)

    def install(self) -> None:
        """Lead calls through the hooks; those of the instrument installed last are called first."""
        with _installing:
            _installed.append(self)
            _resolve(self.hooks)

    def remove(self) -> None:
        """Lead calls past the hooks again; other instruments stay."""
        with _installing:
            _installed.remove(self)
            _resolve(self.hooks)

    def __enter__(self) -> Instrument:
        self.install()
        return self

    def __exit__(self, *exc: object) -> None:
        self.remove()


class Watched:
    """Whether an instrument has hooks of executions: then no shortcut past the hooked methods may be taken."""

    executions = False


_installing = threading.Lock()
_installed: list[Instrument] = []
hook_points: dict[str, list[_HookPoint]] = {name: [] for name in HOOKS}


def hooked(**hooks: str) -> Callable[[_C], _C]:
    """Give methods of a class hooks: ``@hooked(finalize="graph_finalize")``."""

    def register(owner: _C) -> _C:
        with _installing:
            for method, name in hooks.items():
                hook_points[name].append(_HookPoint(owner, method, getattr(owner, method)))
            if _installed:
                _resolve(hooks.values())
        return owner

    return register


def told(listen: Callable[..., object]) -> Hook:
    """A hook that calls ``listen`` with the news. If ``listen`` raises, that is logged and the work goes on."""

    def hook(proceed: Callable[..., object], source: News, *news: object) -> None:
        proceed(source, *news)
        try:
            listen(*news)
        except Exception:
            log.exception("telling %r", listen)

    return hook


def _resolve(names: Iterable[str]) -> None:
    for name in names:
        for point in hook_points[name]:
            method = point.defined
            for instrument in _installed:
                hook = instrument.hooks.get(name)
                if hook is not None:
                    method = _through(hook, method)
            setattr(point.owner, point.method, method)
    Watched.executions = any(not _OF_EXECUTIONS.isdisjoint(instrument.hooks) for instrument in _installed)


def _through(hook: Hook, proceed: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(proceed)
    def call(*arguments: Any, **options: Any) -> Any:
        return hook(proceed, *arguments, **options)

    return call


@hooked(
    device_made="device_made",
    device_leaves="device_leaves",
    graph_loaded="graph_loaded",
    entry_answered="entry_answered",
)
class News:
    """Events other than calls. The methods do nothing; their hooks do, if there are any."""

    def device_made(self, device: Device) -> None:
        """The device can be used from now on, for the first time or after a restart."""

    def device_leaves(self, device: Device) -> None:
        """The device can be used for the last time."""

    def graph_loaded(self, graph: Graph) -> None:
        """The graph can be executed from now on."""

    def entry_answered(self, name: str, status: int) -> None:
        """A client of the C table has its answer."""


news = News()
