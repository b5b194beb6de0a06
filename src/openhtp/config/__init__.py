"""Config files of the vendor's tools: the backend extensions config, and the one that names it.

Knows the documents' keys and which option each leads to. Must not know devices or sessions: the code that makes
those asks a ``BackendConfig`` for their options. Start at ``keys.py``, the table; ``reading.py`` holds files to
it.

>>> from openhtp.config import parse_config
>>> config = parse_config({"devices": [{"soc_model": 57, "cores": [{"perf_profile": "burst"}]}]})
>>> config.device_options(), config.perf_profile
({'soc': 'SM8650'}, 'burst')
"""

from openhtp.config.backend_config import BackendConfig, CoreConfig, Source, as_config, parse_config, read_config
from openhtp.config.keys import GENERAL, HTP, Key, Section

__all__ = [
    "GENERAL",
    "HTP",
    "BackendConfig",
    "CoreConfig",
    "Key",
    "Section",
    "Source",
    "as_config",
    "parse_config",
    "read_config",
]
