"""No wait of ours is broken by Ctrl-C: what the standard library has for it in Python is not used (decision 027).

The rule, in short: lock with ``with`` on a ``threading.Lock``, hand things over by ``queue.SimpleQueue``, wait on
a ``Latch`` or a ``Promise`` (``core/latches.py``), start threads as ``OwnThread`` (``core/threads.py``).
"""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "src/openhtp"

# What holds a lock while Python code runs, or waits on such a thing.
REFUSED = {
    "threading": {"Event", "Condition", "Semaphore", "BoundedSemaphore", "Barrier", "Timer", "Thread"},
    "queue": {"Queue", "LifoQueue", "PriorityQueue"},
    "concurrent.futures": {"*"},
    "multiprocessing": {"Lock", "RLock", "Event", "Condition", "Semaphore", "Queue", "Pool", "Process", "Manager"},
    "asyncio": {"to_thread", "run_coroutine_threadsafe", "wrap_future"},
}
METHODS = {"acquire", "run_in_executor"}

# Where that is in order, and why.
_OF_OURS = "runs on threads of ours and of the device only, which nothing interrupts"
ALLOWED = {
    "core/threads.py": {
        "threading.Thread": "what OwnThread is made of; started on a thread that nothing interrupts"
    },
    "runtime/calls/execution.py": {
        "acquire": "a lock of this call alone, which nobody else waits for",
        "concurrent.futures.Future": "one that the user asks for and waits on",
    },
    "runtime/calls/queue.py": {"acquire": "a lock of this call alone, which nobody else waits for"},
    "device/library_target.py": {"concurrent.futures.ThreadPoolExecutor": _OF_OURS},
    "device/loading.py": {"concurrent.futures.ThreadPoolExecutor": _OF_OURS},
    "device/runner.py": {
        "concurrent.futures.Executor": _OF_OURS,
        "concurrent.futures.ThreadPoolExecutor": _OF_OURS,
    },
    "device/tasks.py": {"threading.Thread": _OF_OURS, "threading.Condition": _OF_OURS},
    "engine/workshop.py": {
        "threading.Condition": _OF_OURS,
        "concurrent.futures.ThreadPoolExecutor": _OF_OURS,
    },
}
# Programs of their own, which end with the interrupt.
PROGRAMS = ("bench", "cli")


def _refused_in(text: str) -> dict[str, list[int]]:
    """Names that are used and refused, with the lines in which they stand. Annotations use nothing."""
    found: dict[str, list[int]] = {}
    modules: dict[str, str] = {}
    tree = ast.parse(text)
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                first = alias.name.split(".")[0]
                modules[alias.asname or first] = alias.name if alias.asname else first
        elif isinstance(node, ast.ImportFrom):
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                if _is_refused(full) or full in REFUSED:
                    found.setdefault(full, []).append(node.lineno)
    annotations = {id(inner) for outer in _annotations(tree) for inner in ast.walk(outer)}
    for node in ast.walk(tree):
        if not isinstance(node, ast.Attribute) or id(node) in annotations:
            continue
        first, _, rest = ast.unparse(node).partition(".")
        full = f"{modules.get(first, '')}.{rest}"
        if _is_refused(full):
            found.setdefault(full, []).append(node.lineno)
        elif node.attr in METHODS:
            found.setdefault(node.attr, []).append(node.lineno)
    return found


def _is_refused(full: str) -> bool:
    module, _, name = full.rpartition(".")
    return bool({name, "*"} & REFUSED.get(module, set()))


def _annotations(tree: ast.AST) -> list[ast.expr]:
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.AnnAssign | ast.arg) and node.annotation is not None:
            found.append(node.annotation)
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.returns is not None:
            found.append(node.returns)
    return found


def _sources() -> list[Path]:
    paths = sorted(PACKAGE.rglob("*.py"))
    return [path for path in paths if path.relative_to(PACKAGE).parts[0] not in PROGRAMS]


@pytest.mark.parametrize("path", _sources(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_nothing_waits_where_an_interrupt_would_break_it(path: Path) -> None:
    allowed = ALLOWED.get(str(path.relative_to(PACKAGE)), {})
    wrong = {name: lines for name, lines in _refused_in(path.read_text()).items() if name not in allowed}
    assert not wrong, f"{path.relative_to(ROOT)}: {wrong}; use core/latches.py and core/threads.py (decision 027)"


def test_nothing_is_allowed_that_is_not_there() -> None:
    for name, allowed in ALLOWED.items():
        assert allowed.keys() <= _refused_in((PACKAGE / name).read_text()).keys(), name


def _generators_with_locks(text: str) -> list[int]:
    """Lines in which a generator yields while it holds a lock, which a kept traceback then holds."""
    found = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.With) and any(
            "lock" in ast.unparse(item.context_expr).lower() for item in node.items
        ):
            found += [inner.lineno for inner in ast.walk(node) if isinstance(inner, ast.Yield | ast.YieldFrom)]
    return found


@pytest.mark.parametrize("path", _sources(), ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_generator_holds_a_lock(path: Path) -> None:
    """Who is interrupted in a context manager's ``__enter__`` does not come to its ``__exit__``."""
    assert _generators_with_locks(path.read_text()) == []


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("import threading\nx = threading.Event()", ["threading.Event"]),
        ("import threading as t\nx = t.Condition()", ["threading.Condition"]),
        ("from threading import Thread", ["threading.Thread"]),
        ("import threading\nx: threading.Lock = threading.Lock()", []),
        ("import queue\nx = queue.SimpleQueue()", []),
        ("import queue\nx = queue.Queue()", ["queue.Queue"]),
        ("import concurrent.futures\nx = concurrent.futures.Future()", ["concurrent.futures.Future"]),
        ("from concurrent.futures import Future", ["concurrent.futures.Future"]),
        ("from concurrent import futures", ["concurrent.futures"]),
        ("import asyncio\nasync def f():\n    await asyncio.to_thread(f)", ["asyncio.to_thread"]),
        ("def f(lock):\n    lock.acquire()", ["acquire"]),
        ("import threading\nclass A(threading.Thread): pass", ["threading.Thread"]),
        ("import threading\ndef f(x: threading.Thread) -> threading.Event: ...", []),
        ("class Event: pass\nx = Event()", []),
    ],
)
def test_what_is_refused_is_found(text: str, names: list[str]) -> None:
    assert sorted(_refused_in(text)) == names


def test_a_generator_with_a_lock_is_found() -> None:
    assert _generators_with_locks("def f(self):\n    with self._lock:\n        yield 1") == [3]
    assert _generators_with_locks("def f(self):\n    with self._lock:\n        pass\n    yield 1") == []
