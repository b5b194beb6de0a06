"""Every option of every object, each known here and nowhere else: one table per object.

Knows names, numbers, ranges, defaults and what excludes what. Must not know what an option does: that is in the
room that reads its value. Start at ``_table.py``, then any table: ``graph.py`` is a good one. Python arguments,
config files, the vendor's bindings, binaries and ``docs/options.md`` all read these rows.
"""

from openhtp.options._kinds import Choice, Flag, Group, Kind, Level, Member, Names, Refused, Text, Whole
from openhtp.options._table import PREPARING, Arguments, Changes, Number, Option, Origin, Prepared, Table, Values
from openhtp.options.backend import BACKEND
from openhtp.options.context import CONTEXT
from openhtp.options.device import DEVICE
from openhtp.options.execution import EXECUTION
from openhtp.options.graph import GRAPH
from openhtp.options.profile import PROFILE
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
    "Changes",
    "Choice",
    "Flag",
    "Group",
    "Kind",
    "Level",
    "Member",
    "Names",
    "Number",
    "Option",
    "Origin",
    "Prepared",
    "Refused",
    "Table",
    "Text",
    "Values",
    "Whole",
]
