"""Options of one execution, and of the profile that records it."""

from openhtp.core import status as st
from openhtp.core.limits import MAX_WAIT_US
from openhtp.core.option_numbers import ProfileOption
from openhtp.core.value_kinds import AnyObject, Flag, Whole
from openhtp.options._table import Changeable, EffectPlace, Number, Option, Table

_MOST_EVENTS = 1 << 32

EXECUTION = Table(
    owner="execution",
    about="Given to `Graph.execute` and `execute_async`.",
    status=st.QNN_GRAPH_ERROR_INVALID_ARGUMENT,
    rows=(
        Option(
            name="profile",
            seen=(EffectPlace.PROFILE,),
            kind=AnyObject("a profile handle of this backend", "Profile"),
            about="Where its times are recorded; one call at a time.",
            changes=Changeable.EACH_CALL,
        ),
        Option(
            name="signal",
            seen=(EffectPlace.REFUSALS, EffectPlace.ORDER),
            kind=AnyObject("a signal handle of this backend", "Signal"),
            about="Aborts it, or bounds its time; one call at a time.",
            changes=Changeable.EACH_CALL,
        ),
        Option(
            name="deadline_us",
            seen=(EffectPlace.ORDER, EffectPlace.PROFILE),
            kind=Whole(1, MAX_WAIT_US, "microseconds"),
            about="When it should be over, counted from the call; what `policy=edf` orders by, and reports tell.",
            changes=Changeable.EACH_CALL,
        ),
        Option(
            name="notify",
            seen=(EffectPlace.CALLBACKS,),
            kind=AnyObject("a function of (param, status)", "Notify"),
            about="Called once, on a thread of the backend, when the execution is over. Only `execute_async`.",
            changes=Changeable.EACH_CALL,
        ),
        Option(
            name="notify_param",
            seen=(EffectPlace.CALLBACKS,),
            kind=AnyObject("anything", "object"),
            about="The first argument of `notify`.",
            changes=Changeable.EACH_CALL,
        ),
    ),
)

PROFILE = Table(
    owner="profile",
    about="Given to `Backend.create_profile`, beside the level.",
    status=st.QNN_PROFILE_ERROR_INVALID_ARGUMENT,
    rows=(
        Option(
            name="max_events",
            seen=(EffectPlace.PROFILE,),
            kind=Whole(1, _MOST_EVENTS),
            about="Events of a call that are kept, from the first on; those within another do not count.",
            number=Number(name="QNN_PROFILE_CONFIG_OPTION_MAX_EVENTS", value=ProfileOption.MAX_EVENTS),
        ),
        Option(
            name="optrace",
            seen=(EffectPlace.PROFILE,),
            kind=Flag(),
            default=False,
            about="Also record what every op on the chip does when (modelled); needs the level detailed. The level"
            " `optrace` is short for both.",
            number=Number(name="QNN_PROFILE_CONFIG_OPTION_ENABLE_OPTRACE", value=ProfileOption.ENABLE_OPTRACE),
        ),
    ),
)
