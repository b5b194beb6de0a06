"""Genie, Qualcomm's engine for language models, as a client of our library.

Knows Genie's C functions and configuration, and where ``libGenie.so`` lies. Must not know how a device computes:
Genie calls our ``libQnnHtp.so`` as it would call any other. Start at ``chat.py``; ``host.py`` is the process that
Genie runs in.
"""

from openhtp.genie.chat import Chat
from openhtp.genie.dialog import Answer
from openhtp.genie.libraries import find_genie, linked_folder

__all__ = ["Answer", "Chat", "find_genie", "linked_folder"]
