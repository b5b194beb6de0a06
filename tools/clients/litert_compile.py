"""LiteRT's Qualcomm compiler plug-in on our libraries: small models are compiled ahead of time, with its options.

The wheel for this machine has nothing that would run the result: every operation must go to the NPU, and the file
must then carry a context binary.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import ai_edge_litert
import flatbuffers
import numpy as np
from ai_edge_litert import schema_py_generated as tfl

from openhtp import backend_path

OPTIONS = {
    "profiling": ["--qualcomm_profiling=detailed"],
    "optrace": ["--qualcomm_profiling=optrace"],
    "burst": ["--qualcomm_htp_performance_mode=burst"],
    "VTCM and HVX": ["--qualcomm_vtcm_size=4", "--qualcomm_num_hvx_thread=2"],
    "priority": ["--qualcomm_graph_priority=high"],
    "raw inputs and outputs": ["--qualcomm_graph_io_tensor_mem_type=raw"],
    "level 1": ["--qualcomm_optimization_level=O1"],
    "signed domain": ["--qualcomm_htp_pd_session=signed"],
}


class Model:
    """A .tflite file in the making, with the wheel's own schema."""

    def __init__(self) -> None:
        self.made: Any = tfl.ModelT()
        self.made.version, self.made.buffers, self.made.operatorCodes = 3, [tfl.BufferT()], []
        self.graph: Any = tfl.SubGraphT()
        self.graph.tensors, self.graph.operators, self.graph.name = [], [], b"main"

    def tensor(self, name: str, shape: tuple[int, ...], kind: int, data: Any = None, steps: Any = None) -> int:
        """Add a tensor; ``steps`` are scales and zero points."""
        made: Any = tfl.TensorT()
        made.name, made.shape, made.type, made.buffer = name.encode(), list(shape), kind, 0
        if data is not None:
            buffer: Any = tfl.BufferT()
            buffer.data = np.frombuffer(np.ascontiguousarray(data).tobytes(), np.uint8)
            self.made.buffers.append(buffer)
            made.buffer = len(self.made.buffers) - 1
        if steps is not None:
            made.quantization = tfl.QuantizationParametersT()
            made.quantization.scale, made.quantization.zeroPoint = (np.atleast_1d(part).tolist() for part in steps)
            made.quantization.quantizedDimension = 0
        self.graph.tensors.append(made)
        return len(self.graph.tensors) - 1

    def operation(self, code: int, inputs: list[int], output: int, options: tuple[int, Any], version: int) -> None:
        """Add an operation."""
        named: Any = tfl.OperatorCodeT()
        named.builtinCode, named.deprecatedBuiltinCode, named.version = code, min(code, 127), version
        self.made.operatorCodes.append(named)
        made: Any = tfl.OperatorT()
        made.opcodeIndex, made.inputs, made.outputs = len(self.made.operatorCodes) - 1, inputs, [output]
        made.builtinOptionsType, made.builtinOptions = options
        self.graph.operators.append(made)

    def packed(self, inputs: list[int], outputs: list[int]) -> bytes:
        """The file."""
        self.graph.inputs, self.graph.outputs = inputs, outputs
        self.made.subgraphs, self.made.description = [self.graph], b"small"
        builder = flatbuffers.Builder(1024)
        builder.Finish(self.made.Pack(builder), b"TFL3")
        return bytes(builder.Output())


def addition(quantized: bool) -> bytes:
    """Two tensors, added."""
    model, shape = Model(), (1, 8, 8, 4)
    kind = tfl.TensorType.INT8 if quantized else tfl.TensorType.FLOAT32
    steps = [(0.02, 3), (0.03, -5), (0.05, 1)] if quantized else [None] * 3
    x, y, z = (model.tensor(name, shape, kind, steps=one) for name, one in zip("xyz", steps, strict=True))
    options = (tfl.BuiltinOptions.AddOptions, tfl.AddOptionsT())
    model.operation(tfl.BuiltinOperator.ADD, [x, y], z, options, 1)
    return model.packed([x, y], [z])


def convolution(quantized: bool) -> bytes:
    """A convolution with weights by channel, a bias and a clamp."""
    model, random = Model(), np.random.default_rng(0)
    kind = tfl.TensorType.INT8 if quantized else tfl.TensorType.FLOAT32
    weights = random.normal(0, 0.3, (8, 3, 3, 3)).astype(np.float32)
    bias = random.normal(0, 0.2, 8).astype(np.float32)
    x = model.tensor("x", (1, 8, 8, 3), kind, steps=(0.03, 0) if quantized else None)
    if quantized:
        scales, zeros = np.abs(weights).reshape(8, -1).max(1) / 127, np.zeros(8, np.int64)
        stored = np.rint(weights / scales[:, None, None, None]).astype(np.int8)
        w = model.tensor("w", weights.shape, kind, stored, (scales, zeros))
        steps = np.rint(bias / (scales * 0.03)).astype(np.int32)
        b = model.tensor("b", (8,), tfl.TensorType.INT32, steps, (scales * 0.03, zeros))
    else:
        w, b = model.tensor("w", weights.shape, kind, weights), model.tensor("b", (8,), kind, bias)
    y = model.tensor("y", (1, 8, 8, 8), kind, steps=(0.04, -128) if quantized else None)
    options: Any = tfl.Conv2DOptionsT()
    options.padding, options.fusedActivationFunction = tfl.Padding.SAME, tfl.ActivationFunctionType.RELU
    options.strideH = options.strideW = options.dilationHFactor = options.dilationWFactor = 1
    model.operation(tfl.BuiltinOperator.CONV_2D, [x, w, b], y, (tfl.BuiltinOptions.Conv2DOptions, options), 3)
    return model.packed([x], [y])


def compiled(model: bytes, options: list[str]) -> str:
    """Compile a model; says what is wrong, or nothing."""
    root = Path(ai_edge_litert.__file__).parent
    plug_in = root / "vendors" / "qualcomm" / "compiler"
    folders = [Path(backend_path()).parent, root, plug_in]
    with tempfile.TemporaryDirectory() as folder:
        source, target = Path(folder) / "m.tflite", Path(folder) / "o.tflite"
        source.write_bytes(model)
        command = [str(root / "tools" / "apply_plugin_main"), "--cmd=apply", f"--model={source}", f"--o={target}"]
        command += ["--soc_manufacturer=Qualcomm", "--soc_model=SM8650", f"--libs={plug_in}", *options]
        environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(map(str, folders))}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False, timeout=300)
        said = done.stdout + done.stderr
        found = re.search(r"Partitioned subgraph.*selected (\d+).*total of (\d+)", said)
        if done.returncode or not target.exists() or found is None:
            return f"ended with {done.returncode}: {said.strip()[-400:]}"
        if found.group(1) != found.group(2):
            return f"{found.group(1)} of {found.group(2)} operations went to the NPU"
        return "" if target.stat().st_size > len(model) + 1000 else "there is no context binary in the result"


def main() -> int:
    """Compile all models, and one with each option."""
    cases: dict[str, tuple[bytes, list[str]]] = {}
    for quantized, word in ((False, "float"), (True, "int8")):
        cases[f"addition, {word}"] = addition(quantized), []
        cases[f"convolution, {word}"] = convolution(quantized), []
    cases |= {name: (convolution(True), options) for name, options in OPTIONS.items()}
    problems = {name: compiled(*case) for name, case in cases.items()}
    for name, problem in problems.items():
        if problem:
            print(f"{name}: {problem}", file=sys.stderr)
    failed = sum(map(bool, problems.values()))
    print(f"{len(cases) - failed} of {len(cases)} models and options compiled by ai-edge-litert")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
