"""Which calls are allowed on an object in each state: the API's life-cycle rules as one table.

Every public method first calls ``Life.require("its name")``. A call that is not in the row of the present state
raises what ``_REFUSALS`` has for that state, and the object stays as it was. Which state may follow which is a
table, too: any other change is a defect of ours, and raises.
"""

from __future__ import annotations

import enum
import os

from openhtp.core import status as st
from openhtp.core.errors import DeviceLost, InternalError, InvalidHandle, QnnError, UnsupportedFeature, WrongState
from openhtp.core.status import Status


class State(enum.Enum):
    """Where an object is in its life."""

    LIVE = "live"  # usable (contexts, devices, memory, signals, profiles, backends)
    BUILDING = "building"  # a graph that takes tensors and nodes
    FINALIZED = "finalized"  # a graph that can be executed
    PREPARED = "only prepared"  # a graph that was finalized to be saved, in a context that only prepares
    DEFERRED = "deferred"  # a graph of a binary that is loaded when it is finalized (``defer_graph_init``)
    DISABLED = "disabled"  # a graph of a binary that was left out of ``enable_graphs``
    SUBGRAPH = "subgraph"  # a graph that only other graphs may run
    LOST = "lost"  # its device process went away
    FREED = "freed"  # given back
    FOREIGN = "foreign"  # a copy in the child of a fork; the object is the parent's


_GONE = frozenset({State.FREED, State.FOREIGN})
_ENDS = _GONE | {State.LOST}

_CHANGES: dict[State, frozenset[State]] = {
    State.LIVE: _ENDS,
    State.BUILDING: _ENDS | {State.FINALIZED, State.PREPARED, State.DEFERRED, State.DISABLED, State.SUBGRAPH},
    State.DEFERRED: _ENDS | {State.FINALIZED},
    State.FINALIZED: _ENDS,
    State.PREPARED: _ENDS,
    State.DISABLED: _ENDS,
    State.SUBGRAPH: _ENDS,
    State.LOST: _GONE,
    State.FREED: frozenset(),
    State.FOREIGN: frozenset(),
}

ALLOWED: dict[tuple[str, State], frozenset[str]] = {
    ("backend", State.LIVE): frozenset({"use", "free"}),
    ("device", State.LIVE): frozenset({"use", "free"}),
    ("device", State.LOST): frozenset({"free"}),
    ("context", State.LIVE): frozenset({"use", "execute", "free"}),
    ("context", State.LOST): frozenset({"free"}),
    ("graph", State.BUILDING): frozenset({"add_tensor", "add_node", "finalize", "set_config"}),
    ("graph", State.FINALIZED): frozenset({"execute", "set_config", "save"}),
    ("graph", State.PREPARED): frozenset({"set_config", "save"}),
    ("graph", State.DEFERRED): frozenset({"finalize", "set_config"}),
    ("graph", State.SUBGRAPH): frozenset({"add_tensor", "add_node"}),
    ("mem", State.LIVE): frozenset({"use", "free"}),
    ("mem", State.LOST): frozenset({"free"}),
    ("signal", State.LIVE): frozenset({"use", "free"}),
    ("profile", State.LIVE): frozenset({"use", "free"}),
    ("log", State.LIVE): frozenset({"use", "free"}),
    ("power config", State.LIVE): frozenset({"use", "free"}),
    ("power config", State.LOST): frozenset({"free"}),
}

_FREED_STATUS = {
    "backend": st.QNN_BACKEND_ERROR_INVALID_HANDLE,
    "device": st.QNN_DEVICE_ERROR_INVALID_HANDLE,
    "context": st.QNN_CONTEXT_ERROR_INVALID_HANDLE,
    "graph": st.QNN_GRAPH_ERROR_INVALID_HANDLE,
    "mem": st.QNN_MEM_ERROR_INVALID_HANDLE,
    "signal": st.QNN_SIGNAL_ERROR_INVALID_HANDLE,
    "profile": st.QNN_PROFILE_ERROR_INVALID_HANDLE,
    "log": st.QNN_LOG_ERROR_INVALID_HANDLE,
    "power config": st.QNN_HTP_PERF_INFRASTRUCTURE_ERROR_INVALID_INPUT,
}

_FINALIZE = "call finalize() first"
_FINALIZE_DEFERRED = f"its context was created with defer_graph_init; {_FINALIZE}"
_SAVE_ONLY = "its context was made with prepare_only: save it, and make a context from the binary"
_ENABLE = "name it in enable_graphs when the context is created from the binary"
_PARENT_RUNS = "a subgraph runs only as part of its parent; execute the parent"
_PARENT_FINALIZES = "a subgraph is finalized with its parent"
_CONTEXT_FREED = "the graph's context was freed"

# Refusals that depend on state and call; the rest is in Life.refusal.
_REFUSALS: dict[tuple[str, State, str], tuple[type[QnnError], Status, str]] = {
    ("graph", State.BUILDING, "execute"): (WrongState, st.QNN_GRAPH_ERROR_GRAPH_NOT_FINALIZED, _FINALIZE),
    ("graph", State.BUILDING, "save"): (WrongState, st.QNN_CONTEXT_ERROR_NOT_FINALIZED, _FINALIZE),
    ("graph", State.DEFERRED, "execute"): (WrongState, st.QNN_GRAPH_ERROR_GRAPH_NOT_FINALIZED, _FINALIZE_DEFERRED),
    ("graph", State.DEFERRED, "save"): (WrongState, st.QNN_CONTEXT_ERROR_NOT_FINALIZED, _FINALIZE_DEFERRED),
    ("graph", State.SUBGRAPH, "execute"): (UnsupportedFeature, st.QNN_GRAPH_ERROR_SUBGRAPH, _PARENT_RUNS),
    ("graph", State.SUBGRAPH, "finalize"): (UnsupportedFeature, st.QNN_GRAPH_ERROR_SUBGRAPH, _PARENT_FINALIZES),
    ("graph", State.PREPARED, "execute"): (WrongState, st.QNN_COMMON_ERROR_OPERATION_NOT_PERMITTED, _SAVE_ONLY),
    ("graph", State.DISABLED, "execute"): (WrongState, st.QNN_GRAPH_ERROR_DISABLED, _ENABLE),
    ("context", State.FREED, "execute"): (InvalidHandle, st.QNN_GRAPH_ERROR_INVALID_CONTEXT, _CONTEXT_FREED),
    ("graph", State.FREED, "execute"): (InvalidHandle, st.QNN_GRAPH_ERROR_INVALID_CONTEXT, _CONTEXT_FREED),
}

# The process that owns the FOREIGN objects of this one; set in the child of a fork.
parent_pid = 0


def foreign_error(what: str, status: Status) -> InvalidHandle:
    """The error for the child of a fork that uses its parent's object."""
    return InvalidHandle(
        f"{what} belongs to process {parent_pid}, of which this one ({os.getpid()}) is a fork;"
        " create a Backend of its own here",
        status,
    )


class Life:
    """The state of one object, and the check that each of its methods starts with."""

    __slots__ = ("_allowed", "kind", "name", "state")

    def __init__(self, kind: str, name: str, state: State = State.LIVE) -> None:
        self.kind = kind
        self.name = name
        self.state = state
        self._allowed = ALLOWED.get((kind, state), frozenset())

    def become(self, state: State) -> None:
        """Change state. Raises InternalError for a change that the table does not have."""
        if state not in _CHANGES[self.state]:
            raise InternalError(f"{self._title()} is {self.state.value} and cannot become {state.value}")
        allowed = ALLOWED.get((self.kind, state), frozenset())
        # Nothing is called between these two, so no interrupt comes in between.
        self.state = state
        self._allowed = allowed

    def end(self, state: State) -> None:
        """Become lost, freed or foreign, unless the object has gone further already.

        Ends come from several sides at once: a user frees an object while a link loses it, a free that was
        interrupted is repeated, a fork comes in between.
        """
        if state not in _ENDS:
            raise InternalError(f"{self._title()} does not end by becoming {state.value}")
        if state in _CHANGES[self.state]:
            self.become(state)

    def finish(self, call: str, state: State) -> None:
        """Note that ``call`` has done its work; refused if the object ended meanwhile."""
        self.require(call)
        self.become(state)

    def require(self, call: str) -> None:
        """Raise unless ``call`` is allowed in the present state."""
        if call not in self._allowed:
            raise self.refusal(call)

    def _title(self) -> str:
        return f"{self.kind} {self.name!r}" if self.name else self.kind

    def refusal(self, call: str) -> QnnError:
        """The error that says why ``call`` is not allowed."""
        what = self._title()
        known = _REFUSALS.get((self.kind, self.state, call))
        if known is not None:
            error, status, advice = known
            if self.state is State.FREED:
                return error(f"cannot {call}: {advice}", status)
            return error(f"cannot {call} {what}: it is {self.state.value}; {advice}", status)
        if self.state is State.FOREIGN:
            return foreign_error(f"cannot {call} {what}: it", _FREED_STATUS[self.kind])
        if self.state is State.FREED:
            return InvalidHandle(f"cannot {call} {what}: it was freed", _FREED_STATUS[self.kind])
        if self.state is State.LOST:
            return DeviceLost(
                f"cannot {call} {what}: its device process went away; create it again on the same device"
            )
        status = {
            State.FINALIZED: st.QNN_GRAPH_ERROR_GRAPH_FINALIZED,
            State.PREPARED: st.QNN_GRAPH_ERROR_GRAPH_FINALIZED,
            State.BUILDING: st.QNN_GRAPH_ERROR_GRAPH_NOT_FINALIZED,
        }.get(self.state, st.QNN_COMMON_ERROR_OPERATION_NOT_PERMITTED)
        return WrongState(f"cannot {call} {what}: it is {self.state.value}", status)
