"""Sweeps on a Ray cluster of two nodes on this machine: `make sweep-ray`. Drivers are processes of their own."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

import pytest
import yaml

import openhtp
from openhtp.sweeping import WrongStore, load_results
from tests.sweeping.studies import plans

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]

CLIENT_PORT = 20_001
PATIENCE = 300
COMMAND = "from openhtp.cli.main import main; main()"
OTHER_VERSION = (
    "from openhtp.sweeping import engine, on_ray\non_ray.identity = engine.identity = lambda: '9.9.9+12345678'\n"
)


@pytest.fixture
def cluster():
    pytest.importorskip("ray", reason="`make sweep-ray` installs it")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "ray_client_server_port": CLIENT_PORT})
    cluster.add_node(num_cpus=1)
    yield cluster
    cluster.shutdown()


@pytest.fixture
def driver(tmp_path):
    """Starts ``openhtp sweep`` in a process of its own."""
    started = []

    def start(seeds, on, cluster=None, before=""):
        study = plans(tmp_path)
        study["axes"]["seed"] = {"from": 0, "to": seeds - 1}
        (tmp_path / "study.yaml").write_text(yaml.safe_dump(study))
        words = ["sweep", "study.yaml", "--store", "store", "--json", "points.json", "--on", on]
        environment = os.environ | ({"RAY_ADDRESS": cluster.address} if cluster else {})
        process = subprocess.Popen(
            [sys.executable, "-W", "ignore", "-c", before + COMMAND, *words],
            cwd=tmp_path,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        started.append(process)
        return process

    yield start
    for process in started:
        process.kill()
        process.communicate()


def finished(process):
    output, _ = process.communicate(timeout=PATIENCE)
    return process.returncode, output


def rows_in(folder):
    try:
        return load_results(folder).rows
    except WrongStore:
        return []


def same_as_here(tmp_path):
    return json.loads((tmp_path / "points.json").read_text()) == openhtp.sweep(tmp_path / "study.yaml").to_json()


def test_a_cluster_says_what_one_machine_says(cluster, driver, tmp_path):
    code, output = finished(driver(50, "ray", cluster))
    assert code == 0, output
    assert same_as_here(tmp_path)


def test_a_cluster_elsewhere(cluster, driver, tmp_path):
    code, output = finished(driver(50, f"ray://127.0.0.1:{CLIENT_PORT}"))
    assert code == 0, output
    assert same_as_here(tmp_path)


def test_a_node_killed_in_mid_run_costs_nothing_but_time(cluster, driver, tmp_path):
    """Its points are given to the other node; every point is in the store once."""
    (node,) = cluster.worker_nodes
    process = driver(6000, "ray", cluster)
    end = time.monotonic() + PATIENCE
    while len(rows_in(tmp_path / "store")) < 200 and time.monotonic() < end:
        assert process.poll() is None, process.communicate()
    cluster.remove_node(node, allow_graceful=False)
    before = len(rows_in(tmp_path / "store"))
    assert 200 <= before < 12_000
    code, output = finished(process)
    assert code == 0, output
    rows = rows_in(tmp_path / "store")
    assert [row.point.number for row in rows] == list(range(12_000))
    assert not any(row.error for row in rows)
    assert same_as_here(tmp_path)


def test_a_node_with_another_openhtp_is_refused(cluster, driver, tmp_path):
    code, output = finished(driver(3, "ray", cluster, before=OTHER_VERSION))
    assert code == 2
    assert "this is 9.9.9+12345678: install the same there" in output


def test_a_cluster_that_is_not_there(driver, tmp_path):
    pytest.importorskip("ray", reason="`make sweep-ray` installs it")
    code, output = finished(driver(3, "ray://127.0.0.1:1"))
    assert code == 2
    assert "cannot be reached" in output
