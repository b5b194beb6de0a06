"""Options of a backend."""

from openhtp.core import status as st
from openhtp.options._kinds import Text
from openhtp.options._table import Option, Table

BACKEND = Table(
    owner="backend",
    about="Given to `openhtp.Backend`.",
    status=st.QNN_BACKEND_ERROR_INVALID_ARGUMENT,
    rows=(
        Option(
            name="library",
            kind=Text("the path of a libQnnHtp.so, or 'vendor' to find the installed one"),
            about="Make Qualcomm's own library the devices instead of the emulator.",
        ),
    ),
)
