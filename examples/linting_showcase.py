"""The document's linting showcases, profiled: their listings, and the figures that the page reads off them.

python examples/linting_showcase.py [SM8550] [2560x1440x3] [--figures]

The page names neither chip nor sizes. These are those, of several, that come nearest to its figures. With others
some figures differ, up to their signs: try them. All cycles are modelled.
"""

from __future__ import annotations

import sys

import numpy as np

import openhtp as htp

QUANT = htp.ScaleOffset(0.02, -128)
EDGE = 4
CRITICAL_PATH, RESOURCES = 6001, 5004  # numbers of events


class Showcase:
    """A network in the making; each method adds nodes and gives their result."""

    def __init__(self, context: htp.Context, name: str, shape: tuple[int, ...]) -> None:
        self.graph = context.create_graph(name)
        self.shape = (1, shape[1] + 2 * EDGE, shape[0] + 2 * EDGE, shape[2])
        self.channels = shape[2]
        self.source = self.tensor("x", self.shape, kind="app_write")

    def tensor(self, name: str, shape: tuple[int, ...], kind: str = "native") -> htp.Tensor:
        return self.graph.add_tensor(name, shape, "ufixed8", quant=QUANT, kind=kind)

    def node(
        self, op: str, name: str, inputs: list[htp.Tensor], result: htp.Tensor, **params: object
    ) -> htp.Tensor:
        self.graph.add_node(op, name=name, inputs=inputs, outputs=[result], params=params)
        return result

    def conv(self, name: str, x: htp.Tensor, channels: int, activation: str, kernel: int = 3) -> htp.Tensor:
        """A convolution, and an activation behind it unless that is empty."""
        shape = (kernel, kernel, x.shape[3], channels)
        weights = self.graph.add_tensor(
            f"{name}_w", shape, "sfixed8", quant=htp.ScaleOffset(0.01), data=np.ones(shape, np.int8)
        )
        pad = [[kernel // 2] * 2] * 2
        result = self.tensor(f"{name}_out", (*x.shape[:3], channels))
        self.node("Conv2d", f"{name}_Conv2D", [x, weights], result, stride=[1, 1], pad_amount=pad)
        if not activation:
            return result
        inputs = [result]
        if activation == "Prelu":
            slopes = np.ones((channels,), np.uint8)
            inputs.append(self.graph.add_tensor(f"{name}_s", (channels,), "ufixed8", quant=QUANT, data=slopes))
        return self.node(activation, f"{name}_{activation}", inputs, self.tensor(f"{name}_act", result.shape))

    def begin(self, activation: str) -> htp.Tensor:
        start = self.conv("convStart", self.source, self.channels, activation)
        _, height, width, depth = start.shape
        ranges = [[0, 1, 1], [EDGE, height - EDGE, 1], [EDGE, width - EDGE, 1], [0, depth, 1]]
        result = self.tensor("stride_out", (1, height - 2 * EDGE, width - 2 * EDGE, depth))
        return self.node("StridedSlice", "stride", [start], result, ranges=np.array(ranges, np.int32))

    def end(self, x: htp.Tensor, also: htp.Tensor) -> htp.Graph:
        self.node("ElementWiseAdd", "add", [x, also], self.tensor("y", x.shape, kind="app_read"))
        self.graph.finalize()
        return self.graph


def branches(context: htp.Context, shape: tuple[int, ...], op: str) -> htp.Graph:
    """Models 1 and 2: two branches of two convolutions, which meet in one op."""
    net = Showcase(context, f"two_branches_{op}", shape)
    begin = net.begin("Relu")
    sides = [net.conv(f"conv{side}1", begin, net.channels, "Relu") for side in ("Left", "Right")]
    left, right = (
        net.conv(f"conv{s}2", x, net.channels, "Relu") for s, x in zip(("Left", "Right"), sides, strict=True)
    )
    return net.end(net.node(f"ElementWise{op}", op, [left, right], net.tensor("met", left.shape)), begin)


def merged(context: htp.Context, shape: tuple[int, ...], activation: str) -> htp.Graph:
    """Model 1 optimized, or model 3 with PReLU: both branches in one, and a convolution that subtracts."""
    net = Showcase(context, f"merged_{activation}", shape)
    begin = net.begin(activation)
    first = net.conv("convCombined1", begin, 2 * net.channels, activation)
    second = net.conv("convCombined2", first, 2 * net.channels, activation)
    return net.end(net.conv("subConv", second, net.channels, "", kernel=1), begin)


def linted(graph: htp.Graph, profile: htp.Profile) -> htp.ProfileEvent:
    """Cycles of the critical path, with the ops of the main thread below."""
    graph.execute({"x": np.zeros(graph.tensors["x"].shape, np.uint8)}, profile=profile)
    critical = profile.event(CRITICAL_PATH)
    assert critical is not None
    return critical


def listing(critical: htp.ProfileEvent) -> str:
    """The event in the layout of the page."""
    lines = [f"   Backend ({critical.name}): {critical.value}  {critical.unit}"]
    for op in critical.events:
        lines.append(f"      {op.name}: {op.value}  {op.unit}")
        for part in op.events:
            value = part.text if part.type == RESOURCES else f"{part.value}  {part.unit}"
            lines.append(f"            {part.name}: {value}")
            lines += [f"               {beside.name}" for beside in part.events]
    return "\n".join(lines)


def overlap(*ops: htp.ProfileEvent) -> float:
    """In percent of their cycles."""
    return 100 * sum(op.events[1].value for op in ops) / max(1, sum(op.value for op in ops))


def figures(models: dict[str, htp.ProfileEvent]) -> str:
    """What the page says of its models, and what these have."""
    ops = {name: {op.name.split(":")[0]: op for op in each.events} for name, each in models.items()}
    met = {name: ops[name][name] for name in ("Subtract", "Divide", "Multiply")}
    share = {name: 100 * op.value / sum(each.value for each in models[name].events) for name, op in met.items()}
    whole = {name: overlap(*each.events) for name, each in models.items()}
    cycles = {name: each.value for name, each in models.items()}
    rows = [
        ("sub: part of the main thread's cycles", 50.1, share["Subtract"]),
        ("sub: overlap", 21.5, overlap(met["Subtract"])),
        ("div: part of the main thread's cycles", 68.0, share["Divide"]),
        ("div: overlap", 9.9, overlap(met["Divide"])),
        ("mul: overlap", 59.3, overlap(met["Multiply"])),
        ("mul: cycles, of the div's", 13.8, 100 * met["Multiply"].value / met["Divide"].value),
        ("sub as a convolution: cycles, of those with the sub", 31.8, 100 * cycles["Relu"] / cycles["Subtract"]),
        ("overlap of all ops with ReLU", 95.8, whole["Relu"]),
        ("overlap of all ops with PReLU", 40.5, whole["Prelu"]),
        ("cycles with PReLU, of those with ReLU", 203.0, 100 * cycles["Prelu"] / cycles["Relu"]),
    ]
    lines = [f"{'in percent':54}{'page':>8}{'here, modelled':>16}"]
    return "\n".join(lines + [f"{what:54}{page:8.1f}{here:16.1f}" for what, page, here in rows])


def main(soc: str, size: str, *, only_figures: bool) -> None:
    shape = tuple(map(int, size.split("x")))
    found = {}
    with htp.Backend() as backend:
        device = backend.create_device(soc=soc)
        device.set_perf_profile("burst")
        for name in ("Subtract", "Divide", "Multiply", "Relu", "Prelu"):
            with device.create_context() as context:
                graph = (merged if name.endswith("elu") else branches)(context, shape, name)
                found[name] = linted(graph, backend.create_profile("linting"))
                if not only_figures:
                    print(f"{graph.name}, picture of {size} on an {soc}\n{listing(found[name])}\n")
    print(f"Showcase of the document, picture of {size} on an {soc}")
    print(figures(found))


if __name__ == "__main__":
    words = [word for word in sys.argv[1:] if word != "--figures"]
    main(*words, *("SM8550", "2560x1440x3")[len(words) :], only_figures="--figures" in sys.argv)
