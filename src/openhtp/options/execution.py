"""Options of one execution."""

from openhtp.core import status as st
from openhtp.core.limits import MAX_WAIT_US
from openhtp.options._kinds import Object, Whole
from openhtp.options._table import Changes, Option, Table

EXECUTION = Table(
    owner="execution",
    about="Given to `Graph.execute` and `execute_async`.",
    status=st.QNN_GRAPH_ERROR_INVALID_ARGUMENT,
    rows=(
        Option(
            name="profile",
            kind=Object("a profile handle of this backend", "Profile"),
            about="Where its times are recorded; one call at a time.",
            changes=Changes.EACH_CALL,
        ),
        Option(
            name="signal",
            kind=Object("a signal handle of this backend", "Signal"),
            about="Aborts it, or bounds its time; one call at a time.",
            changes=Changes.EACH_CALL,
        ),
        Option(
            name="deadline_us",
            kind=Whole(1, MAX_WAIT_US, "microseconds"),
            about="When it should be over, counted from the call; what `policy=edf` orders by, and reports tell.",
            changes=Changes.EACH_CALL,
        ),
        Option(
            name="notify",
            kind=Object("a function of (param, status)", "Notify"),
            about="Called once, on a thread of the backend, when the execution is over. Only `execute_async`.",
            changes=Changes.EACH_CALL,
        ),
        Option(
            name="notify_param",
            kind=Object("anything", "object"),
            about="The first argument of `notify`.",
            changes=Changes.EACH_CALL,
        ),
    ),
)
