"""Clients that are no graphs: they give up waiting for their resources, and have thread priorities."""

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


def test_a10_on_later_chips_an_app_cannot_set_its_threads_priority(
    backend: htp.Backend, caplog: pytest.LogCaptureFixture
) -> None:
    for soc, said in (("SM8650", False), ("SM8850", True)):
        with backend.create_device(soc=soc, host="thread").create_context() as context:
            context.create_app("camera", priority="high")
        assert ("cannot set that of its threads (0xbb) itself" in caplog.text) is said


def test_a10_what_is_no_signal_is_refused(app: htp.App) -> None:
    with pytest.raises(htp.InvalidArgument, match="signal"):
        app.run_async(1000, signal="now")  # type: ignore[arg-type]
