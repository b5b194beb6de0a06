"""ONNX Runtime's words for devices and the nodes on them: ``OrtEpDevice``, ``OrtEpAssignedSubgraph``."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from openhtp.core.errors import WrongState
from openhtp.engine.onnxruntime import onnxruntime
from openhtp.session.executable import AssignedPart
from openhtp.session.options import CPU, QNN

_RECORDED = "session.record_ep_graph_assignment_info"
_QUALCOMM = 0x5143


@dataclass(frozen=True, slots=True, kw_only=True)
class OrtHardwareDevice:
    """A device that a provider runs on; ``type`` is one of ``OrtHardwareDeviceType``."""

    type: Any
    vendor: str
    vendor_id: int = 0
    device_id: int = 0
    metadata: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class OrtEpDevice:
    """A provider and its device."""

    ep_name: str
    ep_vendor: str
    device: OrtHardwareDevice
    ep_metadata: dict[str, str] = field(default_factory=dict)
    ep_options: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class OrtEpAssignedNode:
    """A node that a provider runs."""

    name: str
    domain: str
    op_type: str


@dataclass(frozen=True, slots=True)
class OrtEpAssignedSubgraph:
    """Nodes that a provider runs together."""

    ep_name: str
    nodes: tuple[OrtEpAssignedNode, ...]

    def get_nodes(self) -> list[OrtEpAssignedNode]:
        """The nodes, in running order."""
        return list(self.nodes)


def ep_device(provider: str) -> OrtEpDevice:
    """The device of a provider: an emulated NPU, or this machine's processor."""
    kinds = onnxruntime.OrtHardwareDeviceType
    if provider == QNN:
        emulated = {"emulated": "1"}
        npu = OrtHardwareDevice(type=kinds.NPU, vendor="Qualcomm", vendor_id=_QUALCOMM, metadata=emulated)
        return OrtEpDevice(ep_name=QNN, ep_vendor="OpenHTP", device=npu, ep_metadata=emulated)
    theirs = next((each.device for each in onnxruntime.get_ep_devices() if each.ep_name == CPU), None)
    vendor, number = (theirs.vendor, theirs.vendor_id) if theirs is not None else ("", 0)
    cpu = OrtHardwareDevice(type=kinds.CPU, vendor=vendor, vendor_id=number)
    version = {"version": str(onnxruntime.__version__)}
    return OrtEpDevice(ep_name=CPU, ep_vendor="Microsoft", device=cpu, ep_metadata=version)


def host_memory() -> Any:
    """ONNX Runtime's words for a program's own memory."""
    ort = onnxruntime
    return ort.OrtMemoryInfo("Cpu", ort.OrtAllocatorType.ORT_DEVICE_ALLOCATOR, 0, ort.OrtMemType.DEFAULT)


def get_ep_devices() -> list[OrtEpDevice]:
    """The devices that a session can run on, the emulated NPU first."""
    return [ep_device(QNN), ep_device(CPU)]


def assigned_subgraphs(sess_options: Any, parts: Sequence[AssignedPart]) -> list[OrtEpAssignedSubgraph]:
    """The place of every node, as ONNX Runtime lists it: on the HTP whole parts, on the CPU node by node."""
    recorded = ""
    with contextlib.suppress(RuntimeError):  # which is how ONNX Runtime says that there is no such entry
        recorded = sess_options.get_session_config_entry(_RECORDED)
    if recorded != "1":
        raise WrongState(
            f"Session configuration entry '{_RECORDED}' must be set to \"1\" before the session is made"
        )
    subgraphs: list[OrtEpAssignedSubgraph] = []
    for part in parts:
        nodes = tuple(OrtEpAssignedNode(node.name, "", node.op_type) for node in part.nodes)
        groups = [nodes] if part.provider == QNN else [(node,) for node in nodes]
        subgraphs += [OrtEpAssignedSubgraph(part.provider, group) for group in groups]
    return subgraphs
