"""Runs frames through one graph from one thread: queued 25 deep, and one call after the other.

python examples/queue_frames.py [frames]
"""

from __future__ import annotations

import sys
import time

import numpy as np

import openhtp as htp


def build(context: htp.Context) -> htp.Graph:
    graph = context.create_graph("brighten")
    frame = graph.add_tensor(
        "frame", (1, 120, 160, 3), "ufixed8", quant=htp.ScaleOffset(1 / 255, 0), kind="app_write"
    )
    shown = graph.add_tensor(
        "shown", (1, 120, 160, 3), "ufixed8", quant=htp.ScaleOffset(2 / 255, 0), kind="app_read"
    )
    graph.add_node("ElementWiseAdd", inputs=[frame, frame], outputs=[shown])
    graph.finalize()
    return graph


def main(count: int) -> None:
    random = np.random.default_rng(0)
    frames = [random.integers(0, 256, (1, 120, 160, 3), np.uint8) for _ in range(count)]
    with htp.Backend() as backend:
        device = backend.create_device(soc="SM8650")
        graph = build(device.create_context(queue_depth=25))
        start = time.perf_counter()
        one_by_one = [graph.execute({"frame": frame})["shown"] for frame in frames]
        middle = time.perf_counter()
        pending = [graph.execute_async({"frame": frame}) for frame in frames]
        queued = [execution.result()["shown"] for execution in pending]
        end = time.perf_counter()
    same = all(np.array_equal(a, b) for a, b in zip(one_by_one, queued, strict=True))
    print(
        f"{count} frames: {middle - start:.3f} s one by one, {end - middle:.3f} s queued (this CPU); same: {same}"
    )


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
