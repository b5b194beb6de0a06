"""The old name of the package ``openhtp.sweeping``. The function ``openhtp.sweep`` stays."""

from openhtp.core.renamed import answer_by_old_name

answer_by_old_name("openhtp.sweep", "openhtp.sweeping", function="openhtp.sweeping:sweep", modules={})
