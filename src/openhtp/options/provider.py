"""Options of a session: those of ONNX Runtime's QNN execution provider, by its names and with its defaults.

Values are strings, as that provider has them.
"""

from dataclasses import dataclass

from openhtp.core import status as st
from openhtp.core.value_kinds import RefusedValue, Text
from openhtp.hw.perf_profiles import PERF_PROFILES
from openhtp.options._table import EffectPlace, Option, Table

# The first four are those of the document; later providers have all eight of QNN's.
_PRIORITIES = ("low", "normal", "normal_high", "high", "normal_low", "high_plus", "critical", "critical_plus")


@dataclass(frozen=True, slots=True)
class Decimal:
    """A whole number from 0, written out."""

    words = "a whole number from 0"
    python_type = "str"

    def read(self, value: object) -> str:
        """Accept digits, and numbers that have nothing else."""
        text = str(value)
        if isinstance(value, bool) or not (text.isascii() and text.isdecimal()) or len(text) > 18:
            raise RefusedValue(self.words)
        return text


@dataclass(frozen=True, slots=True)
class Word:
    """One of a few words, or what is written as one of them (the number 1 for "1")."""

    choices: tuple[str, ...]
    why: str = ""

    python_type = "str"

    @property
    def words(self) -> str:
        """What is accepted."""
        return f"one of {', '.join(self.choices)}{self.why and f', as {self.why}'}"

    def read(self, value: object) -> str:
        """Accept what prints as one of the words."""
        if (text := str(value)) in self.choices:
            return text
        raise RefusedValue(self.words)


PERFORMANCE_MODES = ("default", *PERF_PROFILES)
_SWITCH = Word(("0", "1"))

PROVIDER = Table(
    owner="provider",
    about="Given to `InferenceSession` as options of `QNNExecutionProvider`, by ONNX Runtime's names.",
    status=st.QNN_COMMON_ERROR_INVALID_ARGUMENT,
    rows=(
        Option(
            name="backend_path",
            kind=Text("libQnnHtp.so or QnnHtp.dll (the HTP), libQnnCpu.so or QnnCpu.dll"),
            default="libQnnHtp.so",
            about="A bare name is the emulated HTP, a path the vendor's library; QnnCpu computes in this process.",
            sets="backend.library",
        ),
        Option(
            name="profiling_level",
            seen=(EffectPlace.PROFILE,),
            kind=Word(("off", "basic", "detailed", "linting", "optrace")),
            default="off",
            about="How much of each run is profiled; `run_async(...).profile` has the events.",
        ),
        Option(
            name="profiling_file_path",
            seen=(EffectPlace.FILES,),
            kind=Text("a path"),
            default="",
            about="Events are written there as CSV, in the provider's columns; a log for `openhtp profile-viewer`"
            " (`<name>_qnn.log`) stands beside it.",
        ),
        Option(
            name="rpc_control_latency",
            seen=(EffectPlace.STATE,),
            kind=Decimal(),
            default="0",
            about="Latency that is asked of the remote call: a vote, which the device keeps and shows."
            " The way to our device is as quick with it as without.",
        ),
        Option(
            name="vtcm_mb",
            kind=Decimal(),
            default="0",
            about="VTCM of the graph; 0 leaves it to the device.",
            sets="graph.vtcm_mb",
        ),
        Option(
            name="htp_performance_mode",
            seen=(EffectPlace.MODELLED_TIMES, EffectPlace.MEASURED_TIMES, EffectPlace.STATE),
            kind=Word(PERFORMANCE_MODES),
            default="default",
            about="The perf profile of the session: votes on clocks, which change modelled times and traces, and"
            " RPC polling, which is real. `default` asks for nothing.",
        ),
        Option(
            name="qnn_saver_path",
            seen=(EffectPlace.FILES,),
            kind=Text("a path"),
            default="",
            about="Where set, all calls of the API are recorded in `saver_output/`, for `openhtp replay`.",
        ),
        Option(
            name="qnn_context_priority",
            kind=Word(_PRIORITIES),
            default="normal",
            about="Priority of the session's executions.",
            sets="context.priority",
        ),
        Option(
            name="htp_graph_finalization_optimization_mode",
            kind=Word(("0", "1", "2", "3")),
            default="0",
            about="How hard preparation tries: modelled times of the graph follow. 0 is the HTP's own default, 2.",
            sets="graph.optimization_level",
        ),
        Option(
            name="soc_model",
            kind=Decimal(),
            default="0",
            about="The chip by its model number; 0 leaves it to `soc=` or the default.",
            sets="device.soc",
        ),
        Option(
            name="htp_arch",
            kind=Decimal(),
            default="0",
            about="The chip by its architecture; 0 leaves it open.",
            sets="device.soc",
        ),
        Option(
            name="device_id",
            seen=(EffectPlace.REFUSALS,),
            kind=Word(("0",), "there is one device"),
            default="0",
            about="Which device; there is one.",
        ),
        Option(
            name="enable_htp_fp16_precision",
            seen=(EffectPlace.WARNINGS,),
            kind=_SWITCH,
            default="0",
            about="'1' says that float nodes are meant; otherwise a warning names one. Half precision either way.",
        ),
    ),
)
