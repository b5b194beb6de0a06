"""Operators of our own that have no memory, or data that do not fit them, fail the run and say why."""

from __future__ import annotations

import ctypes
import subprocess
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from onnx import TensorProto, helper
from tests.capi.conftest import ROOT, build_script

from openhtp.engine.native import DOMAIN
from openhtp.engine.onnxruntime import onnxruntime
from openhtp.engine.row_products import can_fuse

SOURCE = ROOT / "src/openhtp/engine/native/sessions.c"
SCARCE = """
#include <stdlib.h>
__attribute__((visibility("default"))) int memory_is_used_up;
static void *scarce(size_t size) { return memory_is_used_up ? NULL : malloc(size); }
#define malloc scarce
"""
ROWS = 5000  # more than the operator has room for on its stack
PICTURE = {
    "by_axis": 0,
    "rank": 4,
    "batch": 1,
    "channels": 1,
    "depth": 1,
    "height": 2,
    "width": 2,
    "new_depth": 1,
    "new_height": 4,
    "new_width": 4,
    "taps_deep": 1,
    "taps_down": 2,
    "taps_across": 2,
}
PRODUCT = {"zero": 0, "rows": ROWS, "columns": 3, "rank": 2}


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The C side with an allocator that can be told to have nothing left."""
    compiler = build_script().compiler()
    if compiler is None:
        pytest.skip("there is no C compiler")
    folder = tmp_path_factory.mktemp("scarce")
    header, path = folder / "scarce.h", folder / "libscarce.so"
    header.write_text(SCARCE)
    words = ["-O1", "-fPIC", "-shared", "-include", header, "-o", path, SOURCE, "-ldl", "-lpthread"]
    subprocess.run([*compiler, *words], check=True)
    return path


def one_operator(name: str, attributes: dict[str, int], inputs: dict[str, np.ndarray], shape: list[int]) -> bytes:
    """A model that is one of our operators."""
    ends = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(array.dtype), array.shape)
        for name, array in inputs.items()
    ]
    result = helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)
    node = helper.make_node(name, list(inputs), ["y"], domain=DOMAIN, **attributes)
    graph = helper.make_graph([node], "g", ends, [result])
    opsets = [helper.make_opsetid("", 21), helper.make_opsetid(DOMAIN, 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10).SerializeToString()


def session(library: Path, model: bytes) -> Any:
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.register_custom_ops_library(str(library))
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def picture(index: int = 0) -> dict[str, np.ndarray]:
    return {
        "x": np.ones((1, 1, 2, 2), np.float32),
        "index": np.full(16, index, np.int64),
        "weight": np.full(16, 0.5, np.float32),
    }


def product() -> dict[str, np.ndarray]:
    return {
        "x": np.ones((1, ROWS), np.uint16),
        "right": np.ones((ROWS, 3), np.int8),
        "scales": np.ones(3, np.float32),
    }


@pytest.mark.parametrize(
    ("name", "attributes", "inputs", "shape", "expected"),
    [
        ("Interpolation", PICTURE, picture(), [1, 1, 4, 4], 1.0),
        pytest.param(
            *("SignedProduct", PRODUCT, product(), [1, 3], float(ROWS)),
            marks=pytest.mark.skipif(not can_fuse(), reason="this processor has none of these operators"),
        ),
    ],
)
def test_without_memory_a_run_fails_and_the_next_one_is_right(
    library: Path, name: str, attributes: dict[str, int], inputs: dict[str, Any], shape: list[int], expected: float
) -> None:
    run = session(library, one_operator(name, attributes, inputs, shape))
    used_up = ctypes.c_int.in_dll(ctypes.CDLL(str(library)), "memory_is_used_up")
    used_up.value = 1
    try:
        with pytest.raises(Exception, match="no memory"):
            run.run(None, inputs)
    finally:
        used_up.value = 0
    assert np.array_equal(run.run(None, inputs)[0], np.full(shape, expected, np.float32))


def test_an_index_outside_of_the_picture_fails_the_run(library: Path) -> None:
    run = session(library, one_operator("Interpolation", PICTURE, picture(), [1, 1, 4, 4]))
    with pytest.raises(Exception, match="does not fit the operator"):
        run.run(None, picture(index=2))
