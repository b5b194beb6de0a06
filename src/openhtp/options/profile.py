"""Options of a profile."""

from openhtp.core import status as st
from openhtp.core.option_numbers import ProfileOption
from openhtp.options._kinds import Flag, Whole
from openhtp.options._table import Number, Option, Table

_MOST_EVENTS = 1 << 32

PROFILE = Table(
    owner="profile",
    about="Given to `Backend.create_profile`, beside the level.",
    status=st.QNN_PROFILE_ERROR_INVALID_ARGUMENT,
    rows=(
        Option(
            name="max_events",
            kind=Whole(1, _MOST_EVENTS),
            about="Events of a call that are kept, from the first on; those within another do not count.",
            number=Number(name="QNN_PROFILE_CONFIG_OPTION_MAX_EVENTS", value=ProfileOption.MAX_EVENTS),
        ),
        Option(
            name="optrace",
            kind=Flag(),
            default=False,
            about="Also record what every op on the chip does when (modelled); needs the level detailed. The level"
            " `optrace` is short for both.",
            number=Number(name="QNN_PROFILE_CONFIG_OPTION_ENABLE_OPTRACE", value=ProfileOption.ENABLE_OPTRACE),
        ),
    ),
)
