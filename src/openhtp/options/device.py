"""Options of a device."""

from openhtp.core import status as st
from openhtp.hw.platforms import PLATFORMS
from openhtp.options._kinds import Choice, Flag, Text, Whole
from openhtp.options._table import Number, Option, Table

TRANSPORTS = ("rpc", "inprocess")
POLICIES = ("strict", "edf", "fair")

DEVICE = Table(
    owner="device",
    about="Given to `Backend.create_device`. A named device that already runs keeps its own.",
    status=st.QNN_DEVICE_ERROR_INVALID_CONFIG,
    rows=(
        Option(
            name="soc",
            kind=Text("a SoC by name, marketing name or model number"),
            default="SM8650",
            about="Which chip.",
            number=Number(name="QNN_HTP_DEVICE_CONFIG_OPTION_SOC", value=0, htp=True),
            config_key="soc_model",
        ),
        Option(
            name="name",
            kind=Text("a name"),
            about="Share the device with other processes under this name; a device of one's own unless given.",
        ),
        Option(
            name="platform",
            kind=Choice(PLATFORMS),
            default="linux",
            about="`windows` gives all priorities equal standing, as there the operating system decides.",
        ),
        Option(
            name="policy",
            kind=Choice(POLICIES),
            default="strict",
            about="Who runs first: `strict` is the chip's way.",
        ),
        Option(
            name="threads",
            kind=Whole(1, 64),
            default=1,
            about="CPU threads that compute one step.",
        ),
        Option(
            name="parallel_graphs",
            kind=Flag(),
            default=False,
            about="Let two graphs of equal priority run side by side.",
            number=Number(name="QNN_HTP_GRAPH_CONFIG_OPTION_PARALLEL_GRAPH_EXECUTION_CONFIG", value=9, htp=True),
        ),
        Option(
            name="vtcm_windowing",
            kind=Flag(),
            default=False,
            about="Let clients of different sessions share VTCM, as some chips from v79 on can.",
        ),
        Option(
            name="transport",
            kind=Choice(TRANSPORTS),
            default="rpc",
            about="`inprocess` keeps the device in this process: for debugging, without `execute_async`.",
        ),
    ),
)
