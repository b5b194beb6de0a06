"""The SoCs we know. Adding one is adding a row to ``socs.toml``."""

from __future__ import annotations

import difflib
import functools
import tomllib
from pathlib import Path

from openhtp.core.checks import shown, whole_number
from openhtp.core.errors import InvalidArgument
from openhtp.hw.soc import SocSpec

# Longer than any name; looking for the nearest one takes the square of the length.
_LONGEST = 100


@functools.cache
def catalog() -> dict[str, SocSpec]:
    """All SoCs by name, in the order of the file."""
    text = Path(__file__).with_name("socs.toml").read_text(encoding="utf-8")
    return {
        name: SocSpec(name=name, **{**fields, "estimated": tuple(fields.get("estimated", ()))})
        for name, fields in tomllib.loads(text).items()
    }


def find_soc(name: str | int) -> SocSpec:
    """Return a SoC by name (any case), marketing name, or the API's SoC model number.

    Several SoCs can carry one number (they are the same die); the first of them is taken.

    Raises:
        InvalidArgument: there is none; the message names the nearest ones.
    """
    socs = catalog()
    number = whole_number(name)
    if not isinstance(name, str) and (number is None or not 0 <= number < 1 << 32):
        raise InvalidArgument(f"SoC {shown(name)} is unknown; expected a name or a SoC model number")
    wanted = str(name if number is None else number).strip()[:_LONGEST]
    for soc in socs.values():
        if wanted.upper() == soc.name or wanted.lower() == soc.marketing.lower() or wanted == str(soc.soc_model):
            return soc
    near = difflib.get_close_matches(wanted.upper(), socs, n=3, cutoff=0.5) or list(socs)
    raise InvalidArgument(f"SoC {shown(name)} is unknown; nearest known: {', '.join(near)}")
