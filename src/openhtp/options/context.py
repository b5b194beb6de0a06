"""Options of a context."""

from openhtp.core import status as st
from openhtp.core.limits import (
    DEFAULT_QUEUE_DEPTH,
    MAX_QUEUE_DEPTH,
    MAX_READ_BUDGET_MB,
    MAX_SHARED_WEIGHT_GRAPHS,
    SESSION_LIMIT_BYTES,
)
from openhtp.core.option_numbers import ContextOption, HtpContextOption
from openhtp.core.value_kinds import Choice, Flag, GroupMembership, Level, Names, ValueKind, Whole
from openhtp.options._table import Changeable, ContextOrigin, EffectPlace, Number, Option, PreparedWhere, Table

SHARING_WITH_VA = "sequential_with_va_optimization"
CONCURRENT = "concurrent_optimization"
SHARING_TYPES = (SHARING_WITH_VA, "sequential_without_va_optimization", CONCURRENT)
CONCURRENT_ARCH = 81
"""The first architecture whose contexts can share buffers while they run at the same time."""

_STORED = (ContextOrigin.BINARY, ContextOrigin.LIST)
CONCURRENT_PLATFORMS = ("android",)
_PROFILING = ("android", "qnx")


def _number(name: str, value: ContextOption) -> Number:
    return Number(name=f"QNN_CONTEXT_CONFIG_{name}", value=value)


def _htp(name: str, value: HtpContextOption) -> Number:
    return Number(name=f"QNN_HTP_CONTEXT_CONFIG_OPTION_{name}", value=value, htp=True)


_COMMON = (
    Option(
        name="queue_depth",
        seen=(EffectPlace.REFUSALS, EffectPlace.ORDER),
        kind=Whole(1, MAX_QUEUE_DEPTH),
        default=DEFAULT_QUEUE_DEPTH,
        about="Executions that may be accepted and not yet completed. `set_config` does not change it later.",
        number=_number("ASYNC_EXECUTION_QUEUE_DEPTH", ContextOption.QUEUE_DEPTH),
        aliases=("async_execution_queue_depth", "async_execute_queue_depth"),
    ),
    Option(
        name="priority",
        seen=(EffectPlace.ORDER,),
        kind=Level(),
        about="Priority of graphs that have none: normal unless given, and graphs of a binary keep theirs.",
        number=_number("OPTION_PRIORITY", ContextOption.PRIORITY),
        changes=Changeable.BEFORE_EXECUTION,
    ),
    Option(
        name="enable_graphs",
        seen=(EffectPlace.REFUSALS, EffectPlace.MEMORY),
        kind=Names(),
        about="Graphs of the binary that can be executed; the others are left out. The first is the one that"
        " graph switching loads at once.",
        number=_number("ENABLE_GRAPHS", ContextOption.ENABLE_GRAPHS),
        config_key="enable_graphs",
        origins=_STORED,
    ),
    Option(
        name="compatibility",
        seen=(EffectPlace.REFUSALS,),
        kind=Choice(("permissive", "strict")),
        default="permissive",
        about="`strict` refuses a binary that would run on this device, but not at its best.",
        number=_number("BINARY_COMPATIBILITY", ContextOption.BINARY_COMPATIBILITY),
        config_key="cache_compatibility_mode",
        aliases=("binary_compatibility",),
        origins=_STORED,
    ),
    Option(
        name="is_persistent_binary",
        seen=(EffectPlace.MEMORY,),
        kind=Flag(),
        default=False,
        about="The binary stays readable for as long as the context lives, so that graphs can be loaded again.",
        number=_number("PERSISTENT_BINARY", ContextOption.PERSISTENT_BINARY),
        config_key="is_persistent_binary",
        aliases=("persistent_binary",),
        origins=_STORED,
    ),
    Option(
        name="defer_graph_init",
        seen=(EffectPlace.MEMORY, EffectPlace.MEASURED_TIMES),
        kind=Flag(),
        default=False,
        about="Graphs of the binary are loaded when they are finalized (`Graph.finalize`, `Context.finalize`).",
        number=_number("OPTION_DEFER_GRAPH_INIT", ContextOption.DEFER_GRAPH_INIT),
        aliases=("deferred_graph_init",),
        origins=(ContextOrigin.BINARY,),
        excludes=("memory_limit_hint",),
    ),
    Option(
        name="memory_limit_hint",
        seen=(EffectPlace.MEMORY, EffectPlace.PROFILE),
        kind=Whole(0, (1 << 64) - 1, "MB"),
        default=0,
        about="Above 0, whatever the number: graphs are loaded when they run, and unloaded for others (graph"
        " switching).",
        number=_number("MEMORY_LIMIT_HINT", ContextOption.MEMORY_LIMIT_HINT),
        config_key="memory_limit_hint",
        origins=_STORED,
        needs=("is_persistent_binary",),
        excludes=(
            "share_resources",
            "register_multi_contexts",
            "register_concurrent_resource_sharing",
            "defer_graph_init",
        ),
    ),
    Option(
        name="graph_retention_order",
        seen=(EffectPlace.MEMORY, EffectPlace.MEASURED_TIMES),
        kind=Names(),
        about="Graphs that graph switching loads at once and keeps while there is room, the most important first."
        " Does nothing without `memory_limit_hint`.",
        number=_number("GRAPH_RETENTION_ORDER", ContextOption.GRAPH_RETENTION_ORDER),
        config_key="graph_retention_order",
        origins=_STORED,
        excludes=("share_resources", "spill_fill_buffer", "weights_buffer"),
    ),
)

_PREPARE = (
    Option(
        name="weight_sharing_enabled",
        seen=(EffectPlace.BINARY, EffectPlace.MEMORY),
        kind=Flag(),
        default=False,
        about="Weights that several graphs have in common are stored once in the context's binary, and loaded and"
        " counted once; without it, once for each graph."
        f" At most {MAX_SHARED_WEIGHT_GRAPHS} graphs, all with the same VTCM.",
        number=_htp("WEIGHT_SHARING_ENABLED", HtpContextOption.WEIGHT_SHARING),
        config_key="weight_sharing_enabled",
        since_arch=73,
        prepared=PreparedWhere.OFFLINE,
        origins=(ContextOrigin.COMPOSED,),
    ),
    Option(
        name="lora_weight_sharing_enabled",
        seen=(EffectPlace.BINARY, EffectPlace.MEMORY),
        kind=Flag(),
        default=False,
        about="One piece of memory, as large as the largest graph needs, holds the updatable weights of them all;"
        " the binary stores that graph's, as a part of its own, and no others.",
        number=_htp("LORA_WEIGHT_SHARING_ENABLED", HtpContextOption.LORA_WEIGHT_SHARING),
        config_key="lora_weight_sharing",
        aliases=("lora_weight_sharing",),
        prepared=PreparedWhere.OFFLINE,
        origins=(ContextOrigin.COMPOSED,),
    ),
    Option(
        name="use_extended_udma",
        seen=(EffectPlace.BINARY, EffectPlace.REFUSALS),
        kind=Flag(),
        default=False,
        about="Graphs are prepared for DMA with 64-bit addresses. A context of such a binary takes no weights in"
        " buffers of the client's (`callback`). Results and modelled times are the same.",
        number=_htp("USE_EXTENDED_UDMA", HtpContextOption.USE_EXTENDED_UDMA),
        config_key="extended_udma",
        aliases=("extended_udma",),
        since_arch=81,
        origins=(ContextOrigin.COMPOSED,),
    ),
    Option(
        name="prepare_only",
        seen=(EffectPlace.REFUSALS, EffectPlace.MEMORY),
        kind=Flag(),
        default=False,
        about="Graphs are prepared and can be saved; nothing is set up to execute them, which is refused.",
        number=_htp("PREPARE_ONLY", HtpContextOption.PREPARE_ONLY),
        aliases=("is_prepare_only",),
        origins=(ContextOrigin.COMPOSED,),
    ),
)

_GROUPS = (
    Option(
        name="register_multi_contexts",
        seen=(EffectPlace.MEMORY,),
        kind=GroupMembership(),
        about="Contexts of a group use one spill-fill buffer, in turn: it is counted once.",
        number=_htp("REGISTER_MULTI_CONTEXTS", HtpContextOption.REGISTER_MULTI_CONTEXTS),
        prepared=PreparedWhere.OFFLINE,
        origins=(ContextOrigin.BINARY,),
        excludes=("register_concurrent_resource_sharing", "memory_limit_hint"),
    ),
    Option(
        name="register_concurrent_resource_sharing",
        seen=(EffectPlace.MEMORY, EffectPlace.REFUSALS),
        kind=GroupMembership(),
        about="Contexts of one priority use one spill-fill and one VTCM backup buffer, while they run at the same"
        " time. Their priority can no longer be changed.",
        number=_htp("REGISTER_CONCURRENT_RESOURCE_SHARING", HtpContextOption.REGISTER_CONCURRENT_RESOURCE_SHARING),
        since_arch=CONCURRENT_ARCH,
        prepared=PreparedWhere.OFFLINE,
        origins=(ContextOrigin.BINARY,),
        platforms=CONCURRENT_PLATFORMS,
        excludes=("register_multi_contexts", "memory_limit_hint"),
    ),
    Option(
        name="share_resources",
        seen=(EffectPlace.MEMORY,),
        kind=Flag(),
        default=False,
        about="Contexts of a list share buffers, as `share_resources_optimization_type` says. For the whole list.",
        number=_htp("SHARE_RESOURCES", HtpContextOption.SHARE_RESOURCES),
        config_key="share_resources",
        origins=(ContextOrigin.LIST,),
        excludes=("memory_limit_hint", "graph_retention_order"),
    ),
    Option(
        name="share_resources_optimization_type",
        seen=(EffectPlace.MEMORY, EffectPlace.REFUSALS),
        kind=Choice(SHARING_TYPES),
        default=SHARING_TYPES[0],
        about="What `share_resources` shares: sequential types are for graphs that run one after the other; with"
        " VA optimization room for I/O is kept free. Ignored without `share_resources`.",
        number=_htp("SHARE_RESOURCES_OPTIMIZATION_TYPE", HtpContextOption.SHARE_RESOURCES_OPTIMIZATION),
        aliases=("share_resources_optimization",),
        origins=(ContextOrigin.LIST,),
    ),
)


def _loading(
    name: str, value: HtpContextOption, config_key: str | None, about: str, kind: ValueKind, **rest: object
) -> Option:
    """An option of how a binary is loaded."""
    return Option(
        name=config_key or name.lower(),
        kind=kind,
        default=False if isinstance(kind, Flag) else 0,
        about=about,
        number=_htp(name, value),
        config_key=config_key,
        origins=_STORED,
        **rest,  # type: ignore[arg-type]
    )


_LOADING = (
    _loading(
        "FILE_READ_MEMORY_BUDGET",
        HtpContextOption.FILE_READ_MEMORY_BUDGET,
        "file_read_memory_budget_in_mb",
        "The binary is read in pieces of so many MB, not all at once; 0 is off. More than the file is the file.",
        Whole(0, MAX_READ_BUDGET_MB, "MB"),
        aliases=("file_read_memory_budget",),
        seen=(EffectPlace.MEMORY,),
    ),
    _loading(
        "IO_MEM_ESTIMATION",
        HtpContextOption.IO_MEM_ESTIMATION,
        "io_memory_estimation",
        "The context goes where its inputs and outputs fit, too. Register them before the next context is made; of"
        " a list, their room is kept.",
        Flag(),
        aliases=("io_mem_estimation",),
        seen=(EffectPlace.MEMORY,),
    ),
    _loading(
        "INIT_ACCELERATION",
        HtpContextOption.INIT_ACCELERATION,
        "init_acceleration",
        "Make the graphs of the binary ready on all processors, at the cost of other work meanwhile.",
        Flag(),
        seen=(EffectPlace.MEASURED_TIMES,),
    ),
    _loading(
        "DSP_MEMORY_PROFILING_ENABLED",
        HtpContextOption.DSP_MEMORY_PROFILING,
        None,
        "Bytes of device memory go into the profile of the context's creation and of its freeing.",
        Flag(),
        platforms=_PROFILING,
        changes=Changeable.ALWAYS,
        seen=(EffectPlace.PROFILE,),
    ),
    _loading(
        "SKIP_VALIDATION_ON_BINARY_SECTION",
        HtpContextOption.SKIP_VALIDATION_ON_BINARY_SECTION,
        "skip_validation_on_binary_section",
        "`apply_binary_section` does not check the checksum of adapters that are not the base.",
        Flag(),
        seen=(EffectPlace.REFUSALS,),
    ),
)

_BUFFERS = tuple(
    Option(
        name=name,
        seen=(EffectPlace.MEMORY,),
        kind=Whole(-1, SESSION_LIMIT_BYTES, "bytes"),
        default=0,
        about=f"One buffer for {what} of graphs that are switched: so many bytes, -1 for what the largest graph"
        " needs, 0 for none. It is held for as long as the context lives, one graph uses it at a time, and so a"
        " switch never lacks the room.",
        config_key=name,
        origins=(ContextOrigin.BINARY,),
        needs=("memory_limit_hint",),
        excludes=("graph_retention_order",),
    )
    for name, what in (("spill_fill_buffer", "spill-fill"), ("weights_buffer", "the weights"))
)

CONTEXT = Table(
    owner="context",
    about="Given to `Device.create_context`, `create_context_from_binary` and `create_contexts_from_binaries`.",
    status=st.QNN_CONTEXT_ERROR_INVALID_CONFIG,
    rows=(*_COMMON, *_PREPARE, *_GROUPS, *_LOADING, *_BUFFERS),
)
