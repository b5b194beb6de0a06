"""Small studies that tests share."""

from __future__ import annotations

SOCS = ["SM8450", "SM8550", "SM8650"]

SCENARIO = """
unit: ms
duration: 300
device: {soc: SM8650}
clients:
  - {name: cam, priority: high, vtcm_mb: 8, deadline: 12, run: 5}
  - {name: llm, priority: low, vtcm_mb: 8, deadline: 100, run: 20}
events:
  - {client: cam, every: 33}
  - {client: llm, poisson: 40}
"""


def estimates(**changes):
    """27 points, each priced in no time."""
    study = {
        "measure": "estimate",
        "axes": {
            "model": "zoo:tiny_mlp",
            "soc": SOCS,
            "precision": ["float", "w8a8", "w8a16"],
            "vtcm_mb": [1, 2, 4],
        },
    }
    return study | changes


def plans(folder, **changes):
    """12 plans of a scenario in this folder."""
    path = folder / "scenario.yaml"
    path.write_text(SCENARIO)
    axes = {"scenario": str(path), "policy": ["strict", "fair"], "seed": {"from": 0, "to": 5}}
    return {"measure": "plan", "axes": axes} | changes
