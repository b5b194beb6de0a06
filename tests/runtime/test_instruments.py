"""An instrument is a set of optional hooks: resolved when installed, and nothing without it."""

from __future__ import annotations

import importlib
import logging
from typing import Any

import pytest

import openhtp as htp
from openhtp.core.errors import InternalError
from openhtp.runtime.instruments import instrument as it
from openhtp.runtime.instruments.instrument import HOOKS, Instrument, Watched, news, told
from openhtp.runtime.objects.backend import Backend


def _noting(notes: list[str], word: str) -> Any:
    def hook(proceed: Any, *arguments: Any, **options: Any) -> Any:
        notes.append(word)
        return proceed(*arguments, **options)

    return hook


def test_without_an_instrument_methods_are_those_of_their_classes() -> None:
    defined = Backend.create_signal
    with Instrument({"signal_create": _noting([], "")}):
        assert Backend.create_signal is not defined
    assert Backend.create_signal is defined


def test_the_last_one_installed_is_called_first_and_any_may_go_first() -> None:
    notes: list[str] = []
    first, second = (Instrument({"signal_create": _noting(notes, word)}) for word in ("first", "second"))
    backend = htp.Backend()
    try:
        first.install()
        second.install()
        backend.create_signal().free()
        first.remove()
        backend.create_signal().free()
        second.remove()
        backend.create_signal().free()
    finally:
        backend.free()
    assert notes == ["second", "first", "second"]


def test_a_hook_that_does_not_exist_is_refused() -> None:
    with pytest.raises(InternalError, match=r"no hook is called graph_eat; expected some of .*graph_create"):
        Instrument({"graph_eat": _noting([], ""), "graph_create": _noting([], "")})


def test_every_hook_belongs_to_a_method() -> None:
    importlib.import_module("openhtp.runtime.instruments.saving_calls")
    assert {name for name, points in it.hook_points.items() if points} == HOOKS


def test_only_hooks_of_executions_bar_their_shortcut() -> None:
    with Instrument({"graph_create": _noting([], "")}):
        assert not Watched.executions
        with Instrument({"execution_end": _noting([], "")}):
            assert Watched.executions
        assert not Watched.executions


def test_a_listener_that_raises_is_logged_and_the_others_are_told(caplog: pytest.LogCaptureFixture) -> None:
    heard: list[tuple[str, int]] = []

    def fail(name: str, status: int) -> None:
        raise RuntimeError(name)

    with (
        Instrument({"entry_answered": told(lambda *answer: heard.append(answer))}),
        Instrument({"entry_answered": told(fail)}),
        caplog.at_level(logging.ERROR),
    ):
        news.entry_answered("graphCreate", 0)
    assert heard == [("graphCreate", 0)]
    assert "telling" in caplog.text
