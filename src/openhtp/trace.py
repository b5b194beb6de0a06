"""The old name of the package ``openhtp.records``. The function ``openhtp.trace`` stays."""

from openhtp.core.renamed import answer_by_old_name

answer_by_old_name(
    "openhtp.trace",
    "openhtp.records",
    function="openhtp.tracing:trace",
    modules={"phases": "phases", "records": "trace"},
)
