"""A checked call goes on its way: it takes handles, a place and memory, and is computed here or sent."""

from __future__ import annotations

from collections.abc import Callable

from openhtp.core import tidying
from openhtp.rpc import frames
from openhtp.runtime.calls.call import Call
from openhtp.runtime.calls.execution import Execution


def send(call: Call, way: Callable[[Call], Execution]) -> Execution:
    """Send a call by ``way``. One that raises holds nothing afterwards, also if an interrupt made it raise."""
    try:
        return way(call)
    except BaseException:
        tidying.post((call.settle, ()))
        tidying.flush()
        raise


def enqueue(call: Call) -> Execution:
    """Take handles, a place and memory for a call, then have it computed."""
    link, profile = call.link, call.profile
    timeout_at = call.hold_handles()
    level = 0 if profile is None else profile.level
    if call.bound is not None:
        execution = Execution(link.next_job(), call)
        if profile is not None:
            call.sent_ns = link.now()
        call.bound.submit(execution, call, timeout_at, level)
        return execution
    packed = call.hold_memory()
    execution = Execution(link.next_job(), call)
    arguments = call.arguments
    head = frames.EXECUTE_HEAD.pack(
        frames.EXECUTE,
        (frames.FLAG_DIMS if arguments.dims else 0) | (frames.FLAG_WAITED if call.synchronous else 0),
        arguments.count,
        call.callee.number,
        arguments.batch,
        level,
        execution.job,
        timeout_at,
        call.deadline_at,
    )
    if profile is not None:
        call.sent_ns = link.now()
    if not call.synchronous:
        link.submit(execution, head + packed, call.sent)
    elif profile is not None or call.signal is not None or not link.run_here(execution, head + packed):
        link.run(execution, head + packed, call.sent)
    return execution
