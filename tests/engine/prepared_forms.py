"""Prepared forms in tests: loaded, run, and changed by an enemy who has the key."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import msgspec
import numpy as np

from openhtp.engine import seal
from openhtp.engine.ort import OrtEngine, OrtProgram
from openhtp.engine.prepared import Manifest
from openhtp.engine.workshop import Workshop
from openhtp.hw.catalog import find_soc
from openhtp.program.container import make_section
from openhtp.program.htp_program import HtpProgram
from openhtp.program.packed import PackedGraph

Change = Callable[[Manifest], Manifest]
SOC = find_soc("SM8650")


def results(program: HtpProgram, loaded: OrtProgram, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(seed)
    arrays = {
        spec.name: rng.integers(0, 256, spec.shape).astype(spec.dtype.numpy)
        for spec in (*program.inputs, *program.outputs)
    }
    run = loaded.bind(arrays)
    for step in range(loaded.steps):
        run.step(step)
    return {spec.name: arrays[spec.name] for spec in program.outputs}


def load(packed: PackedGraph) -> OrtProgram | None:
    with Workshop() as workshop:
        return OrtEngine().load_packed(packed, packed.info(), SOC, workshop)


def resealed(packed: PackedGraph, change: Change) -> PackedGraph:
    assert packed.prepared is not None
    key = seal.read_key()
    assert key is not None
    manifest = change(msgspec.msgpack.decode(packed.prepared.read(), type=Manifest))
    words = msgspec.msgpack.encode(manifest)
    return dataclasses.replace(packed, prepared=make_section(words), seal=seal.sealed(key, words))
