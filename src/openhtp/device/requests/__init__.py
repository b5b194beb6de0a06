"""What a client may ask for: for each message its one handler, in files by subject.

Knows messages, and what the device does about each. Must not know sockets: what a request needs of the connection
that it came on is ``Host``. Start at ``table.py``. A new request is its message class in ``rpc/messages.py`` and
its handler here.
"""

from openhtp.device.requests import contexts, device, graphs, power, updates
from openhtp.device.requests.table import HANDLERS, Asked, Host, answer

__all__ = ["HANDLERS", "Asked", "Host", "answer", "contexts", "device", "graphs", "power", "updates"]
