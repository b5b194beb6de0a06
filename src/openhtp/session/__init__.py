"""``InferenceSession``: ONNX Runtime's session, on the emulated HTP.

Knows ONNX models (through the frontend) and the runtime's objects. Must not know how either works inside. Start at
``inference.py``: the request for a session (``options.py``) becomes an ``Executable`` (``executable.py``): the
model ``on_htp.py``, ``in_parts.py`` or ``on_cpu.py``. ``context_cache.py`` has the EPContext files,
``prepared_model.py`` a model that is prepared while it runs.
"""

from openhtp.session.executable import AssignedPart, ModelMetadata, NodeArg
from openhtp.session.inference import InferenceSession
from openhtp.session.pending import PendingRun
from openhtp.session.prepared_model import ModelEvent, PreparedModel
from openhtp.session.values import IOBinding, OrtValue

__all__ = [
    "AssignedPart",
    "IOBinding",
    "InferenceSession",
    "ModelEvent",
    "ModelMetadata",
    "NodeArg",
    "OrtValue",
    "PendingRun",
    "PreparedModel",
]
