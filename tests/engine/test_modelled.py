"""The engine that computes nothing."""

from __future__ import annotations

import numpy as np
import pytest

import openhtp as htp
from openhtp import zoo
from openhtp.compiler.driver import compile_graph
from openhtp.core.errors import InvalidArgument
from openhtp.engine.protocol import Engine, LoadedProgram, Run
from openhtp.frontend.onnx_import import load
from openhtp.testing import virtual_device
from openhtp.testing.devices import ModelledEngine


def test_it_has_the_steps_of_the_program_and_leaves_outputs_alone() -> None:
    program = compile_graph(load(zoo.small_cnn()), "SM8650")
    engine: Engine = ModelledEngine()
    loaded: LoadedProgram = engine.load(program)
    assert loaded.steps == len(program.steps) > 5
    arrays = {spec.name: np.full(spec.shape, 3, spec.dtype.numpy) for spec in (*program.inputs, *program.outputs)}
    run: Run = loaded.bind(arrays)
    for step in range(loaded.steps):
        run.step(step)
    assert all((array == 3).all() for array in arrays.values())
    loaded.close()


def test_arrays_that_do_not_fit_are_refused() -> None:
    program = compile_graph(load(zoo.tiny_mlp()), "SM8650")
    loaded = ModelledEngine().load(program)
    good = {spec.name: np.zeros(spec.shape, spec.dtype.numpy) for spec in (*program.inputs, *program.outputs)}
    name = program.inputs[0].name
    for bad in ({name: good[name][..., :1]}, {name: good[name].astype(np.int32)}):
        with pytest.raises(InvalidArgument, match=f"bound to {name}"):
            loaded.bind({**good, **bad})
    with pytest.raises(InvalidArgument, match="is none"):
        loaded.bind({})


def test_a_virtual_device_can_do_without_computing() -> None:
    source = load(zoo.small_cnn())
    with htp.Backend() as backend:
        device = virtual_device(backend, step_ns=1_000, compute=False)
        graph = device.create_context().compose_graph(source)
        graph.finalize()
        assert graph.steps == len(compile_graph(source, "SM8650").steps)
        inputs = {spec.name: np.zeros(spec.shape, spec.dtype.numpy) for spec in graph.inputs}
        done = graph.execute_async(inputs)
        assert done.result()
