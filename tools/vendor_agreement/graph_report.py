"""Many random graphs compared, and what it comes to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from openhtp.engine.ort import OrtEngine
from vendor_agreement.agreement import Agreement
from vendor_agreement.differential import NotOffered
from vendor_agreement.graph_agreement import judge, run_graph_ours, run_graph_vendor, same_inside, takes
from vendor_agreement.random_graphs import Dice, Offered, draw_graph


@dataclass(slots=True)
class GraphReport:
    """Outputs of all nodes of all graphs that both sides ran.

    ``misses`` are the outputs, with their graphs' seeds, that are not as near to exact arithmetic as promised.
    ``inside`` counts the elements of the graphs' own outputs that are the same when values between nodes are not
    outputs: ours, the vendor's, and all.
    """

    graphs: int = 0
    nodes: int = 0
    refused: int = 0
    found: list[Agreement] = field(default_factory=list)
    misses: list[tuple[int, Agreement]] = field(default_factory=list)
    inside: tuple[int, int, int] = (0, 0, 0)

    @property
    def operations(self) -> int:
        """How many different ones were in the graphs."""
        return len({item.row.op for item in self.found})

    @property
    def rows(self) -> int:
        """How many choices of types of them."""
        return len({item.row for item in self.found})


def compare_graphs(offered: Offered, seeds: Iterable[int], soc: str, engine: OrtEngine) -> Iterator[GraphReport]:
    """Draw, run and judge a graph per seed; the same report, further on, after each."""
    report = GraphReport()
    for seed in seeds:
        graph = draw_graph(offered, Dice(seed), lambda call, stored: takes(call, stored, soc))
        try:
            theirs = run_graph_vendor(graph, soc)
            their_inside = run_graph_vendor(graph, soc, inside=True)
        except NotOffered:
            report.refused += 1
            yield report
            continue
        ours = run_graph_ours(graph, engine)
        mine, count = same_inside(ours, run_graph_ours(graph, engine, inside=True))
        other, _ = same_inside(theirs, their_inside)
        report.graphs += 1
        report.nodes += len(graph.nodes)
        judged = judge(graph, ours, theirs)
        report.found += judged
        report.misses += [(seed, item) for item in judged if not item.is_exact]
        report.inside = (report.inside[0] + mine, report.inside[1] + other, report.inside[2] + count)
        yield report
