"""Options of a graph."""

from openhtp.core import status as st
from openhtp.core.option_numbers import GraphOption, HtpGraphOption, Optimization
from openhtp.core.precision import FloatPrecision
from openhtp.core.units import MIB
from openhtp.core.value_kinds import Flag, Level, Member, Whole
from openhtp.options._table import Changeable, EffectPlace, Number, Option, PreparedWhere, Table

MAX_VTCM_MB = 1024
VTCM_STEP_BYTES = 64 * 1024
MAX_HVX_THREADS = 64
MAX_CORES = 16


def _switch(
    name: str,
    number: Number,
    about: str,
    *,
    prepared: PreparedWhere = PreparedWhere.ANYWHERE,
    changes: Changeable = Changeable.NEVER,
    documented_limit: str = "",
    seen: tuple[EffectPlace, ...],
) -> Option:
    """An option that is off unless asked for, under the same name in config files."""
    return Option(
        name=name,
        kind=Flag(),
        default=False,
        about=about,
        number=number,
        config_key=name,
        in_binary=True,
        prepared=prepared,
        changes=changes,
        documented_limit=documented_limit,
        seen=seen,
    )


def _htp(name: str, value: int) -> Number:
    return Number(name=f"QNN_HTP_GRAPH_CONFIG_OPTION_{name}", value=value, htp=True)


def _optimization(name: str, kind: int) -> Number:
    return Number(
        name=f"QNN_HTP_GRAPH_OPTIMIZATION_TYPE_{name}", value=HtpGraphOption.OPTIMIZATION, htp=True, kind=kind
    )


_SWITCHES = (
    _switch(
        "fold_relu_activation_into_conv_off",
        _htp("FOLD_RELU_ACTIVATION_INTO_CONV_OFF", HtpGraphOption.FOLD_RELU_INTO_CONV_OFF),
        "Keep a Relu after its convolution: slower, but with the encodings that were asked for. Results change if"
        " those encodings are wider or narrower than what the Relu leaves.",
        seen=(EffectPlace.RESULTS, EffectPlace.MODELLED_TIMES),
    ),
    _switch(
        "short_depth_conv_on_hmx_off",
        _htp("SHORT_DEPTH_CONV_ON_HMX_OFF", HtpGraphOption.SHORT_DEPTH_CONV_ON_HMX_OFF),
        "Convolutions of few channels run on the HVX: for weights that are not symmetric. Modelled times follow;"
        " results are exact either way.",
        seen=(EffectPlace.MODELLED_TIMES,),
    ),
    _switch(
        "advanced_activation_fusion",
        _htp("ADVANCED_ACTIVATION_FUSION", HtpGraphOption.ADVANCED_ACTIVATION_FUSION),
        "Activations other than clamps run in one piece with the convolution before them, with the same results.",
        seen=(EffectPlace.MODELLED_TIMES,),
    ),
    _switch(
        "weights_packing",
        _htp("WEIGHTS_PACKING", HtpGraphOption.WEIGHTS_PACKING),
        "8-bit weights that need only 4 bits are stored in them: files shrink, and modelled times follow. Results"
        " are the same.",
        seen=(EffectPlace.BINARY, EffectPlace.MODELLED_TIMES),
    ),
    _switch(
        "dlbc",
        _optimization("ENABLE_DLBC", Optimization.DLBC),
        "Activations are compressed on their way to and from DDR. Modelled times and bytes follow, by an estimated"
        " ratio.",
        prepared=PreparedWhere.OFFLINE,
        seen=(EffectPlace.MODELLED_TIMES, EffectPlace.BINARY),
    ),
    _switch(
        "dlbc_weights",
        _optimization("ENABLE_DLBC_WEIGHTS", Optimization.DLBC_WEIGHTS),
        "Weights are compressed on their way from DDR. Modelled times and bytes follow, by an estimated ratio.",
        prepared=PreparedWhere.OFFLINE,
        seen=(EffectPlace.MODELLED_TIMES,),
    ),
    _switch(
        "slc_alloc_enable",
        _optimization("ENABLE_SLC_ALLOCATOR", Optimization.SLC_ALLOCATOR),
        "What VTCM spills goes to the system's cache. Modelled times and bytes follow, by an estimated ratio.",
        prepared=PreparedWhere.OFFLINE,
        changes=Changeable.OFF_AND_ON,
        documented_limit="on some chips only, and do not say which; here every chip has it",
        seen=(EffectPlace.MODELLED_TIMES,),
    ),
)

GRAPH = Table(
    owner="graph",
    about="Given to `Context.create_graph` and `compose_graph`.",
    status=st.QNN_GRAPH_ERROR_INVALID_ARGUMENT,
    rows=(
        Option(
            name="priority",
            seen=(EffectPlace.ORDER, EffectPlace.BINARY),
            kind=Level(),
            about="How urgent its executions are; the context's priority unless given.",
            number=Number(name="QNN_GRAPH_CONFIG_OPTION_PRIORITY", value=GraphOption.PRIORITY),
            changes=Changeable.BEFORE_EXECUTION,
            in_binary=True,
        ),
        Option(
            name="vtcm_mb",
            kind=Whole(1, MAX_VTCM_MB, "MB", or_max=True),
            about="VTCM to reserve; the device's choice unless given. Of several wishes, in either unit, the last"
            " holds.",
            number=_htp("VTCM_SIZE_IN_MB", HtpGraphOption.VTCM_SIZE_IN_MB),
            config_key="vtcm_mb",
            same_as="vtcm_bytes",
            factor=MIB,
        ),
        Option(
            name="vtcm_bytes",
            seen=(EffectPlace.MODELLED_TIMES, EffectPlace.ORDER, EffectPlace.MEMORY, EffectPlace.BINARY),
            kind=Whole(VTCM_STEP_BYTES, MAX_VTCM_MB * MIB, "bytes", or_max=True, step=VTCM_STEP_BYTES),
            about="VTCM to reserve, in bytes: steps of 64 KiB from Hexagon v81 on, whole MB before; stored as 0"
            " for all that the chip has.",
            number=_htp("VTCM_SIZE_IN_BYTES", HtpGraphOption.VTCM_SIZE_IN_BYTES),
            in_binary=True,
        ),
        Option(
            name="hvx_threads",
            seen=(EffectPlace.MODELLED_TIMES, EffectPlace.ORDER, EffectPlace.BINARY),
            kind=Whole(1, MAX_HVX_THREADS),
            about="HVX threads to reserve; the device's choice unless given.",
            number=_htp("NUM_HVX_THREADS", HtpGraphOption.NUM_HVX_THREADS),
            config_key="hvx_threads",
            changes=Changeable.BEFORE_EXECUTION,
            in_binary=True,
        ),
        Option(
            name="precision",
            seen=(EffectPlace.RESULTS, EffectPlace.BINARY),
            kind=Member(FloatPrecision),
            default=FloatPrecision.FLOAT16,
            about="How float graphs compute. An HTP has half precision only; float32 is for comparing.",
            number=_htp("PRECISION", HtpGraphOption.PRECISION),
            in_binary=True,
        ),
        Option(
            name="optimization_level",
            seen=(EffectPlace.MODELLED_TIMES, EffectPlace.BINARY),
            kind=Whole(1, 3),
            default=2,
            about="How hard preparation tries: 1 is quickest, 3 makes the best program.",
            number=Number(
                name="QNN_HTP_GRAPH_CONFIG_OPTION_OPTIMIZATION",
                value=HtpGraphOption.OPTIMIZATION,
                htp=True,
                kind=Optimization.FINALIZE_FLAG,
            ),
            config_key="O",
            in_binary=True,
        ),
        Option(
            name="strict_kv",
            seen=(EffectPlace.REFUSALS,),
            kind=Flag(),
            default=False,
            about="Refuse an index into a native KV cache that is no multiple of 32, instead of rounding it up.",
            in_binary=True,
        ),
        Option(
            name="core",
            seen=(EffectPlace.ORDER,),
            kind=Whole(0, MAX_CORES - 1),
            default=0,
            about="The NPU core on which it runs; graphs on different cores do not wait for each other.",
            config_key="core_id",
            in_binary=True,
        ),
        Option(
            name="num_cores",
            seen=(EffectPlace.MODELLED_TIMES, EffectPlace.BINARY),
            kind=Whole(1, MAX_CORES),
            default=1,
            about="Cores that one execution is spread over. Modelled times follow; here it is computed on one.",
            number=_htp("NUM_CORES", HtpGraphOption.NUM_CORES),
            config_key="num_cores",
            in_binary=True,
        ),
        *_SWITCHES,
    ),
)
