"""Data that takes less room in a file than in memory, and comes back to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, strategies as st
from hypothesis.extra import numpy as arrays

from openhtp.core.errors import BadBinary
from openhtp.engine.native import native
from openhtp.engine.prepared import decode
from openhtp.program.coding import Coding, decoded, halved, nibbles
from openhtp.program.container import make_section
from openhtp.program.sources import MemorySource

EVERY_HALF = np.arange(1 << 16, dtype=np.uint16).view(np.float16).astype(np.float32)


@pytest.mark.parametrize("by_c", [True, False])
def test_every_number_of_half_precision_comes_back(by_c: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not by_c:
        monkeypatch.setattr("openhtp.engine.prepared.native", lambda: None)
    elif native() is None:
        pytest.skip("the C side was not compiled")
    for numbers in (EVERY_HALF, EVERY_HALF[-3:], EVERY_HALF[:1]):
        coded = halved(numbers)
        assert coded is not None
        section = make_section(coded)
        assert section.data_bytes == numbers.nbytes == 2 * section.nbytes
        back = np.frombuffer(decode(section, section.checked("floats")), np.float32)
        np.testing.assert_array_equal(back, numbers)
        np.testing.assert_array_equal(np.signbit(back), np.signbit(numbers))


@given(arrays.arrays(np.float32, st.integers(1, 9), elements=st.floats(width=32)))
def test_floats_are_halved_only_if_none_changes(numbers: np.ndarray) -> None:
    coded = halved(numbers)
    with np.errstate(over="ignore", invalid="ignore"):
        exact = np.array_equal(numbers.astype(np.float16).astype(np.float32).view("u4"), numbers.view("u4"))
    assert (coded is not None) == exact
    if coded is not None:
        assert bytes(decoded(*coded)) == numbers.tobytes()


@given(st.sampled_from(["i1", "u1"]), st.integers(0, 255), st.lists(st.integers(0, 17), min_size=1, max_size=40))
def test_bytes_are_packed_only_if_four_bits_tell_them_apart(dtype: str, lowest: int, above: list[int]) -> None:
    numbers = (np.array(above) + lowest).astype(np.uint8).view(dtype)
    coded = nibbles(numbers)
    ranges = [int(kind.max()) - int(kind.min()) for kind in (numbers.view(np.int8), numbers.view(np.uint8))]
    assert (coded is not None) == (len(above) % 2 == 0 and min(ranges) < 16)
    if coded is not None:
        assert len(coded.stored) * 2 == numbers.nbytes
        assert bytes(decoded(*coded)) == numbers.tobytes()


def test_half_a_number_is_refused() -> None:
    with pytest.raises(BadBinary, match="3 bytes are no numbers of half precision"):
        decoded(MemorySource(b"abc").read(0, 3), Coding.HALF)
