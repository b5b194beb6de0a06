"""Options of a context."""

from openhtp.core import status as st
from openhtp.core.limits import DEFAULT_QUEUE_DEPTH, MAX_QUEUE_DEPTH
from openhtp.core.option_numbers import ContextOption
from openhtp.options._kinds import Level, Names, Whole
from openhtp.options._table import Changes, Number, Option, Table

CONTEXT = Table(
    owner="context",
    about="Given to `Device.create_context` and `create_context_from_binary`.",
    status=st.QNN_CONTEXT_ERROR_INVALID_CONFIG,
    rows=(
        Option(
            name="queue_depth",
            kind=Whole(1, MAX_QUEUE_DEPTH),
            default=DEFAULT_QUEUE_DEPTH,
            about="Executions that may be accepted and not yet completed. `set_config` does not change it later.",
            number=Number(name="QNN_CONTEXT_CONFIG_ASYNC_EXECUTION_QUEUE_DEPTH", value=ContextOption.QUEUE_DEPTH),
        ),
        Option(
            name="priority",
            kind=Level(),
            about="Priority of graphs that have none: normal unless given, and graphs of a binary keep theirs.",
            number=Number(name="QNN_CONTEXT_CONFIG_OPTION_PRIORITY", value=ContextOption.PRIORITY),
            changes=Changes.BEFORE_EXECUTION,
        ),
        Option(
            name="enable_graphs",
            kind=Names(),
            about="Graphs of the binary that can be executed; the others are left out. Only with a binary.",
            number=Number(name="QNN_CONTEXT_CONFIG_ENABLE_GRAPHS", value=ContextOption.ENABLE_GRAPHS),
        ),
    ),
)
