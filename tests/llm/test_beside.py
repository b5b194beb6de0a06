"""Generation beside another model: whoever is urgent goes first, and neither disturbs the other's results."""

from __future__ import annotations

import asyncio

import numpy as np

import openhtp as htp
from openhtp import llm


def camera(device: htp.Device) -> htp.Graph:
    graph = device.create_context().create_graph("camera", priority="high")
    quant = htp.ScaleOffset(0.1, -128)
    graph.add_tensor("x", (1, 16, 16, 8), "ufixed8", quant=quant, kind="app_write")
    graph.add_tensor("y", (1, 16, 16, 8), "ufixed8", quant=quant, kind="app_read")
    graph.add_node("Relu", inputs=["x"], outputs=["y"])
    graph.finalize()
    return graph


def test_frames_go_first_while_text_is_written(device: htp.Device, tiny: llm.Llama) -> None:
    graph = camera(device)
    frames = np.random.default_rng(0).integers(0, 256, (12, 1, 16, 16, 8)).astype(np.uint8)
    with llm.Generator(llm.export(tiny, ar=(128, 1)), device, priority="low") as chat:
        prompt = [token % 96 for token in range(130)]
        alone = chat.complete(prompt, max_new=4)
        chat.reset()

        async def both() -> tuple[list[int], list[int]]:
            text = asyncio.create_task(collect())
            during = []
            for frame in frames:
                found = await graph.execute_async({"x": frame})
                assert np.array_equal(found["y"], np.maximum(frame, 128))
                during.append(chat.cache.valid)
            return await text, during

        async def collect() -> list[int]:
            return [token async for token in chat.generate(prompt, max_new=4)]

        text, during = asyncio.run(both())
    assert text == alone
    # Frames were done while the prompt was still being read.
    assert during[0] < len(prompt)
