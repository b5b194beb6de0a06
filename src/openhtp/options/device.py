"""Options of a backend, and of its devices."""

from dataclasses import dataclass

from openhtp.core import status as st
from openhtp.core.limits import SESSION_LIMIT_BYTES
from openhtp.core.option_numbers import HtpDeviceOption, HtpGraphOption
from openhtp.core.units import MIB
from openhtp.core.value_kinds import Choice, Flag, Text, Whole
from openhtp.hw.catalog import find_soc
from openhtp.hw.soc import ANY_PLATFORM, PLATFORMS
from openhtp.options._table import EffectPlace, Number, Option, Table

HOSTS = ("process", "thread")
PD_SESSIONS = ("unsigned", "signed")
MAX_DEVICE_ID = 15
NPUS = ("private", "shared")
# What the documents call the two hosts, and older programs too.
TRANSPORTS = {"rpc": "process", "inprocess": "thread"}
POLICIES = ("strict", "edf", "fair")
DEFAULTS = ("openhtp", "document")


@dataclass(frozen=True, slots=True)
class SocName:
    """A SoC of the catalog."""

    words = "a SoC by name, marketing name or model number"
    python_type = "str | int"

    def read(self, value: object) -> str:
        """The name of a SoC; an unknown one is refused, with names that are spelled alike."""
        return find_soc(value).name  # type: ignore[arg-type]


BACKEND = Table(
    owner="backend",
    about="Given to `openhtp.Backend`.",
    status=st.QNN_BACKEND_ERROR_INVALID_ARGUMENT,
    rows=(
        Option(
            name="library",
            seen=(EffectPlace.RESULTS, EffectPlace.MEASURED_TIMES),
            kind=Text("the path of a libQnnHtp.so, or 'vendor' to find the installed one"),
            about="Make Qualcomm's own library the devices instead of the emulator.",
        ),
        Option(
            name="defaults",
            seen=(EffectPlace.RESULTS, EffectPlace.MODELLED_TIMES, EffectPlace.STATE),
            kind=Choice(DEFAULTS),
            default="openhtp",
            about="The `defaults` of its devices, unless they say otherwise.",
        ),
    ),
)

DEVICE = Table(
    owner="device",
    about="Given to `Backend.create_device`. A named device that already runs keeps its own.",
    status=st.QNN_DEVICE_ERROR_INVALID_CONFIG,
    rows=(
        Option(
            name="soc",
            seen=(EffectPlace.MODELLED_TIMES, EffectPlace.MEMORY, EffectPlace.REFUSALS, EffectPlace.BINARY),
            kind=SocName(),
            default="SM8650",
            about="Which chip.",
            number=Number(name="QNN_HTP_DEVICE_CONFIG_OPTION_SOC", value=HtpDeviceOption.SOC, htp=True),
            config_key="soc_model",
        ),
        Option(
            name="defaults",
            seen=(EffectPlace.RESULTS, EffectPlace.MODELLED_TIMES, EffectPlace.STATE),
            kind=Choice(DEFAULTS),
            about="What holds where neither a call nor a config says it. `openhtp`: an SM8650, all of its VTCM,"
            " floats in 16 bits. `document`, as the vendor's pages have it: an SM8350, 4 MB of VTCM, floats in 32"
            " bits; the backend's unless given.",
        ),
        Option(
            name="name",
            seen=(EffectPlace.ORDER, EffectPlace.STATE),
            kind=Text("a name"),
            about="Share the device with other processes under this name; a device of one's own unless given.",
        ),
        Option(
            name="platform",
            seen=(EffectPlace.ORDER, EffectPlace.REFUSALS),
            kind=Choice(PLATFORMS),
            default=ANY_PLATFORM,
            about="What the documents do not have on this platform is refused; `any` has it all, and tells once"
            " what the documents limit. `windows` gives all priorities equal standing, as there the operating"
            " system decides.",
        ),
        Option(
            name="driver_path",
            seen=(EffectPlace.REFUSALS, EffectPlace.WARNINGS),
            kind=Choice(("traditional", "hnrd")),
            about="`hnrd` is the Hexagon NPU runtime driver of a Windows system, `traditional` libraries that lie"
            " in the program's folder. Unless given: `hnrd` where the system has one (`driver_version`) and the"
            " program has no QnnHtpV*Stub.dll, otherwise `traditional`.",
        ),
        Option(
            name="driver_version",
            seen=(EffectPlace.REFUSALS, EffectPlace.BINARY),
            kind=Text("a version"),
            about="Version of the driver that a Windows system has; at least 2.22.2.",
        ),
        Option(
            name="policy",
            seen=(EffectPlace.ORDER,),
            kind=Choice(POLICIES),
            default="strict",
            about="Who runs first: `strict` is the chip's way.",
        ),
        Option(
            name="threads",
            seen=(EffectPlace.MEASURED_TIMES,),
            kind=Whole(1, 64),
            default=1,
            about="CPU threads that compute one step.",
        ),
        Option(
            name="parallel_graphs",
            seen=(EffectPlace.ORDER, EffectPlace.MEASURED_TIMES),
            kind=Flag(),
            default=False,
            about="Let two graphs of equal priority run side by side.",
            number=Number(
                name="QNN_HTP_GRAPH_CONFIG_OPTION_PARALLEL_GRAPH_EXECUTION_CONFIG",
                value=HtpGraphOption.PARALLEL_GRAPH_EXECUTION,
                htp=True,
            ),
        ),
        Option(
            name="vtcm_windowing",
            seen=(EffectPlace.ORDER,),
            kind=Flag(),
            default=False,
            about="Let clients of different sessions share VTCM, as some chips from v79 on can.",
        ),
        Option(
            name="process_domains",
            seen=(EffectPlace.MEMORY, EffectPlace.REFUSALS),
            kind=Whole(1, 64),
            about="Process domains (the documents' cDSP sessions) that a client may have; the SoC's unless given.",
        ),
        Option(
            name="pd_session",
            seen=(EffectPlace.MEMORY, EffectPlace.STATE),
            kind=Choice(PD_SESSIONS),
            default="unsigned",
            about="Kind of this client's process domains. `signed` ones are apart from the `unsigned` ones of the"
            " same process, with memory of their own.",
            number=Number(name="QNN_HTP_DEVICE_CONFIG_OPTION_SIGNEDPD", value=HtpDeviceOption.SIGNED_PD, htp=True),
            config_key="pd_session",
        ),
        Option(
            name="device_id",
            seen=(EffectPlace.ORDER, EffectPlace.MEMORY, EffectPlace.STATE),
            kind=Whole(0, MAX_DEVICE_ID),
            default=0,
            about="Which of several equal chips. With `npu` `shared`, devices of different numbers are different"
            " NPUs; a private or named one is an NPU of its own in any case.",
            config_key="device_id",
        ),
        Option(
            name="domain_mb",
            seen=(EffectPlace.MEMORY, EffectPlace.REFUSALS),
            kind=Whole(1, SESSION_LIMIT_BYTES // MIB, "MB"),
            about="What a process domain can address; 3840 MB unless given. Less is for trying what happens then:"
            " the largest VTCM backup buffer is then counted to the same scale.",
        ),
        Option(
            name="host",
            seen=(EffectPlace.MEASURED_TIMES, EffectPlace.STATE),
            kind=Choice(HOSTS),
            about="Where the emulated NPU lives: in a `process` of its own (the default), or on a `thread` of this"
            " one. Both do the same; a crash ends only its own process, and a thread is reached more quickly.",
        ),
        Option(
            name="npu",
            seen=(EffectPlace.ORDER, EffectPlace.STATE),
            kind=Choice(NPUS),
            default="private",
            about="`shared`: all devices of this process that say so and name the same chip are one NPU, with one"
            " queue of priorities and one memory budget. `private`: this device is an NPU of its own.",
        ),
        Option(
            name="transport",
            seen=(EffectPlace.MEASURED_TIMES, EffectPlace.STATE),
            kind=Choice(tuple(TRANSPORTS)),
            about="Other words for `host`: `rpc` is `process`, `inprocess` is `thread`.",
        ),
    ),
)
