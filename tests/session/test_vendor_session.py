"""The same session on the vendor's own library, where that is installed."""

from __future__ import annotations

import numpy as np
import pytest

import openhtp as htp
from openhtp import zoo
from openhtp.vendor.library import find_library


@pytest.mark.vendor
@pytest.mark.parametrize("name", ["small_cnn", "tiny_mlp"])
def test_vendor_library_gives_the_same_within_steps(name: str) -> None:
    library = find_library()
    if library is None:
        pytest.skip("the onnxruntime-qnn package is not installed")
    model = zoo.quantized(zoo.MODELS[name](), samples=4)
    feeds = zoo.random_feeds(model)[0]
    options = [{"backend_path": str(library)}]
    with (
        htp.InferenceSession(model, providers=["QNNExecutionProvider"], provider_options=options) as theirs,
        htp.InferenceSession(model) as ours,
    ):
        (wanted,), (found,) = theirs.run(None, feeds), ours.run(None, feeds)
        assert np.array_equal(theirs.run_async(None, feeds).result()[0], wanted)
    assert np.abs(found - wanted).max() < 0.05 * np.abs(wanted).max()
