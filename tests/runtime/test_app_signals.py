"""Runs of apps carry signals, too: they give up waiting for their resources."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

import openhtp as htp
from tests.waiting import PATIENCE_S


@pytest.fixture(params=["process", "thread"])
def app(request: pytest.FixtureRequest, backend: htp.Backend) -> Iterator[htp.App]:
    """One that holds its resources already: who comes next has to wait."""
    app = backend.create_device(host=request.param).create_context().create_app("camera")
    app.run_async(900_000_000)
    yield app
    app.context.free()


def test_a10_an_app_waits_for_its_resources_no_longer_than_it_says(app: htp.App, backend: htp.Backend) -> None:
    run = app.run_async(1_000_000, signal=backend.create_signal(timeout_us=1000))
    assert isinstance(run.exception(PATIENCE_S), htp.TimedOut)


def test_a10_an_app_is_aborted(app: htp.App, backend: htp.Backend) -> None:
    abort = backend.create_signal()
    second = app.run_async(1_000_000, signal=abort)
    with pytest.raises(htp.WrongState, match="in use"):
        app.run_async(1000, signal=abort)
    abort.trigger()
    assert isinstance(second.exception(PATIENCE_S), htp.Aborted)
    abort.free()


def test_a10_what_is_no_signal_is_refused(app: htp.App) -> None:
    with pytest.raises(htp.InvalidArgument, match="signal"):
        app.run_async(1000, signal="now")  # type: ignore[arg-type]
