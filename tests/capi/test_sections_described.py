"""libQnnSystem describes a binary section: Genie asks it for the graphs that an adapter is for."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from openhtp.core.dtype import DType
from openhtp.core.errors import QnnError
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.program.sections import pack_section, read_section
from openhtp.vendor.library import load
from openhtp.vendor.metadata import SystemLibrary

_SPEC = TensorSpec("w", (2, 3), DType.FLOAT_32, None, TensorKind.UPDATEABLE_STATIC)
_DATA = {"w": np.arange(6, dtype=np.float32).reshape(2, 3)}


def test_the_graphs_of_a_section_are_named(lib_dir: Path) -> None:
    section = pack_section("prompt", [_SPEC], _DATA, others=["token"])
    info = SystemLibrary.beside(load(lib_dir / "libQnnHtp.so")).binary_info(section)
    assert [graph.name for graph in info.graphs] == ["prompt", "token"]
    for name in ("prompt", "token"):
        np.testing.assert_array_equal(read_section(section, name, [_SPEC], validate=True).data["w"], _DATA["w"])
    with pytest.raises(QnnError, match="is for graph 'prompt'"):
        read_section(section, "another", [_SPEC], validate=True)


def test_a_damaged_section_is_malformed(lib_dir: Path) -> None:
    system = SystemLibrary.beside(load(lib_dir / "libQnnHtp.so"))
    section = bytearray(pack_section("prompt", [_SPEC], _DATA))
    section[-1] ^= 1
    for damaged in (bytes(section), bytes(section[:10])):
        with pytest.raises(QnnError) as raised:
            system.binary_info(damaged)
        assert raised.value.code == 30010
