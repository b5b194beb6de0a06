"""The requests of clients: one handler for each message, in files by subject.

Knows messages and the device's reaction to each. Must not know sockets: a handler sees its connection only as
``Host``. Start at ``table.py``. A new request is its message class in ``rpc/messages.py`` and
its handler here.
"""

from openhtp.device.requests import contexts, device, graphs, updates
from openhtp.device.requests.table import HANDLERS, Asked, Host, answer

__all__ = ["HANDLERS", "Asked", "Host", "answer", "contexts", "device", "graphs", "updates"]
