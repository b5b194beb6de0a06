"""What a user would write with ONNX Runtime alone: the same graph for one token, and a KV cache in numpy.

The graph is in quantize-dequantize pairs, as quantizers write it, or, to see what the way to the device costs, as
our engine computes it.
"""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import numpy.typing as npt

from openhtp import llm
from openhtp.compiler.driver import program_for
from openhtp.core.quant import ScaleOffset
from openhtp.engine.lowering import lower_program
from openhtp.engine.onnx_graph import model_bytes
from openhtp.engine.onnxruntime import onnxruntime as ort
from openhtp.program.binary import read_binary

Array = npt.NDArray[Any]


class PlainLoop:
    """One session with one thread, its own cache, and greedy decoding."""

    def __init__(self, bundle: llm.Bundle, soc: str = "SM8650", *, takes_apart: bool = False) -> None:
        """``bundle`` is in one part, with a flat cache; ``takes_apart`` as for ``lower_program``."""
        program = program_for(read_binary(bundle.binaries[0]).program(bundle.graph_name(1, 1)), soc)
        lowered = lower_program(program, takes_apart=takes_apart)
        options = ort.SessionOptions()
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        if lowered.external:
            values = [ort.OrtValue.ortvalue_from_numpy(array) for array in lowered.external.values()]
            options.add_external_initializers(list(lowered.external), values)
        self._session = ort.InferenceSession(
            model_bytes(lowered.model), options, providers=["CPUExecutionProvider"]
        )
        self._config = bundle.config
        self._outputs = list(lowered.outputs.values())
        self._names = list(lowered.outputs)
        self._feeds: dict[str, Array] = {}
        self._arrays: dict[str, Array] = {}
        for spec in program.inputs:
            self._arrays[spec.name] = array = np.zeros(spec.shape, spec.dtype.numpy)
            if spec.name in lowered.inputs:
                self._feeds[lowered.inputs[spec.name]] = array
        turns = next(spec.quant for spec in program.inputs if spec.name == "position_ids_cos")
        assert isinstance(turns, ScaleOffset)
        self._turns = turns
        # Of the last call: the token that follows the prompt, and those after it.
        self.written: list[int] = []

    def decode_ms(self, prompt: list[int], tokens: int) -> float:
        """Time of one token, after the prompt was read token by token."""
        for name, array in self._arrays.items():
            array[...] = 128 if name.startswith("past") else 0
        for place, known in enumerate(prompt):
            self.written = [self._step(known, place)]
        began = time.perf_counter()
        for place in range(len(prompt), len(prompt) + tokens):
            self.written.append(self._step(self.written[-1], place))
        return (time.perf_counter() - began) * 1e3 / tokens

    def _step(self, token: int, place: int) -> int:
        """One token: the cache is used as it lies, the new token right behind the others."""
        arrays = self._arrays
        arrays["input_ids"][0, 0] = token
        arrays["cache_index"][0] = place
        arrays["attention_mask"][..., place] = np.iinfo(arrays["attention_mask"].dtype).max
        for name, values in zip(
            ("position_ids_cos", "position_ids_sin"), self._config.rotations(place, 1), strict=True
        ):
            arrays[name][0, 0] = np.clip(np.rint(values / self._turns.scale) - self._turns.offset, 0, 65535)
        found = dict(zip(self._names, self._session.run(self._outputs, self._feeds), strict=True))
        for layer in range(self._config.layers):
            arrays[f"past_key_{layer}_in"][..., place] = found[f"past_key_{layer}_out"][..., 0]
            arrays[f"past_value_{layer}_in"][..., place, :] = found[f"past_value_{layer}_out"][..., 0, :]
        return int(np.argmax(found["logits"][0, 0]))
