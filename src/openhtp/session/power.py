"""Power votes of one session: by provider options, by a backend config, and run by run."""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

from openhtp.config import CoreConfig
from openhtp.core.checks import shown
from openhtp.core.errors import InvalidArgument
from openhtp.options import PROVIDER
from openhtp.runtime.objects.power import PowerConfig
from openhtp.session.hosts import Stay, host_kind
from openhtp.session.options import SessionRequest, run_entry

# Requests of a run, by ONNX Runtime's names; the second name of each is that of later providers.
_BEFORE = ("qnn.htp_perf_mode", "qnn.perf_mode")
_AFTER = ("qnn.htp_perf_mode_post_run",)
_LATENCY = ("qnn.rpc_control_latency",)

_NO_VOTE = "default"
_NOTHING: contextlib.nullcontext[None] = contextlib.nullcontext()


class SessionPower:
    """Votes beside those of the other sessions on the device; the highest wins.

    A mode of ``default`` asks for nothing. A session without votes starts no device for them.
    """

    def __init__(self, request: SessionRequest, *, wanted: bool) -> None:
        self._stay = Stay(host_kind(request))
        core = CoreConfig(perf_profile=_NO_VOTE)
        if request.config is not None and request.config.cores:
            core = request.config.cores[0]
        mode = request.options["htp_performance_mode"]
        self._mode = core.perf_profile if mode == _NO_VOTE else mode
        latency = int(request.options["rpc_control_latency"])
        self._times: dict[str, int | None] = {
            "rpc_polling_us": core.rpc_polling_us,
            "rpc_control_latency_us": latency or core.rpc_control_latency_us,
            "adaptive_polling_us": core.adaptive_polling_us,
            "hmx_timeout_us": core.hmx_timeout_us,
        }
        if wanted and request.options.backend == "htp":
            self._vote(self._mode, latency)

    @contextlib.contextmanager
    def kept(self, owner: object) -> Iterator[SessionPower]:
        """Withdraw the votes if the body fails, otherwise when their owner has gone."""
        try:
            yield self
        except BaseException:
            self.close()
            raise
        weakref.finalize(owner, self._stay.leave)

    def during(self, run_options: Any) -> contextlib.AbstractContextManager[None]:
        """The votes that a run asks for, and afterwards those that it leaves."""
        return _NOTHING if run_options is None else self._around(run_options)

    @contextlib.contextmanager
    def _around(self, run_options: Any) -> Iterator[None]:
        after = self.before(run_options)
        try:
            yield
        finally:
            if after is not None:
                after()

    def before(self, run_options: Any) -> Callable[[], None] | None:
        """Vote as a run's options say; returns a function to call when the run is over."""
        if run_options is None:
            return None
        mode, after = _word(run_options, _BEFORE), _word(run_options, _AFTER)
        latency = run_entry(run_options, _LATENCY)
        if latency is not None and not (latency.isascii() and latency.isdecimal() and int(latency) < 1 << 32):
            raise InvalidArgument(f"run option {_LATENCY[0]} is {shown(latency)}; expected a whole number from 0")
        if mode is not None or latency is not None:
            self._vote(self._mode if mode is None else mode, int(latency or 0))
        return None if after is None else functools.partial(self._vote, after, 0)

    def close(self) -> None:
        """Withdraw the votes, and leave the device."""
        self._stay.end()

    def _vote(self, mode: str, latency_us: int) -> None:
        if mode == _NO_VOTE and not latency_us and self._stay.claim.power is None:
            return
        times = {**self._times, **({"rpc_control_latency_us": latency_us} if latency_us else {})}
        self._config().set_perf_profile("system_settings" if mode == _NO_VOTE else mode, **times)

    def _config(self) -> PowerConfig:
        """The config, made when the first vote comes, and again if the device's process went away."""
        claim = self._stay.claim
        config = claim.power
        if config is None or not config.alive:
            try:
                config = claim.power = self._stay.begin().create_power_config()
            except BaseException:
                self._stay.end()
                raise
        return config


def _word(run_options: Any, names: tuple[str, ...]) -> str | None:
    """A mode that a run names, checked as the session's own is."""
    mode = run_entry(run_options, names)
    if mode is not None:
        PROVIDER.read({"htp_performance_mode": mode})
    return mode
