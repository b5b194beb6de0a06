"""SoCs and architectures as the numbers that the library knows them by."""

from __future__ import annotations

import re

from openhtp.core import status as st
from openhtp.core.errors import InvalidArgument
from openhtp.hw.catalog import catalog


def parse_soc(value: int | str) -> int:
    """Accept a model number, a SoC's name in any case, or an architecture such as ``"v73"``.

    The first SoC of the catalog stands for its architecture; the library picks the same ones.
    """
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    socs = catalog()
    if isinstance(value, str):
        word = value.strip().upper()
        if word in socs:
            return socs[word].soc_model
        arch = re.fullmatch(r"V(\d+)", word)
        first = next((soc for soc in socs.values() if arch and soc.arch == int(arch[1])), None)
        if first is not None:
            return first.soc_model
    raise InvalidArgument(
        f"SoC {value!r} is unknown; expected a model number, one of {', '.join(socs)},"
        f" or one of {', '.join(f'v{arch}' for arch in _archs())}",
        st.QNN_DEVICE_ERROR_INVALID_CONFIG,
    )


def check_arch(value: int) -> int:
    """Refuse an architecture that we do not know: the library takes any number, and then compiles for v68."""
    if value not in _archs():
        raise InvalidArgument(
            f"architecture {value!r} is unknown; expected one of {', '.join(map(str, _archs()))}",
            st.QNN_DEVICE_ERROR_INVALID_CONFIG,
        )
    return value


def _archs() -> list[int]:
    return sorted({soc.arch for soc in catalog().values()})
