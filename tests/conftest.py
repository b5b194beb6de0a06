"""Fixtures of all areas. Devices are real processes; one is kept for the whole run where that is safe."""

from __future__ import annotations

import gc
import signal
from collections.abc import Generator, Iterator

import numpy as np
import pytest
from hypothesis import HealthCheck, settings

import openhtp as htp
from openhtp.core import locks
from openhtp.runtime.calls import execution
from tests.browser import browser, open_page

__all__ = ["browser", "open_page"]

# Whoever takes the runtime's locks out of order is told so at once, instead of once in a while by a deadlock.
locks.check_order(True)
execution.renew_lock()

# A shell starts background jobs with Ctrl-C ignored, and every process that a test starts would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes says how busy the machine is, and nothing else.
settings.register_profile("openhtp", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("openhtp")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Keep the collected tests, a million objects, out of the garbage collector's sight: a look takes a second."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


@pytest.fixture(scope="session", autouse=True)
def own_places(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """The key of prepared forms, the folder where devices are met, the cache: not the user's nor other tests'."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENHTP_KEY_FILE", str(tmp_path_factory.mktemp("key") / "prepared.key"))
        patch.setenv("OPENHTP_RUNTIME_DIR", str(tmp_path_factory.mktemp("devices") / "run"))
        patch.setenv("OPENHTP_CACHE", str(tmp_path_factory.mktemp("cache") / "models"))
        yield


@pytest.fixture(scope="session")
def shared_backend() -> Iterator[htp.Backend]:
    with htp.Backend() as backend:
        yield backend


@pytest.fixture(scope="session")
def shared_device(shared_backend: htp.Backend) -> htp.Device:
    return shared_backend.create_device()


@pytest.fixture
def backend() -> Iterator[htp.Backend]:
    with htp.Backend() as backend:
        yield backend


@pytest.fixture
def context(shared_device: htp.Device) -> Iterator[htp.Context]:
    with shared_device.create_context(queue_depth=20) as context:
        yield context


@pytest.fixture
def graph(context: htp.Context) -> htp.Graph:
    return relu_graph(context)


def relu_graph(
    context: htp.Context, name: str = "g", shape: tuple[int, ...] = (1, 8), **options: object
) -> htp.Graph:
    """A finalized float graph ``y = relu(x)``."""
    graph = context.create_graph(name, **options)  # type: ignore[arg-type]
    x = graph.add_tensor("x", shape, "float32", kind="app_write")
    y = graph.add_tensor("y", shape, "float32", kind="app_read")
    graph.add_node("Relu", name="relu", inputs=[x], outputs=[y])
    graph.finalize()
    return graph


def dense_graph(context: htp.Context, name: str, weights: np.ndarray) -> htp.Graph:
    """A finalized float graph ``y = x @ weights.T``."""
    graph = context.create_graph(name)
    x = graph.add_tensor("x", (1, weights.shape[1]), "float32", kind="app_write")
    w = graph.add_tensor("w", weights.shape, "float32", data=weights)
    y = graph.add_tensor("y", (1, weights.shape[0]), "float32", kind="app_read")
    graph.add_node("FullyConnected", inputs=[x, w], outputs=[y])
    graph.finalize()
    return graph


def ramp(shape: tuple[int, ...] = (1, 8)) -> np.ndarray:
    """Values on both sides of zero that half precision holds exactly."""
    return (np.arange(np.prod(shape), dtype=np.float32) - 3).reshape(shape)
