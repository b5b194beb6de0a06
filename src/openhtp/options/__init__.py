"""Every option of every object, each known here and nowhere else: one table per object.

Knows names, numbers, ranges, defaults and what excludes what. Must not know what an option does: that is in the
room that reads its value. Start at ``_table.py``, then any table: ``graph.py`` is a good one. Python arguments,
config files, the vendor's bindings, binaries and ``docs/options.md`` all read these rows.
"""

from openhtp.core.renamed import renamed_names
from openhtp.core.value_kinds import (
    Choice,
    Flag,
    GroupMembership,
    Level,
    Member,
    Names,
    RefusedValue,
    Text,
    ValueKind,
    Whole,
)
from openhtp.options._table import (
    PREPARING,
    Arguments,
    Changeable,
    ContextOrigin,
    EffectPlace,
    Number,
    Option,
    OptionValues,
    PreparedWhere,
    Table,
)
from openhtp.options.context import CONTEXT
from openhtp.options.device import BACKEND, DEVICE
from openhtp.options.execution import EXECUTION, PROFILE
from openhtp.options.graph import GRAPH
from openhtp.options.provider import PROVIDER

TABLES: tuple[Table, ...] = (BACKEND, DEVICE, CONTEXT, GRAPH, EXECUTION, PROFILE, PROVIDER)

__all__ = [
    "BACKEND",
    "CONTEXT",
    "DEVICE",
    "EXECUTION",
    "GRAPH",
    "PREPARING",
    "PROFILE",
    "PROVIDER",
    "TABLES",
    "Arguments",
    "Changeable",
    "Choice",
    "ContextOrigin",
    "EffectPlace",
    "Flag",
    "GroupMembership",
    "Level",
    "Member",
    "Names",
    "Number",
    "Option",
    "OptionValues",
    "PreparedWhere",
    "RefusedValue",
    "Table",
    "Text",
    "ValueKind",
    "Whole",
]

__getattr__ = renamed_names(
    __name__,
    {
        "Changes": "Changeable",
        "Group": "GroupMembership",
        "Kind": "ValueKind",
        "Origin": "ContextOrigin",
        "Prepared": "PreparedWhere",
        "Refused": "RefusedValue",
        "Values": "OptionValues",
    },
)
