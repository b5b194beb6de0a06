"""Sweeps on a Ray cluster of two nodes on this machine: `make sweep-ray`."""

from __future__ import annotations

import pytest

import openhtp.sweep
from openhtp.sweep import WrongWorker, engine, load_results, on_ray
from tests.sweep.studies import plans

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]


@pytest.fixture
def cluster(monkeypatch):
    pytest.importorskip("ray", reason="`make sweep-ray` installs it")
    from ray.cluster_utils import Cluster

    cluster = Cluster(initialize_head=True, head_node_args={"num_cpus": 1, "ray_client_server_port": 20_001})
    cluster.add_node(num_cpus=1)
    monkeypatch.setenv("RAY_ADDRESS", cluster.address)
    yield cluster
    cluster.shutdown()


def study(folder, seeds):
    made = plans(folder)
    made["axes"]["seed"] = {"from": 0, "to": seeds - 1}
    return made


def test_a_cluster_says_what_one_machine_says(cluster, tmp_path):
    wanted = study(tmp_path, 50)
    assert openhtp.sweep(wanted, on="ray").to_json() == openhtp.sweep(wanted).to_json()


def test_a_cluster_elsewhere(cluster, tmp_path):
    wanted = study(tmp_path, 10)
    assert openhtp.sweep(wanted, on="ray://127.0.0.1:20001").to_json() == openhtp.sweep(wanted).to_json()


def test_a_node_killed_in_mid_run_costs_nothing_but_time(cluster, tmp_path):
    """Its points are given to the other node; every point is in the store once."""
    (node,) = cluster.worker_nodes
    told = []

    def kill(standing):
        told.append(standing)
        if standing.done >= 200 and cluster.worker_nodes:
            cluster.remove_node(node, allow_graceful=False)

    wanted = study(tmp_path, 4000)
    result = openhtp.sweep(wanted, on="ray", store=tmp_path / "store", progress=kill)
    assert not cluster.worker_nodes
    assert told[-1].done > 200
    assert [row.point.number for row in result.rows] == list(range(8000))
    assert not result.failed
    sample = openhtp.sweep(study(tmp_path, 20)).rows
    by_key = {row.point.key: row.measured for row in load_results(tmp_path / "store").rows}
    assert all(by_key[row.point.key] == row.measured for row in sample)


def test_a_node_with_another_openhtp_is_refused(cluster, tmp_path, monkeypatch):
    for module in (on_ray, engine):
        monkeypatch.setattr(module, "identity", lambda: "9.9.9+12345678")
    with pytest.raises(WrongWorker, match=r"this is 9\.9\.9\+12345678: install the same"):
        openhtp.sweep(study(tmp_path, 3), on="ray")


def test_a_cluster_that_is_not_there(tmp_path):
    pytest.importorskip("ray", reason="`make sweep-ray` installs it")
    with pytest.raises(openhtp.sweep.NoWorkers, match="cannot be reached"):
        openhtp.sweep(study(tmp_path, 3), on="ray://127.0.0.1:1")
