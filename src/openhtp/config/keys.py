"""Every key of the config files: where it stands, what it may be, and which option it leads to."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import PurePath
from typing import Any

from openhtp.core.units import KIB
from openhtp.core.value_kinds import (
    Choice,
    Fixed,
    Flag,
    JsonObject,
    ListOf,
    Numeral,
    OffOnly,
    RefusedValue,
    Text,
    ValueKind,
    Whole,
)
from openhtp.hw.catalog import catalog, find_soc
from openhtp.hw.perf_profiles import DEFAULT_PERF_PROFILE, PERF_PROFILES, PROFILE_RPC_POLLING_US
from openhtp.hw.power import DEFAULT_HMX_TIMEOUT_US, MAX_HMX_TIMEOUT_US, MAX_LATENCY_US
from openhtp.options import CONTEXT, DEVICE, GRAPH, Option, Table
from openhtp.options.device import MAX_DEVICE_ID, PD_SESSIONS

_MOST = (1 << 63) - 1
_TABLES = {table.owner: table for table in (CONTEXT, DEVICE, GRAPH)}


@dataclass(frozen=True, slots=True)
class ExtensionLibrary:
    """The path of the library that reads a backend's options. Its name says which backend's."""

    words = "the path of libQnnHtpNetRunExtensions.so"
    python_type = "str"

    def read(self, value: object) -> str:
        """Any path, but none of the libraries of other backends: their options are not the HTP's."""
        if not isinstance(value, str) or not value:
            raise RefusedValue(self.words)
        backend = re.search(r"Qnn(\w+)NetRunExtensions", PurePath(value).name)
        if backend is not None and not backend[1].startswith("Htp"):
            raise RefusedValue(self.words)
        return value


@dataclass(frozen=True, slots=True)
class SocModel:
    """A SoC by its model number."""

    words = "the model number of a SoC, or 0 to leave it open"
    python_type = "int"

    def read(self, value: object) -> str | None:
        """The SoC's name."""
        if isinstance(value, bool) or not isinstance(value, int):
            raise RefusedValue(self.words)
        if value == 0:
            return None
        known = {soc.soc_model for soc in catalog().values()}
        if value not in known:
            raise RefusedValue(f"{self.words}: one of {', '.join(map(str, sorted(known)))}")
        return find_soc(value).name


@dataclass(frozen=True, slots=True)
class SocArchitecture:
    """A SoC by its architecture, as ``v73``; the first of the catalog that has it."""

    python_type = "str"

    @property
    def words(self) -> str:
        """What is accepted."""
        return f"one of {', '.join(f'v{arch}' for arch in sorted({soc.arch for soc in catalog().values()}))}"

    def read(self, value: object) -> str:
        """The SoC's name."""
        for soc in catalog().values():
            if isinstance(value, str) and value.lower() == soc.arch_name:
                return soc.name
        raise RefusedValue(self.words)


@dataclass(frozen=True, slots=True, kw_only=True)
class Key:
    """One key. ``option`` names the option it leads to, as ``graph.vtcm_mb``; ``used`` says by whom it is read.

    A key without an option, and one whose option has no effect, is checked and then left alone; ``instead`` says
    what it does, or why it does nothing.
    """

    name: str
    kind: ValueKind
    about: str
    option: str | None = None
    default: str = ""
    instead: str = ""
    # Given, it changes no modelled time, as nothing is published of what it brings.
    unmodelled: bool = False

    @property
    def row(self) -> Option | None:
        """The row of its option, where there is one."""
        if self.option is None:
            return None
        owner, _, name = self.option.partition(".")
        table = _TABLES[owner]
        return table.option(name) if name in table else None

    @property
    def is_idle(self) -> bool:
        """Whether it is checked and then left alone."""
        return self.row is None and not self.instead

    @property
    def effect(self) -> str:
        """The effect of the key, for the reference page."""
        row = self.row
        if row is not None:
            return f"`{self.option}`" + (f"; no effect: {row.no_effect}" if row.no_effect else "")
        return self.instead or "checked, no effect"


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """An object of the file, or a list of such objects."""

    name: str
    about: str
    keys: tuple[Key, ...]
    is_list: bool = False
    sections: tuple[Section, ...] = ()


def _option_of_key(table: Table, config_key: str) -> str | None:
    """The option that a config key names in a table, if it has one yet."""
    for row in table.rows:
        if row.config_key == config_key:
            return f"{table.owner}.{row.name}"
    return f"{table.owner}.{config_key}" if config_key in table else None


def _key_of(table: Table, name: str, kind: ValueKind, about: str, **rest: Any) -> Key:
    return Key(name=name, kind=kind, about=about, option=_option_of_key(table, name), **rest)


_SWITCH = Numeral(0, 1)

_GRAPH_KEYS = (
    Key(
        name="graph_names",
        kind=ListOf(Text("a graph's name")),
        about="The graphs that the other keys are for. Without it they are for none.",
        instead="chooses the graphs",
    ),
    Key(
        name="vtcm_mb", kind=Whole(0, 1024, "MB"), about="VTCM; 0 is all that the SoC has.", option="graph.vtcm_mb"
    ),
    Key(
        name="vtcm_size",
        kind=Numeral(0, 1 << 30, 64 * KIB),
        about="VTCM in bytes, in steps of 64 KiB; 0 is all that the SoC has.",
        option="graph.vtcm_bytes",
    ),
    _key_of(GRAPH, "hvx_threads", Whole(1, 64), "HVX threads."),
    _key_of(GRAPH, "O", Numeral(1, 3), "How hard preparation tries.", default="2"),
    _key_of(GRAPH, "dlbc", Numeral(0, 1 << 31), "Compress activations: 0 is off, 1 and more on.", default="0"),
    _key_of(GRAPH, "dlbc_weights", Numeral(0, 1 << 31), "Compress weights: 0 is off, 1 and more on.", default="0"),
    _key_of(GRAPH, "weights_packing", Flag(), "Store 8-bit weights of 4-bit range in 4 bits.", default="false"),
    _key_of(GRAPH, "num_cores", Whole(1, 16), "Cores that one execution is spread over.", default="1"),
    _key_of(
        GRAPH,
        "short_depth_conv_on_hmx_off",
        Flag(),
        "Keep convolutions of few channels off the HMX.",
        default="false",
    ),
    _key_of(
        GRAPH,
        "fold_relu_activation_into_conv_off",
        Flag(),
        "Keep a Relu's own encoding: do not fold it into the convolution before it.",
        default="false",
    ),
    _key_of(GRAPH, "slc_alloc_enable", _SWITCH, "Use the system level cache.", default="0"),
    _key_of(GRAPH, "advanced_activation_fusion", Flag(), "Fuse more activations.", default="true"),
    Key(name="fp16_relaxed_precision", kind=Numeral(0, 1), about="Half precision; deprecated: the SoC decides."),
    Key(name="finalize_config", kind=JsonObject(), about="Settings of the preparation, undocumented."),
    Key(name="monolithic_lstm", kind=Flag(), about="Keep an LSTM in one piece."),
    Key(name="use_high_precision_fp16_sigmoid", kind=Flag(), about="A more exact Sigmoid in half precision."),
    Key(name="share_io_buffer", kind=Flag(), about="One buffer for inputs and outputs."),
)

_CORE_KEYS = (
    Key(name="core_id", kind=Whole(0, 15), about="Which core the votes are for.", default="0", instead="votes"),
    Key(
        name="perf_profile",
        kind=Choice(tuple(PERF_PROFILES)),
        about="Votes on clocks, sleep and polling. `--perf-profile` of a command comes first.",
        default=DEFAULT_PERF_PROFILE,
        instead="`Device.set_perf_profile`",
    ),
    Key(
        name="rpc_control_latency",
        kind=Whole(0, MAX_LATENCY_US, "microseconds"),
        about="Latency that is asked of the way to the device.",
        default="100",
        instead="`Device.set_perf_profile`; changes no modelled time",
        unmodelled=True,
    ),
    Key(
        name="rpc_polling_time",
        kind=Whole(0, PROFILE_RPC_POLLING_US, "microseconds"),
        about="How long to poll before sleeping.",
        default=f"{PROFILE_RPC_POLLING_US} for the three fastest profiles, otherwise 0",
        instead="`Device.set_perf_profile`",
    ),
    Key(
        name="hmx_timeout_us",
        kind=Whole(0, MAX_HMX_TIMEOUT_US, "microseconds"),
        about="How long an idle HMX stays powered.",
        default=str(DEFAULT_HMX_TIMEOUT_US),
        instead="`Device.set_perf_profile`",
    ),
    Key(
        name="adaptive_polling_time",
        kind=Whole(0, MAX_LATENCY_US, "microseconds"),
        about="From which length on executions are slept for first; 0 is off.",
        default="0",
        instead="`Device.set_perf_profile`",
    ),
    Key(name="ddr_perf_mode", kind=Flag(), about="Highest DDR clocks.", default="false", unmodelled=True),
)

_DEVICE_KEYS = (
    _key_of(DEVICE, "device_id", Whole(0, MAX_DEVICE_ID), "Which of several equal chips.", default="0"),
    Key(
        name="core_id",
        kind=ListOf(Whole(0, 15)),
        about="Cores to choose from; graphs run on the first.",
        default="[0]",
        option="graph.core",
    ),
    Key(
        name="core_type", kind=Fixed(0, "0 is the NSP, and there is no other"), about="Type of core.", default="0"
    ),
    Key(name="soc_id", kind=SocModel(), about="The older name of soc_model.", option="device.soc"),
    Key(name="soc_model", kind=SocModel(), about="The chip by its number; 0 leaves it open.", option="device.soc"),
    Key(
        name="dsp_arch",
        kind=SocArchitecture(),
        about="The chip by its architecture; soc_model comes first.",
        option="device.soc",
    ),
    _key_of(DEVICE, "pd_session", Choice(PD_SESSIONS), "Kind of process domain.", default="unsigned"),
    Key(
        name="profiling_level",
        kind=Choice(("off", "basic", "detailed", "linting", "optrace")),
        about="What `--profiling_level=backend` stands for.",
        instead="`BackendConfig.profiling_level`",
    ),
    Key(
        name="use_client_context",
        kind=OffOnly("chips from v68 on, which are all there are here, have no power contexts of clients"),
        about="A power context of its own; not from v68 on.",
        default="false",
    ),
)

_CONTEXT_KEYS = (
    _key_of(CONTEXT, "weight_sharing_enabled", Flag(), "Graphs share weights.", default="false"),
    Key(
        name="max_spill_fill_buffer_for_group",
        kind=Whole(0, _MOST, "bytes"),
        about="One spill-fill buffer for all contexts of a group; needs group_id.",
        instead="`BackendConfig.spill_fill_group_bytes`",
    ),
    Key(
        name="group_id",
        kind=Fixed(0, "there is one group"),
        about="The group of the buffer.",
        instead="`BackendConfig.spill_fill_group_bytes`",
    ),
    _key_of(
        CONTEXT, "file_read_memory_budget_in_mb", Whole(0, _MOST, "MB"), "Read binaries in pieces.", default="0"
    ),
    _key_of(CONTEXT, "io_memory_estimation", Flag(), "Leave room for inputs and outputs.", default="false"),
    _key_of(CONTEXT, "init_acceleration", Flag(), "Make graphs ready on all threads.", default="false"),
    _key_of(CONTEXT, "lora_weight_sharing", Flag(), "One buffer for updatable weights.", default="false"),
    _key_of(CONTEXT, "skip_validation_on_binary_section", Flag(), "Do not check sections.", default="false"),
    Key(name="lora_weight_sharing_ram_preload", kind=Flag(), about="Load updatable weights beforehand."),
    _key_of(CONTEXT, "extended_udma", Flag(), "DMA with 64-bit addresses, from v81 on.", default="false"),
    Key(name="detachable_buffers_enabled", kind=Flag(), about="Buffers that can be taken away."),
)

HTP = Section(
    name="",
    about="The HTP's own file: `config_file_path`, or given as it is.",
    keys=(),
    sections=(
        Section(name="graphs", about="By name, when graphs are prepared.", keys=_GRAPH_KEYS, is_list=True),
        Section(
            name="devices",
            about="The chip and its votes.",
            keys=_DEVICE_KEYS,
            is_list=True,
            sections=(Section(name="cores", about="Votes for a core.", keys=_CORE_KEYS, is_list=True),),
        ),
        Section(name="context", about="An object, or a list of one.", keys=_CONTEXT_KEYS),
        Section(
            name="groupContext",
            about="Several contexts from a list of binaries.",
            keys=(
                _key_of(CONTEXT, "share_resources", Flag(), "Contexts of a list share buffers.", default="false"),
            ),
        ),
        Section(
            name="memory",
            about="Of inputs and outputs.",
            keys=(
                Key(
                    name="mem_type",
                    kind=Choice(("shared_buffer",)),
                    about="Inputs and outputs lie in shared memory.",
                    instead="`BackendConfig.mem_type`",
                ),
            ),
        ),
    ),
)
"""The backend extensions config."""

_LEVELS = Choice(("low", "normal", "normal_high", "high"))

GENERAL = Section(
    name="",
    about="The file that `--config_file` names.",
    keys=(),
    sections=(
        Section(
            name="backend_extensions",
            about="Leads to the HTP's own file.",
            keys=(
                Key(
                    name="shared_library_path",
                    kind=ExtensionLibrary(),
                    about="The HTP's extension library. It is not loaded, as its options are read here; that of"
                    " another backend is refused.",
                ),
                Key(
                    name="config_file_path",
                    kind=Text("a path"),
                    about="The HTP's own file, from here or from the folder of this one.",
                    instead="is read",
                ),
            ),
        ),
        Section(
            name="context_configs",
            about="Of contexts.",
            keys=(
                Key(name="context_priority", kind=_LEVELS, about="Priority.", option="context.priority"),
                Key(
                    name="async_execute_queue_depth",
                    kind=Whole(1, 300),
                    about="Depth of the queue.",
                    option="context.queue_depth",
                ),
                _key_of(
                    CONTEXT, "enable_graphs", ListOf(Text("a graph's name")), "Graphs of a binary to make ready."
                ),
                _key_of(
                    CONTEXT, "memory_limit_hint", Whole(0, _MOST, "MB"), "Memory for graphs that are switched."
                ),
                _key_of(CONTEXT, "is_persistent_binary", Flag(), "The binary stays where it is."),
                _key_of(
                    CONTEXT, "cache_compatibility_mode", Choice(("permissive", "strict")), "Which binaries do."
                ),
                _key_of(CONTEXT, "spill_fill_buffer", Whole(-1, _MOST, "bytes"), "A buffer for spill-fill."),
                _key_of(CONTEXT, "weights_buffer", Whole(-1, _MOST, "bytes"), "A buffer for weights."),
                _key_of(CONTEXT, "graph_retention_order", ListOf(Text("a graph's name")), "Which graphs to keep."),
            ),
        ),
        Section(
            name="graph_configs",
            about="Of graphs.",
            is_list=True,
            keys=(
                Key(
                    name="graph_name", kind=Text("a graph's name"), about="Required.", instead="chooses the graph"
                ),
                Key(name="graph_priority", kind=_LEVELS, about="Priority.", option="graph.priority"),
                Key(name="graph_profiling_start_delay", kind=Numeral(0, 1 << 31, 0), about="Seconds."),
                Key(name="graph_profiling_num_executions", kind=Whole(0, _MOST), about="Executions profiled."),
            ),
        ),
        Section(
            name="profile_configs",
            about="Of profiles.",
            keys=(
                Key(
                    name="num_max_events",
                    kind=Whole(0, 1 << 32),
                    about="Most events of a profile; 0 is all.",
                    instead="`profile.max_events`",
                ),
            ),
        ),
        Section(
            name="async_graph_execution_config",
            about="Of a tool that queues.",
            keys=(
                Key(name="input_tensors_creation_tasks_limit", kind=Whole(1, 1 << 31), about="Inputs made ahead."),
                Key(name="execute_enqueue_tasks_limit", kind=Whole(1, 1 << 31), about="Executions queued."),
            ),
        ),
    ),
)
"""The config of the tools."""
