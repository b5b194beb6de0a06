"""The vendor's library in its child process: how it dies, and what is left."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator

import pytest
from vendor_cases import add_case, add_recipe

from openhtp.core.errors import (
    DeviceLost,
    InvalidArgument,
    TimedOut,
)
from openhtp.vendor import oracle, worker
from openhtp.vendor.worker import ContextRef, GraphRef, VendorProcess

pytestmark = pytest.mark.vendor


@pytest.fixture
def mortal() -> Iterator[VendorProcess]:
    """A process that a test may kill."""
    with VendorProcess(timeout_s=60) as started:
        yield started


class TestDeath:
    def test_killed_while_idle(self, mortal: VendorProcess) -> None:
        context = mortal.create_context()
        built = mortal.build(add_recipe(), context)
        mortal.finalize(built)
        assert mortal.pid is not None
        os.kill(mortal.pid, signal.SIGSEGV)
        with pytest.raises(DeviceLost, match="ended by SIGSEGV") as caught:
            mortal.execute(built, add_case().inputs)
        assert caught.value.code == 1007
        assert mortal.pid is None
        with pytest.raises(DeviceLost, match=r"restart\(\) starts a new one"):
            mortal.execute(built, add_case().inputs)
        mortal.free(context)
        mortal.restart()
        with pytest.raises(DeviceLost, match="earlier vendor process"):
            mortal.execute(built, add_case().inputs)
        fresh = mortal.build(add_recipe(), mortal.create_context())
        mortal.finalize(fresh)
        assert add_case().steps_from_exact(mortal.execute(fresh, add_case().inputs)) <= 0.51

    def test_hang_is_cut_short(self, mortal: VendorProcess) -> None:
        assert mortal.pid is not None
        os.kill(mortal.pid, signal.SIGSTOP)
        context = ContextRef(1, {}, 1)
        with pytest.raises(TimedOut, match=r"within 0\.1 s"):
            mortal.finalize(GraphRef(1, "g", (), (), 1), timeout_s=0.1)
        with pytest.raises(DeviceLost):
            mortal.get_binary(context)

    def test_close_cuts_a_call_short(self, mortal: VendorProcess, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(worker, "CLOSE_TIMEOUT_S", 0.1)
        built = mortal.build(add_recipe(), mortal.create_context())
        mortal.finalize(built)
        assert mortal.pid is not None
        os.kill(mortal.pid, signal.SIGSTOP)
        ended: list[BaseException] = []
        sending = threading.Event()

        def run() -> None:
            sending.set()
            try:
                mortal.execute(built, add_case().inputs)
            except DeviceLost as error:
                ended.append(error)

        thread = threading.Thread(target=run)
        thread.start()
        sending.wait()
        mortal.close()
        thread.join(10)
        assert len(ended) == 1

    def test_bad_timeout(self, mortal: VendorProcess) -> None:
        with pytest.raises(InvalidArgument, match="timeout"):
            mortal.finalize(GraphRef(1, "g", (), (), 1), timeout_s=0)
        assert mortal.pid is not None

    def test_closed(self, mortal: VendorProcess) -> None:
        pid = mortal.pid
        assert pid is not None
        mortal.close()
        mortal.close()
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)
        with pytest.raises(DeviceLost):
            mortal.create_context()

    def test_oracle_starts_again(self) -> None:
        case = add_case()
        process = oracle.process_for()
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(DeviceLost, match="SIGKILL"):
            oracle.run_op(case.call, {}, case.inputs)
        assert case.steps_from_exact(oracle.run_op(case.call, {}, case.inputs)) <= 0.51
        process = oracle.process_for()
        assert process.pid is not None
        os.kill(process.pid, signal.SIGKILL)
        with pytest.raises(DeviceLost, match="SIGKILL"):
            oracle.validate_op(case.call, {})
        oracle.validate_op(case.call, {})
        oracle.close()
