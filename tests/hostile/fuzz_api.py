"""Calls of the public surface with all sorts of arguments, on objects alive, freed or of others."""

from __future__ import annotations

import contextlib
import random
import reprlib
from collections import deque
from typing import Any

import openhtp as htp
from openhtp import zoo
from tests.conftest import relu_graph
from tests.hostile.clerk import Clerk
from tests.hostile.leaks import Holdings
from tests.hostile.probe import Neighbour, check_on_clean_context, sample
from tests.hostile.surface import Door, doors, public_classes
from tests.hostile.tally import Budget, Watch
from tests.hostile.values import Guesser, hostile

SHORT = 300
"""Rounds of the short form."""

# What starts processes, or ends what many others need, comes up less often.
RARE = {
    "Backend.create_device": 0.05,
    "Backend.free": 0.02,
    "Device.free": 0.02,
    "Context.free": 0.2,
    "InferenceSession": 0.02,
    "estimate": 0.05,
}
_KEPT = 12
_MOST_BACKENDS = 3
_MOST_DEVICES = 3
_CHECK_EVERY = 150


class Pool:
    """Objects of each class, the latest of each; what was freed stays among them for a while."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._of: dict[type, deque[Any]] = {}
        self.classes = tuple(public_classes().values())

    def add(self, item: Any, depth: int = 0) -> None:
        """Keep an object of the surface, and those inside a list or mapping."""
        if isinstance(item, self.classes):
            kept = self._of.setdefault(type(item), deque(maxlen=_KEPT))
            if not any(item is other for other in kept):
                kept.append(item)
        elif depth < 2 and isinstance(item, dict):
            for value in list(item.values())[:8]:
                self.add(value, depth + 1)
        elif depth < 2 and isinstance(item, list | tuple):
            for value in item[:8]:
                self.add(value, depth + 1)

    def all(self, cls: type) -> list[Any]:
        """What there is of a class."""
        return list(self._of.get(cls, ()))

    def pick(self, cls: type) -> Any:
        """One of a class; something else if there is none."""
        kept = self._of.get(cls)
        return self._rng.choice(kept) if kept else hostile(self._rng)

    def forget_all(self) -> None:
        """Let go of everything."""
        self._of.clear()


class _Attack:
    def __init__(self, rng: random.Random, watch: Watch) -> None:
        self.rng = rng
        self.watch = watch
        self.clerk = Clerk()
        self.notify = self.clerk.notify  # one object, to be known again
        self.pool = Pool(rng)
        self.guesser = Guesser(rng, public_classes(), self.pool.pick)
        self.guesser.by_name["notify"] = lambda _: rng.choice((self.notify, self.notify, _raising, None))
        self.guesser.by_name["notify_param"] = lambda _: self.clerk.ticket()
        self.guesser.by_name["binary"] = lambda _: self.binary
        self.guesser.by_name["model"] = self.guesser.by_name["path_or_bytes"] = lambda _: zoo.tiny_mlp(8)
        self.guesser.by_name["function"] = lambda _: rng.choice((lambda execution: None, _raising))
        self.doors = doors()
        self.weights = [RARE.get(door.title, 1.0) for door in self.doors]
        self.backend = htp.Backend()
        self.device = self.backend.create_device()
        self.binary = b""
        self.neighbour = Neighbour(self.device)
        self.numbers = 0

    def furnish(self) -> None:
        """Fresh objects in every state, so that calls get somewhere."""
        pool = self.pool
        live = [device for device in pool.all(htp.Device) if repr(device).endswith("live>")]
        if len(live) < 2:
            backend = htp.Backend()
            pool.add(backend)
            pool.add(backend.create_device(transport=self.rng.choice(("rpc", "rpc", "inprocess"))))
        for device in [*live, self.device]:
            with contextlib.suppress(htp.QnnError):
                self._furnish_on(device)
        for signal in (self.backend.create_signal(), self.backend.create_signal(timeout_us=100_000)):
            pool.add(signal)
        pool.add(self.backend.create_profile("detailed"))

    def _furnish_on(self, device: htp.Device) -> None:
        self.numbers += 1
        context = device.create_context(queue_depth=self.rng.choice((1, 4, 20)))
        graph = relu_graph(context, f"ready{self.numbers}")
        unfinished = context.create_graph(f"open{self.numbers}")
        self.pool.add([context, graph, unfinished, *graph.tensors.values()])
        self.pool.add(unfinished.add_tensor("x", (1, 8), "float32", kind="app_write"))
        self.pool.add([context.register_memory(4096), context.create_app("app")])
        if not self.binary:
            saved = device.create_context()
            relu_graph(saved, "saved")
            self.binary = saved.get_binary()
            saved.free()

    def one(self) -> None:
        """One call."""
        door: Door = self.rng.choices(self.doors, self.weights)[0]
        owner = None if door.owner is None else self.pool.pick(door.owner)
        if door.owner is not None and not isinstance(owner, door.owner):
            return
        if self._is_kept_alive(owner, door):
            return
        given, named = self.guesser.arguments(owner, door.parameters)
        ticket = named.get("notify_param") if named.get("notify") is self.notify else None
        first = [] if door.owner is None else [owner]
        made: Any = None
        accepted = False
        with self.watch.call(_in_words(door, owner, given, named)):
            made = door.call(*first, *given, **named)
            accepted = True
        if type(ticket) is int:
            if isinstance(made, htp.Execution):
                self.clerk.accepted(ticket, made)
            elif not accepted:
                self.clerk.refused(ticket)
        self.pool.add(made)
        self._limit()

    def _is_kept_alive(self, owner: Any, door: Door) -> bool:
        """The neighbour's own things are not in the pool, except through back references."""
        mine = (self.backend, self.device, self.neighbour.context, self.neighbour.graph)
        return any(owner is item for item in mine) and door.title.endswith(".free")

    def _limit(self) -> None:
        for cls, most in ((htp.Backend, _MOST_BACKENDS), (htp.Device, _MOST_DEVICES)):
            kept = self.pool._of.get(cls)
            while kept is not None and len(kept) > most:
                oldest = kept.popleft()
                if oldest not in (self.backend, self.device):
                    self._free(oldest)

    def _free(self, item: Any) -> None:
        with self.watch.call(f"{type(item).__name__}.free() of the attack"), contextlib.suppress(htp.QnnError):
            item.free()

    def rescue(self) -> None:
        """End what a call may be waiting for."""
        for execution in [*self.clerk.executions, *self.pool.all(htp.Execution)]:
            with contextlib.suppress(Exception):
                execution.cancel()
        for context in self.pool.all(htp.Context):
            with contextlib.suppress(Exception):
                context.free()

    def check(self) -> None:
        self.neighbour.check(self.watch)
        check_on_clean_context(self.device, self.watch)
        if self.device.restarts:
            self.watch.found("wrong", f"the device was lost {self.device.restarts} times")
            self.device.restarts = 0
            self.neighbour = Neighbour(self.device)

    def end(self) -> None:
        for cls in (htp.Context, htp.Device, htp.Backend):
            for item in self.pool.all(cls):
                if item not in (self.backend, self.device, self.neighbour.context):
                    self._free(item)
        self.rescue()
        self.check()
        self.clerk.check(self.watch)
        self._free(self.backend)


def attack(rng: random.Random, budget: Budget, watch: Watch) -> None:
    """Call whatever there is."""
    htp.Backend().free()  # what is made once and kept is made now
    with htp.Backend() as backend:
        relu_graph(backend.create_device().create_context()).execute({"x": sample(0)})
    before = Holdings()
    state = _Attack(rng, watch)
    watch.rescue = state.rescue
    state.furnish()
    while budget:
        state.one()
        if watch.tally.calls % 40 == 0:
            state.furnish()
        if watch.tally.calls % _CHECK_EVERY == 0:
            state.check()
            state.clerk.check(watch)
    state.end()
    watch.rescue = None
    state.pool.forget_all()
    del state
    before.check(watch)


def _raising(*args: object) -> None:
    raise RuntimeError("a callback of the attack")


_short = reprlib.Repr()
_short.maxstring, _short.maxother = 60, 80


def _in_words(door: Door, owner: Any, given: list[Any], named: dict[str, Any]) -> str:
    words = [_word(value) for value in given] + [f"{key}={_word(value)}" for key, value in named.items()]
    return f"{door.title}({', '.join(words)})" + (f" of {_word(owner)}" if door.owner is not None else "")


def _word(value: Any) -> str:
    try:
        if hasattr(value, "dtype") and hasattr(value, "shape"):
            return f"array({value.dtype}, {value.shape})"
        return _short.repr(value).encode("ascii", "backslashreplace").decode()
    except Exception as error:
        return f"<{type(value).__name__}: {type(error).__name__}>"
