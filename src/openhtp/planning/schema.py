"""The scenario format as a JSON schema, with which editors complete keys and mark mistakes while one types.

``tools/gen_scenario_schema.py`` writes it from the tables that the reader checks by (``keys.py``).
"""

from __future__ import annotations

from pathlib import Path

PATH = Path(__file__).with_name("scenario.schema.json")
"""Where the schema lies: name it in an editor's settings."""
