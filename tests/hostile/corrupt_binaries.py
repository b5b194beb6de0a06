"""Context binaries that are damaged in any way: each is an error when it is loaded, and nothing worse."""

from __future__ import annotations

import random
import struct
import tracemalloc
import zlib
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import numpy as np

import openhtp as htp
from openhtp import onnx, zoo
from openhtp.program import container
from openhtp.program.binary import read_binary
from openhtp.runtime.binaries.opening import check_data
from tests.conftest import relu_graph
from tests.program.forging import parts_of, put_together

Corruption = Callable[[random.Random, bytes], bytes]

# Objects that any look at a file takes, however small that is.
_SLACK = 512 << 10


def good_binary(device: htp.Device) -> bytes:
    """Two prepared graphs, one that has float forms of its weights made; two of floats, one of weights in 4 bits;
    two that share the memory of their updateable weights; one without weights."""
    rng = np.random.default_rng(0)
    with device.create_context(lora_weight_sharing_enabled=True) as context:
        for name, activation in (("net", "u8"), ("wide", "u16")):
            model = zoo.quantized(zoo.MODELS["small_cnn"](), activation, samples=2)
            context.compose_graph(onnx.load(model), name).finalize()
        for name in ("dense", "other"):
            graph = context.create_graph(name)
            x = graph.add_tensor("x", (1, 64), "float32", kind="app_write")
            w = graph.add_tensor("w", (64, 64), "float32", data=rng.normal(size=(64, 64)).astype(np.float32))
            y = graph.add_tensor("y", (1, 64), "float32", kind="app_read")
            graph.add_node("FullyConnected", inputs=[x, w], outputs=[y])
            graph.finalize()
        for name, rows in (("thin", 64), ("thinner", 32)):
            _updateable_graph(context, name, rng.normal(size=(rows, 64)).astype(np.float32))
        _narrow_graph(context, rng.integers(-8, 8, (128, 64)).astype(np.int8))
        relu_graph(context, "relu")
        return context.get_binary()


def _updateable_graph(context: htp.Context, name: str, weights: np.ndarray) -> None:
    graph = context.create_graph(name)
    x = graph.add_tensor("x", (1, 64), "float32", kind="app_write")
    w = graph.add_tensor("w", weights.shape, "float32", kind="updateable_static", data=weights)
    y = graph.add_tensor("y", (1, len(weights)), "float32", kind="app_read")
    graph.add_node("FullyConnected", inputs=[x, w], outputs=[y])
    graph.finalize()


def _narrow_graph(context: htp.Context, weights: np.ndarray) -> None:
    quant = htp.ScaleOffset(0.1, 0)
    graph = context.create_graph("narrow", weights_packing=True)
    x = graph.add_tensor("x", (1, 64), "ufixed8", quant=quant, kind="app_write")
    w = graph.add_tensor("w", weights.shape, "sfixed8", quant=quant, data=weights)
    y = graph.add_tensor("y", (1, 128), "ufixed8", quant=quant, kind="app_read")
    graph.add_node("FullyConnected", inputs=[x, w], outputs=[y])
    graph.finalize()


def flipped(rng: random.Random, binary: bytes) -> bytes:
    """Bits anywhere: one, or a few."""
    data = bytearray(binary)
    for _ in range(rng.choice((1, 1, 1, 2, 8))):
        data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
    return bytes(data)


def overwritten(rng: random.Random, binary: bytes) -> bytes:
    """A run of other bytes, or of zeros."""
    begin, length = rng.randrange(len(binary)), rng.choice((1, 8, 64, 4096))
    new = bytes(length) if rng.random() < 0.5 else rng.randbytes(length)
    return (binary[:begin] + new + binary[begin + length :])[: max(len(binary), begin + length)]


def cut(rng: random.Random, binary: bytes) -> bytes:
    """A beginning, or all without a piece in the middle."""
    end = rng.randrange(len(binary))
    return binary[:end] if rng.random() < 0.6 else binary[:end] + binary[end + rng.choice((1, 64, 4096)) :]


def longer(rng: random.Random, binary: bytes) -> bytes:
    """Something more at the end, or in the middle."""
    place = rng.choice((len(binary), rng.randrange(len(binary))))
    return binary[:place] + bytes(rng.choice((1, 64, 4096))) + binary[place:]


def hostile_sizes(rng: random.Random, binary: bytes) -> bytes:
    """Sizes that say something else, with the checksum of the preamble right again."""
    head = bytearray(binary[: container.PREAMBLE_BYTES])
    value = rng.choice((0, 1, 63, 4096, len(binary) + 4096, 1 << 31, 1 << 40, (1 << 63) - 1, (1 << 64) - 1))
    struct.pack_into("<Q", head, rng.choice((16, 24)), value)
    head[-4:] = struct.pack("<I", zlib.crc32(head[:-4]))
    return bytes(head) + binary[container.PREAMBLE_BYTES :]


def hostile_sections(rng: random.Random, binary: bytes) -> bytes:
    """A section says that it has another size, with all checksums of the header right."""
    header, sections = parts_of(binary)
    record = rng.choice(header["sections"])
    record[0] = rng.choice((0, record[0] + 1, record[0] + 4096, 1 << 31, 1 << 40, (1 << 62) - 1))
    return put_together(header, sections, measure=False)


def swapped_pages(rng: random.Random, binary: bytes) -> bytes:
    """Two pieces of the file exchanged, as a bad copy would."""
    one, other = rng.sample(range(len(binary) // 4096), 2)
    pages = [binary[place : place + 4096] for place in range(0, len(binary), 4096)]
    pages[one], pages[other] = pages[other], pages[one]
    return b"".join(pages)


def swapped_sections(rng: random.Random, binary: bytes) -> bytes:
    """Two sections exchanged together with what the header says of them, whose checksum is right."""
    header, sections = parts_of(binary)
    one, other = rng.sample(range(len(sections)), 2)
    sections[one], sections[other] = sections[other], sections[one]
    return put_together(header, sections)


def repeated_section(rng: random.Random, binary: bytes) -> bytes:
    """One section in the place of another, with right checksums, or added to the file."""
    header, sections = parts_of(binary)
    if rng.random() < 0.7:
        one, other = rng.sample(range(len(sections)), 2)
        sections[one] = sections[other]
        return put_together(header, sections)
    return put_together(header, [*sections, rng.choice(sections)], measure=False)


CORRUPTIONS: tuple[Corruption, ...] = (
    flipped,
    flipped,
    flipped,
    overwritten,
    cut,
    longer,
    hostile_sizes,
    hostile_sections,
    swapped_pages,
    swapped_sections,
    repeated_section,
)


def attack(device: htp.Device, rounds: int, seed: int, folder: Path) -> Counter[str]:
    """Load so many damaged binaries; returns how many errors of which name there were. Asserts all else."""
    rng = random.Random(seed)
    good = good_binary(device)
    path = folder / "damaged.bin"
    found: Counter[str] = Counter()
    done = 0
    while done < rounds:
        corruption = rng.choice(CORRUPTIONS)
        damaged = corruption(rng, good)
        if damaged == good:
            continue
        done += 1
        where = f"{corruption.__name__}, seed {seed}, round {done}"
        if done % 20 == 0:
            _check_memory(damaged, where)
        given: bytes | Path = damaged
        if done % 2:
            path.write_bytes(damaged)
            given = path
        try:
            context = device.create_context_from_binary(given)
        except htp.QnnError as error:
            if not isinstance(error, htp.BadBinary):
                raise AssertionError(where) from error
            found[error.name] += 1
        else:
            context.free()
            raise AssertionError(f"{where}: a damaged binary was loaded")
    assert device.restarts == 0
    with device.create_context_from_binary(good) as context:
        context.graph("relu").execute({"x": np.zeros(context.graph("relu").inputs[0].shape, np.float32)})
    return found


def _check_memory(damaged: bytes, where: str) -> None:
    """Whoever looks at all of it takes no more than twice its size."""
    tracemalloc.start()
    try:
        check_data(read_binary(damaged))
    except htp.BadBinary:
        pass
    finally:
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak <= 2 * len(damaged) + _SLACK, f"{where}: {peak} bytes for a file of {len(damaged)}"
