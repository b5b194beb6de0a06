"""The compiled graph as JSON that Netron opens: a node for every op on the chip, with what it cost.

Netron reads QNN's JSON; these are the keys that it needs, and the fields that the vendor's own file has.
"""

from __future__ import annotations

from typing import Any

from openhtp.core.dtype import DType
from openhtp.records.schematic import ChipEngine, HtpOp, OpRole, QnnOp, Schematic, dominant_cycles
from openhtp.report.listing import header

# QNN's numbers of types, written in decimal as JSON keys.
_INT32, _FLOAT32, _UINT64, _TEXT = "50", "562", "100", "1544"
_NATIVE, _STATIC = 3, 4
_UNKNOWN_TYPE = 0x7FFFFFFF
# The types that Netron knows; it refuses a file with any other.
_KNOWN = {
    0x0008, 0x0016, 0x0032, 0x0064, 0x0108, 0x0116, 0x0132, 0x0164, 0x0216, 0x0232, 0x0304, 0x0308,
    0x0316, 0x0332, 0x0404, 0x0408, 0x0416, 0x0432, 0x0508, 0x0608,
}  # fmt: skip


def schematic_to_netron(schematic: Schematic) -> dict[str, Any]:
    """The ``_htp.json`` of a graph."""
    nodes, dominant = schematic.by_number, dominant_cycles(schematic)
    known = {op.id for op in schematic.ops}
    tensors: dict[str, Any] = {}
    computed: dict[str, Any] = {}
    for running, op in enumerate(schematic.ops):
        tensors[_hex(op)] = {
            "id": running,
            "type": _NATIVE if op.executed else _STATIC,
            "data_type": _type_number(op.dtype),
            "dims": list(op.dims) or [1],
        }
        if op.executed:
            inputs = [f"0x{maker:016x}" for maker in op.inputs if maker in known]
            computed[_hex(op)] = {
                "type": op.name,
                "grouping": nodes[op.owner].name,
                "tensor_params": {},
                "scalar_params": _params(op, nodes[op.owner], dominant.get(op.id, 0)),
                "input_names": inputs,
                "output_names": [_hex(op)],
            }
    return {
        "header": header("HTP_GRAPH", "1.0.0"),
        "model.cpp": "htp_graph",
        "converter_command": "openhtp profile-viewer; cycles are modelled",
        "graph": {"tensors": tensors, "nodes": computed},
        "op_types": sorted({op.name for op in schematic.executed}),
    }


def _hex(op: HtpOp) -> str:
    return f"0x{op.id:016x}"


def _type_number(name: str) -> int:
    number = int(DType[name]) if name in DType.__members__ else _UNKNOWN_TYPE
    return number if number in _KNOWN else _UNKNOWN_TYPE


def _params(op: HtpOp, node: QnnOp, dominant: int) -> dict[str, dict[str, Any]]:
    flags = [op.engine.value] if op.engine is not ChipEngine.NONE else []
    if op.role is not OpRole.COMPUTE:
        flags.append(op.role.value)
    return {
        "output_step_size": {_FLOAT32: op.step_size},
        "output_zero_offset": {_INT32: op.zero_offset},
        "output_rank": {_INT32: len(op.dims)},
        "qnn_op_type": {_TEXT: node.type},
        "qnn_op_name": {_TEXT: node.name},
        "framework_ops": {_TEXT: ", ".join(node.framework)},
        "mem_dram_read": {_UINT64: op.dram_read},
        "mem_dram_write": {_UINT64: op.dram_write},
        "mem_vtcm_read": {_UINT64: op.vtcm_read},
        "mem_vtcm_write": {_UINT64: op.vtcm_write},
        "op_flags": {_TEXT: ", ".join(flags)},
        "cycles_start": {_UINT64: op.start},
        "cycles_duration": {_UINT64: op.cycles},
        "cycles_dominant": {_UINT64: dominant},
    }
