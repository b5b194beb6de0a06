"""A long network of low priority and a short one of high priority on one device: which overtakes which.

python examples/share_by_priority.py
"""

from __future__ import annotations

import openhtp as htp
import openhtp.onnx
from openhtp import zoo


def load(context: htp.Context, model: bytes, name: str) -> htp.Graph:
    graph = context.compose_graph(openhtp.onnx.load(model), name)
    graph.finalize()
    return graph


def main() -> None:
    long, short = zoo.small_cnn(), zoo.tiny_mlp()
    with htp.Backend() as backend:
        device = backend.create_device(soc="SM8650")
        background = load(device.create_context(priority="low"), long, "background")
        camera = load(device.create_context(priority="high"), short, "camera")
        profile = backend.create_profile("basic")
        pending = [background.execute_async(zoo.random_feeds(long)[0]) for _ in range(8)]
        camera.execute(zoo.random_feeds(short)[0], profile=profile)
        behind = sum(not execution.done() for execution in pending)
        for execution in pending:
            execution.result()
    print(f"the camera overtook {behind} of {len(pending)} runs in the background")
    for event in profile.events():
        print(f"  {event.name}: {event.value} {event.unit}")


if __name__ == "__main__":
    main()
