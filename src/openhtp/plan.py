"""The old name of the package ``openhtp.planning``. The function ``openhtp.plan`` stays."""

from openhtp.core.renamed import answer_by_old_name

answer_by_old_name(
    "openhtp.plan",
    "openhtp.planning",
    function="openhtp.planning:plan",
    modules={"optimize": "optimize", "result": "result", "schema": "schema"},
)
