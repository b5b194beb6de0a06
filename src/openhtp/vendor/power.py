"""Power votes: which clocks and wake-up habits the HTP should have while a vote stands."""

from __future__ import annotations

import ctypes
from typing import Any

from openhtp.abi.power import fill_dcvs
from openhtp.abi.structs import pointer_list, struct
from openhtp.abi.tables import POWER, prototype
from openhtp.core import status as st
from openhtp.core.errors import InvalidArgument, UnsupportedFeature
from openhtp.core.option_numbers import PowerOption
from openhtp.hw.power import MAX_RPC_POLLING_US, DcvsVote
from openhtp.vendor.backend import LibraryBackend
from openhtp.vendor.handles import Owner
from openhtp.vendor.library import failure

_PERF = 0


class PowerVotes(Owner):
    """A client's standing votes for one core; freeing it withdraws them."""

    freed_status = st.QNN_HTP_PERF_INFRASTRUCTURE_ERROR_INVALID_INPUT

    def __init__(self, backend: LibraryBackend, *, device_id: int = 0, core_id: int = 0) -> None:
        self._library = backend.library
        self._functions = self._infrastructure()
        number = ctypes.c_uint32()
        self._call("create_id", device_id, core_id, ctypes.addressof(number))
        super().__init__(number.value, "power votes", backend)

    def vote(
        self,
        *,
        dcvs: DcvsVote | None = None,
        rpc_latency_us: int | None = None,
        rpc_polling_us: int | None = None,
    ) -> None:
        """Change votes: clocks, latency asked of the RPC channel, how long to poll before sleeping."""
        if rpc_polling_us is not None and not 0 <= rpc_polling_us <= MAX_RPC_POLLING_US:
            raise InvalidArgument(
                f"RPC polling time is {rpc_polling_us} us; expected 0 to {MAX_RPC_POLLING_US}",
                st.QNN_HTP_PERF_INFRASTRUCTURE_ERROR_INVALID_INPUT,
            )
        configs: list[ctypes.Structure] = []
        times = {PowerOption.RPC_POLLING_TIME: rpc_polling_us, PowerOption.RPC_CONTROL_LATENCY: rpc_latency_us}
        for option, number in times.items():
            if number is not None:
                config = struct("PowerConfig")(option=option)
                config.of.number = number
                configs.append(config)
        if dcvs is not None:
            config = struct("PowerConfig")(option=PowerOption.DCVS_V3)
            fill_dcvs(config.of.dcvs, dcvs, self.handle)
            configs.append(config)
        if not configs:
            raise InvalidArgument("no vote was given", st.QNN_HTP_PERF_INFRASTRUCTURE_ERROR_INVALID_INPUT)
        self._call("set_power", self.handle, pointer_list(configs))

    def _infrastructure(self) -> dict[str, Any]:
        address = ctypes.c_void_p()
        self._library.call("deviceGetInfrastructure", ctypes.addressof(address))
        infra = struct("Infrastructure").from_address(address.value) if address.value else None
        if infra is None or infra.kind != _PERF:
            raise UnsupportedFeature("the vendor library has no performance infrastructure here")
        return {name: prototype(entry)(getattr(infra, name)) for name, entry in POWER.items()}

    def _call(self, name: str, *arguments: Any) -> None:
        self._library.log.take_errors()
        code = self._functions[name](*arguments) & 0xFFFF
        if code:
            messages = self._library.log.take_errors()
            raise failure(name, code, area=POWER[name].area, where="power votes", said=messages)

    def _release(self, handle: int) -> None:
        self._call("destroy_id", handle)
