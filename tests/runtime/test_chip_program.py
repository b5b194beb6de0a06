"""The chip's program in a context binary: the order of operations, their tiles, and what is paged."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pytest
from typer.testing import CliRunner

import openhtp as htp
from openhtp import zoo
from openhtp.cli.main import app
from openhtp.compiler.driver import CompileOptions, portable_program, program_for
from openhtp.compiler.sizes import weights_fill
from openhtp.compiler.vtcm.place import placed_of
from openhtp.core.errors import BadBinary
from openhtp.cost import schedule_of
from openhtp.options import GRAPH
from openhtp.program.binary import read_binary
from openhtp.program.chip_program import pack_chip_program, read_chip_program
from openhtp.program.htp_program import HtpProgram
from openhtp.runtime.objects import modelled

SIDE, CHANNELS = 192, 32


def image_graph(context: htp.Context, **options: Any) -> htp.Graph:
    """Convolutions of large maps; a sum at the end keeps the first map alive."""
    rng = np.random.default_rng(0)
    graph = context.create_graph("maps", **options)
    shape = (1, SIDE, SIDE, CHANNELS)
    first = last = graph.add_tensor("x", shape, "float32", kind="app_write")
    for number in range(3):
        data = rng.normal(size=(3, 3, CHANNELS, CHANNELS)).astype(np.float32) * 0.05
        weights = graph.add_tensor(f"w{number}", data.shape, "float32", data=data)
        result = graph.add_tensor(f"t{number}", shape, "float32")
        pads = {"stride": [1, 1], "pad_amount": [[1, 1], [1, 1]]}
        graph.add_node("Conv2d", name=f"conv{number}", inputs=[last, weights], outputs=[result], params=pads)
        last, first = result, result if number == 0 else first
    y = graph.add_tensor("y", shape, "float32", kind="app_read")
    graph.add_node("ElementWiseAdd", name="sum", inputs=[last, first], outputs=[y])
    graph.finalize()
    return graph


def binary_of(device: htp.Device, **options: Any) -> bytes:
    with device.create_context() as context:
        image_graph(context, **options)
        return context.get_binary()


@functools.cache
def compiled(vtcm_mb: int = 8, network: str = "small_cnn") -> HtpProgram:
    options = CompileOptions(graph=GRAPH.read({"vtcm_mb": vtcm_mb}))
    return program_for(portable_program(htp.onnx.load(zoo.MODELS[network]()), options), "SM8650")


def test_less_vtcm_makes_more_operations_and_a_larger_binary(shared_device: htp.Device) -> None:
    binaries = {vtcm_mb: binary_of(shared_device, vtcm_mb=vtcm_mb) for vtcm_mb in (1, 8)}
    chips = {vtcm_mb: read_binary(binary).packed("maps").chip_program() for vtcm_mb, binary in binaries.items()}
    small, large = chips[1], chips[8]
    assert small is not None
    assert large is not None
    assert small.tiles > large.tiles
    assert small.operations > large.operations
    assert small.paged_bytes > large.paged_bytes == 0
    assert len(binaries[1]) > len(binaries[8])


def test_every_block_that_waits_in_ddr_makes_the_binary_larger(shared_device: htp.Device) -> None:
    """Whatever the tiles are: those of MobileNetV2 are the same for 1 MB as for 8 MB of VTCM."""
    lengths, blocks = {}, {}
    for vtcm_mb in (1, 8):
        with shared_device.create_context(prepare_only=True) as context:
            context.compose_graph(htp.onnx.load(zoo.mobilenet_v2()), vtcm_mb=vtcm_mb).finalize()
            binary = context.get_binary()
        (name,) = read_binary(binary).graph_names
        chip = read_binary(binary).packed(name).chip_program()
        assert chip is not None
        lengths[vtcm_mb], blocks[vtcm_mb] = len(binary), chip.waiting_blocks
    assert blocks[1] > blocks[8] == 0
    assert lengths[1] > lengths[8]


@pytest.mark.parametrize("vtcm_mb", [1, 8])
def test_order_tiles_and_paging_come_back_as_the_compiler_made_them(vtcm_mb: int) -> None:
    program = compiled(vtcm_mb, "resnet18")
    placed = placed_of(program)
    chip = read_chip_program(memoryview(pack_chip_program(program, placed)))
    assert chip.fits(program)
    assert chip.kernels == tuple(tuple(node.name for node in kernel.nodes) for kernel in program.kernels)
    back = chip.placed
    assert (back.tiles, back.placements, back.free_after) == (placed.tiles, placed.placements, placed.free_after)
    assert back.handed_over == placed.handed_over
    assert sorted(map(repr, back.transfers)) == sorted(map(repr, placed.transfers))
    known, fresh = schedule_of(dataclasses.replace(program, placed=back)), schedule_of(program)
    assert known.operations == fresh.operations


def test_blocks_of_weights_are_filled_up_in_the_file() -> None:
    program = compiled(8, "mobilenet_v2")
    placed, fill = placed_of(program), weights_fill(program)
    plain, filled = (pack_chip_program(program, placed, fill=count) for count in (0, fill))
    assert 200_000 < fill <= len(filled) - len(plain) < fill + 16
    assert read_chip_program(memoryview(filled)) == read_chip_program(memoryview(plain))


def test_a_program_of_another_vtcm_size_does_not_fit() -> None:
    program = compiled(8)
    chip = read_chip_program(memoryview(pack_chip_program(program, placed_of(program))))
    assert not chip.fits(compiled(4))


def test_a_loaded_graph_is_not_placed_again(shared_device: htp.Device, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its profile tells the binary's placement."""
    binary = binary_of(shared_device, vtcm_mb=2)
    used = []
    stored = modelled.Modelled.stored_placement

    def noting(self: modelled.Modelled, program: HtpProgram) -> Any:
        used.append(stored(self, program))
        return used[-1]

    monkeypatch.setattr(modelled.Modelled, "stored_placement", noting)
    with shared_device.create_context_from_binary(binary) as context:
        profile = shared_device.backend.create_profile("detailed")
        context.graph("maps").execute({"x": np.zeros((1, SIDE, SIDE, CHANNELS), np.float32)}, profile=profile)
        assert profile.events()
    chip = read_binary(binary).packed("maps").chip_program()
    assert chip is not None
    assert used == [chip.placed]


def test_the_utility_tells_operations_and_paged_bytes(shared_device: htp.Device, tmp_path: Path) -> None:
    path = tmp_path / "maps.bin"
    path.write_bytes(binary_of(shared_device, vtcm_mb=1))
    chip = read_binary(path.read_bytes()).packed("maps").chip_program()
    assert chip is not None
    result = CliRunner().invoke(app, ["context-binary-utility", "--context_binary", str(path), "--check"])
    assert result.exit_code == 0, result.output
    assert f"{chip.operations:,}" in result.output


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("operations", b"x"),
        ("operations", b""),
        ("operations", b"\xff" * 48),
        ("ranges", b"\xff" * 64),
        ("waiting", b"x"),
        ("waiting", b"\xff" * 16),
        ("vtcm_bytes", 1),
        ("vtcm_bytes", -1),
        ("kernels", []),
        ("free_after", [1 << 20]),
        ("handed_over", [1 << 20]),
    ],
)
def test_nonsense_is_refused(key: str, value: object) -> None:
    program = compiled(8)
    words = msgspec.msgpack.decode(pack_chip_program(program, placed_of(program)))
    words[key] = value
    with pytest.raises(BadBinary):
        read_chip_program(memoryview(msgspec.msgpack.encode(words)))
