"""Lists, raw files and configurations of the tools, whatever is in them; and names of files for tensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings, strategies as some

from openhtp.core.dtype import DType
from openhtp.core.errors import InvalidArgument
from openhtp.core.quant import ScaleOffset
from openhtp.core.tensor import TensorSpec
from openhtp.tools.input_list import read_input_list, split_lists
from openhtp.tools.raw import RawForm, file_stems, read_piece, to_floats, to_stored
from openhtp.tools.throughput import read_test_case
from tests.tools.test_throughput import CASE

anything = settings(
    max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow]
)


@anything
@given(data=some.binary(max_size=80) | some.text("x:=y.raw #%\n\t,_é", max_size=60).map(str.encode))
def test_any_list_is_read_or_refused_with_its_line(tmp_path: Path, data: bytes) -> None:
    path = tmp_path / "list.txt"
    path.write_bytes(data)
    try:
        input_list = read_input_list(path, ["x", "y"], ["o"])
    except InvalidArgument as error:
        message = error.message
    else:
        assert all(set(line.files) == {"x", "y"} for line in input_list.lines)
        return
    assert str(path) in message


@anything
@given(
    path=some.sampled_from(
        [("backends", 0), ("models", 0), ("contexts", 0), ("testCase",), ("testCase", "threads", 0)]
    ),
    value=some.recursive(
        some.none() | some.booleans() | some.integers() | some.text(max_size=9), some.lists, max_leaves=4
    ),
    data=some.data(),
)
def test_any_configuration_is_read_or_refused_with_its_place(
    tmp_path: Path, path: Any, value: Any, data: Any
) -> None:
    case = json.loads(json.dumps(CASE))
    entry: Any = case
    for step in path:
        entry = entry[step]
    entry[data.draw(some.sampled_from(sorted(entry)) | some.text(max_size=5))] = value
    file = tmp_path / "case.json"
    file.write_text(json.dumps(case))
    try:
        read_test_case(file)
    except InvalidArgument as error:
        message = error.message
    else:
        return
    assert str(file) in message


@pytest.mark.parametrize(
    ("dtype", "quant", "floats", "stored"),
    [
        ("ufixed8", ScaleOffset(0.5, -10), [-9.0, 0.0, 0.25, 300.0, float("nan")], [0, 10, 10, 255, 10]),
        ("sfixed16", ScaleOffset(0.01), [1.0, -400.0], [100, -32768]),
        ("int32", None, [1.4, -2.6, 1e12], [1, -3, 2**31 - 1]),
        ("int64", None, [3.0, 1e30], [3, 2**63 - 1]),
        ("uint8", None, [-1.0, 255.4], [0, 255]),
        ("bool", None, [0.0, 2.0], [False, True]),
        ("float16", None, [1.0, 1e6], [1.0, float("inf")]),
    ],
)
def test_floats_become_a_tensor_s_own_type(dtype: str, quant: Any, floats: list[float], stored: list[Any]) -> None:
    spec = TensorSpec("t", (len(floats),), DType.parse(dtype), quant)
    found = to_stored(spec, np.array(floats, np.float32))
    assert (found.tolist(), found.dtype) == (stored, spec.dtype.numpy)
    back = to_floats(spec, found)
    assert back.dtype == np.float32
    if quant is not None:
        assert back[0] == pytest.approx(quant.scale * (stored[0] + quant.offset))


def test_a_file_of_the_wrong_size_says_what_would_fit(tmp_path: Path) -> None:
    path = tmp_path / "x.raw"
    path.write_bytes(bytes(8))
    spec = TensorSpec("x", (2, 4), DType.UFIXED_POINT_8, ScaleOffset(1.0))
    with pytest.raises(InvalidArgument, match=r"list.txt:3: .* takes 32 \(float32\).* --use_native_input_files"):
        read_piece(path, "list.txt:3", spec, RawForm.FLOAT, 1)
    assert read_piece(path, "", spec, RawForm.NATIVE, 1).parts == 2
    path.write_bytes(bytes(16))
    assert read_piece(path, "", spec, RawForm.NATIVE, 2).array.shape == (4, 4)


def test_names_of_files() -> None:
    names = ["/model/out:0", "_model_out:0", "y", "y_native", "..", "", "a\0b", "x" * 500]
    stems = file_stems(names)
    assert stems["/model/out:0"] == "_model_out:0"
    assert len(set(stems.values())) == len(names)
    files = [f"{stem}{end}.raw" for stem in stems.values() for end in ("", "_native")]
    assert len(set(files)) == len(files)
    assert all("/" not in stem and not stem.startswith(".") and len(stem) < 220 for stem in stems.values())


def test_lists_of_several_graphs() -> None:
    assert split_lists("a.txt, __,b.txt") == [Path("a.txt"), None, Path("b.txt")]
    with pytest.raises(InvalidArgument):
        split_lists("a.txt,,b.txt")
