"""Names of SoCs that have an HTP, as the numbers that the library knows them by."""

from __future__ import annotations

import re

from openhtp.core import status as st
from openhtp.core.errors import InvalidArgument

SOC_MODELS = {
    "SM8350": 30,
    "SM8450": 36,
    "SM8475": 42,
    "SM8550": 43,
    "QCS8550": 43,
    "SM8650": 57,
    "SC8380XP": 60,
    "SM8635": 68,
    "SM8750": 69,
    "SM7750": 86,
    "SM8850": 87,
    "SC8480XP": 88,
    "SM8845": 97,
}

# The SoC that stands for an architecture when only that is asked for; the library picks the same ones.
SOC_OF_ARCH = {68: 30, 69: 36, 73: 43, 75: 57, 79: 69, 81: 87}

# The library takes any other number too, and then compiles for v68 without a word.
ARCHS = (68, 69, 73, 75, 79, 81, 85)


def parse_soc(value: int | str) -> int:
    """Accept a model number, a SoC's name in any case, or an architecture such as ``"v73"``."""
    if isinstance(value, int) and not isinstance(value, bool) and value > 0:
        return value
    if isinstance(value, str):
        word = value.strip().upper()
        if word in SOC_MODELS:
            return SOC_MODELS[word]
        arch = re.fullmatch(r"V(\d+)", word)
        if arch and int(arch[1]) in SOC_OF_ARCH:
            return SOC_OF_ARCH[int(arch[1])]
    raise InvalidArgument(
        f"SoC {value!r} is unknown; expected a model number, one of {', '.join(SOC_MODELS)},"
        f" or one of {', '.join(f'v{arch}' for arch in SOC_OF_ARCH)}",
        st.QNN_DEVICE_ERROR_INVALID_CONFIG,
    )


def check_arch(value: int) -> int:
    """Refuse an architecture that the library does not know."""
    if value not in ARCHS:
        raise InvalidArgument(
            f"architecture {value!r} is unknown; expected one of {', '.join(map(str, ARCHS))}",
            st.QNN_DEVICE_ERROR_INVALID_CONFIG,
        )
    return value
