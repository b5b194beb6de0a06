"""``openhtp throughput-net-run`` and ``platform-validator``."""

from __future__ import annotations

import copy
import csv
import json
from pathlib import Path
from typing import Any

import pytest

from tests.tools.conftest import read, run

CASE: dict[str, Any] = {
    "backends": [{"backendName": "htp", "backendPath": "libQnnHtp.so", "perfProfile": "burst"}],
    "models": [
        {
            "modelName": "listed",
            "modelPath": "double.onnx",
            "inputPath": "list.txt",
            "inputDataType": "FLOAT",
            "postProcessor": "MSE",
            "saveOutput": "NATIVE_LAST",
            "outputPath": "last",
        },
        {"modelName": "random", "modelPath": "double.onnx"},
    ],
    "contexts": [{"contextName": "c", "priority": "HIGH", "executeAsyncQueueDepth": 4}],
    "testCase": {
        "iteration": 2,
        "threads": [
            {"threadName": "a", "backend": "htp", "context": "c", "model": "listed", "loop": 3},
            {
                "threadName": "b",
                "backend": "htp",
                "context": "c",
                "model": "random",
                "loop": 2,
                "executeAsynchronous": True,
                "initModelInLoop": True,
                "interval": 1,
            },
        ],
    },
}


def test_threads_run_side_by_side(folder: Path) -> None:
    Path("case.json").write_text(json.dumps(CASE))
    done = run("throughput-net-run", "--config", "case.json", "--output", "out.json")
    assert done.exit_code == 0, done.output
    told = json.loads(Path("out.json").read_text())
    assert {row["name"]: row["repeat"] for row in told["results"]} == {
        "a:threadExecute": 2,
        "a:listed:graphExecute": 2 * 3 * 3,
        "b:threadExecute": 2,
        "b:random:graphExecute": 2 * 2,
    }
    assert all(0 < row["min"] <= row["average"] <= row["max"] for row in told["results"])
    assert told["mse"] == {"a:double:y": 0.0}
    assert read(Path("last/a/double/Result_0/y_native.raw")) == [2.0, 4.0, 6.0, 8.0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda case: case["testCase"]["threads"][1].update(context="d"), "/testCase/threads/1/context is 'd'"),
        (lambda case: case["models"][0].pop("modelPath"), "/models/0 has no modelPath"),
        (lambda case: case["models"][0].update(modlePath="x"), "/models/0/modlePath is not known; did you mean"),
        (lambda case: case["contexts"].append(case["contexts"][0]), "comes twice"),
        (lambda case: case["models"][1].update(loadFromCachedBinary=True), "initModelInLoop does not go"),
        (lambda case: case["testCase"].update(iteration="2"), "/testCase/iteration is '2'"),
        (lambda case: case["models"][0].update(postProcessor="MAE"), "'MAE'"),
    ],
)
def test_a_wrong_place_is_named(folder: Path, change: Any, said: str) -> None:
    case = copy.deepcopy(CASE)
    change(case)
    Path("case.json").write_text(json.dumps(case))
    done = run("throughput-net-run", "--config", "case.json")
    assert done.exit_code == 2, done.output
    assert said in done.output.replace("\n", "")


def test_the_platform(folder: Path) -> None:
    words = ("--backend", "all", "--testBackend", "--coreVersion", "--libVersion", "--dsp_type", "v79")
    done = run("platform-validator", *words)
    assert done.exit_code == 1, "there is no GPU"
    with Path("output/Result.csv").open() as file:
        dsp, gpu = csv.DictReader(file)
    assert (dsp["Backend"], dsp["Core Version"], dsp["Unit Test"]) == ("DSP", "Hexagon Architecture V79", "Passed")
    assert gpu["Backend Hardware"] == "Not Supported"
    assert run("platform-validator", "--dsp_type", "v1").exit_code == 2
    assert run("platform-validator", "--directory", "nowhere").exit_code == 2
