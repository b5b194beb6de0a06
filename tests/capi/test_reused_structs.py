"""Structures that a client changes in place, or whose dimensions it changes: each call is answered as if new."""

from __future__ import annotations

import ctypes
import dataclasses
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.capi.reused_structs import BYTES, SHAPE, UNTOUCHED, AddClient, StructFuzz, TensorStructs

INVALID_TENSOR = 6004
pytestmark = pytest.mark.usefixtures("way")


@pytest.fixture
def client(lib_dir: Path) -> Iterator[AddClient]:
    made = AddClient(lib_dir)
    yield made
    made.free()


@pytest.fixture
def structs(client: AddClient) -> TensorStructs:
    """Structures that were executed some times, with room for two batches."""
    made = TensorStructs(3)
    made.write([dataclasses.replace(words, size=2 * BYTES) for words in client.words()])
    for _ in range(4):
        assert client.execute(made)[0] == 0
    return made


def set_dims(structs: TensorStructs, *dims: int) -> None:
    for room in structs.dims:
        room[:4] = dims


def test_a_batch_that_grows_in_place_is_computed_whole(client: AddClient, structs: TensorStructs) -> None:
    for batch in (2, 1, 2):
        set_dims(structs, batch, *SHAPE[1:])
        code, written = client.execute(structs)
        assert code == 0
        result = np.frombuffer(written, np.uint8)
        wanted = client.expected(batch)
        assert np.abs(result[: wanted.size].astype(int) - wanted.astype(int)).max() <= 1
        assert (result[wanted.size :] == UNTOUCHED).all()


@pytest.mark.parametrize("dims", [(7, 4, 4, 8), (1, 4, 4, 9), (0, 4, 4, 8), (0xFFFFFFFF, 4, 4, 8)])
def test_wrong_dimensions_are_refused_wherever_they_were_right_before(
    client: AddClient, structs: TensorStructs, dims: tuple[int, ...]
) -> None:
    set_dims(structs, *dims)
    code, written = client.execute(structs)
    assert code == INVALID_TENSOR
    assert set(written) == {UNTOUCHED}
    set_dims(structs, *SHAPE)
    assert client.execute(structs)[0] == 0


def test_one_tensor_of_another_batch_is_refused(client: AddClient, structs: TensorStructs) -> None:
    structs.dims[1][0] = 2
    assert client.execute(structs)[0] == INVALID_TENSOR


def test_dimensions_that_are_gone_are_refused(client: AddClient, structs: TensorStructs) -> None:
    library = ctypes.CDLL(None)
    library.mmap.restype = ctypes.c_void_p
    library.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
    library.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    page = library.mmap(None, 4096, 3, 0x22, -1, 0)
    (ctypes.c_uint32 * 4).from_address(page)[:] = SHAPE
    structs.tensors[0].dims = page
    for _ in range(3):
        assert client.execute(structs)[0] == 0
    library.munmap(page, 4096)
    code, written = client.execute(structs)
    assert code != 0
    assert set(written) == {UNTOUCHED}


def test_dimensions_of_another_rank_are_not_looked_at(client: AddClient, structs: TensorStructs) -> None:
    structs.tensors[0].rank, structs.tensors[0].dims = 3, 0x1000
    for _ in range(3):
        assert client.execute(structs)[0] == 0


@pytest.mark.hostile
@pytest.mark.parametrize("seed", range(3))
def test_what_changes_behind_a_pointer_is_seen(client: AddClient, seed: int) -> None:
    fuzz = StructFuzz(client, seed)
    fuzz.run(300)
    assert fuzz.codes[0] > 30
    assert fuzz.codes[INVALID_TENSOR] > 30
