"""A user's program with types: ``test_typing.py`` has type checkers read it, and runs it."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import numpy.typing as npt

import openhtp as htp

Array = npt.NDArray[Any]


def build(device: htp.Device) -> htp.Graph:
    context: htp.Context = device.create_context(queue_depth=4, priority=htp.Priority.HIGH)
    graph = context.create_graph("relu")
    graph.add_tensor("x", (1, 8), htp.DType.FLOAT_16, kind="app_write")
    graph.add_tensor("y", (1, 8), htp.DType.FLOAT_16, kind="app_read")
    graph.add_node("Relu", inputs=["x"], outputs=["y"])
    graph.finalize()
    return graph


def queue(graph: htp.Graph) -> float:
    execution: htp.Execution = graph.execute_async({"x": np.ones((1, 8), np.float16)})
    outputs: dict[str, Array] = execution.result()
    return float(outputs["y"].sum())


async def infer(model: bytes, feeds: dict[str, Array]) -> list[Array]:
    with htp.InferenceSession(model, soc="SM8650") as session:
        names: list[str] = [output.name for output in session.get_outputs()]
        run: htp.PendingRun = session.run_async(names, feeds)
        try:
            return await run
        except htp.QnnError as error:
            raise SystemExit(error.message) from error


def main() -> None:
    with htp.Backend() as backend:
        total = queue(build(backend.create_device(transport="rpc")))
        assert total == 8.0
    model: bytes = htp.zoo.tiny_mlp()
    results = asyncio.run(infer(model, htp.zoo.random_feeds(model)[0]))
    assert results[0].shape == (1, 10)


if __name__ == "__main__":
    main()
