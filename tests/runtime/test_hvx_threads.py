"""HVX threads of a graph: changed before its first execution, and no more after it."""

from __future__ import annotations

import numpy as np
import pytest

import openhtp as htp


def test_threads_change_until_the_first_execution() -> None:
    with htp.Backend() as backend, backend.create_device(soc="SM8650", transport="inprocess") as device:
        context = device.create_context()
        graph = context.create_graph("g", hvx_threads=4)
        x = graph.add_tensor("x", (1, 8), "float32", kind="app_write")
        y = graph.add_tensor("y", (1, 8), "float32", kind="app_read")
        graph.add_node("Relu", name="r", inputs=[x], outputs=[y])
        graph.set_config(hvx_threads=3)
        graph.finalize()
        graph.set_config(hvx_threads=2)
        assert graph.hvx_threads == 2
        with pytest.raises(htp.QnnError, match="HVX threads"):
            graph.set_config(hvx_threads=60)
        assert graph.hvx_threads == 2
        graph.execute({"x": np.ones((1, 8), np.float32)})
        with pytest.raises(htp.QnnError, match="cannot be changed"):
            graph.set_config(hvx_threads=1)
        assert graph.hvx_threads == 2
