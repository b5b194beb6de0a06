"""Memory is read and written safely in both ways: by the kernel's call, and by files in memory."""

from __future__ import annotations

import contextlib
import ctypes
import mmap
import os
import platform
import subprocess
import sys
import threading
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
from tests.waiting import PATIENCE_S

from openhtp.abi import kernel_copies, memory
from openhtp.abi.kernel_copies import CopyWay
from openhtp.core.errors import InvalidArgument

PAGE = mmap.PAGESIZE
_libc: Any = ctypes.CDLL(None)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.mprotect.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

WAYS = {way.name: way for way in (kernel_copies.by_the_kernel(), kernel_copies.by_files())}


OPENED = """
import os
from openhtp.abi import memory
paths = [f"/proc/self/fd/{fd}" for fd in os.listdir("/proc/self/fd")]
links = [os.readlink(path) for path in paths if os.path.islink(path)]
print(memory._way.name, sum("openhtp-copies" in link for link in links))
"""


def test_a_way_that_is_not_needed_holds_no_files() -> None:
    done = subprocess.run([sys.executable, "-c", OPENED], capture_output=True, text=True, check=True)
    name, files = done.stdout.split()
    assert name == "files" or not int(files)


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> CopyWay:
    """Copies are made in one way only."""
    one = WAYS[request.param]
    if not kernel_copies.works(one):
        pytest.skip("this kernel or emulator does not copy in this way")
    for name in ("readv", "writev", "long_readv", "long_writev"):
        monkeypatch.setattr(memory, f"_{name}", getattr(one, name))
    return one


@pytest.fixture
def two_pages(way: CopyWay) -> Iterator[int]:
    """Two pages, of which the second is not there; nobody else's memory can come to lie there."""
    with os.fdopen(os.memfd_create("one page"), "rb") as one_page:
        os.ftruncate(one_page.fileno(), PAGE)
        rights = mmap.PROT_READ | mmap.PROT_WRITE
        address = _libc.mmap(None, 2 * PAGE, rights, mmap.MAP_PRIVATE, one_page.fileno(), 0)
    yield address
    _libc.munmap(address, 2 * PAGE)


def test_what_is_written_can_be_read(way: CopyWay, two_pages: int) -> None:
    memory.write(two_pages + 5, b"hello", "a word")
    assert memory.read(two_pages + 5, 5, "a word") == b"hello"
    assert memory.BatchedReader([(two_pages + 5, 2), (two_pages + 8, 2)]).read("two pieces") == b"helo"


def test_buffers_are_copied_to_and_from_pieces_of_their_sizes(way: CopyWay, two_pages: int) -> None:
    first, second = bytearray(b"abc"), bytearray(b"defgh")
    copy = memory.ScatteredCopy((first, memoryview(second)))
    copy.aim((two_pages + 7, two_pages + 100))
    assert copy.write()
    assert memory.read(two_pages + 7, 3, "a piece") + memory.read(two_pages + 100, 5, "another") == b"abcdefgh"
    first[:], second[:] = b"---", b"-----"
    assert copy.read()
    assert first + second == b"abcdefgh"
    copy.aim((two_pages + 7, two_pages + PAGE - 2))
    assert not copy.read()
    assert not copy.write()


def test_memory_that_is_partly_missing_is_an_error(way: CopyWay, two_pages: int) -> None:
    with pytest.raises(InvalidArgument, match="not this process's memory"):
        memory.read(two_pages + PAGE - 4, 8, "a number")
    with pytest.raises(InvalidArgument, match="not this process's memory"):
        memory.write(two_pages + PAGE, b"x", "a byte")
    with pytest.raises(InvalidArgument, match="not this process's memory"):
        memory.read(8, 8, "a wild pointer")
    with pytest.raises(InvalidArgument, match="not this process's memory"):
        memory.read((1 << 64) - 64, 8, "a wild pointer")
    assert not memory.PresenceProbe([(two_pages, PAGE + 1)]).holds()
    assert memory.PresenceProbe([(two_pages, PAGE)]).holds()


def test_memory_that_can_only_be_read_is_not_written_to(way: CopyWay, two_pages: int) -> None:
    memory.write(two_pages, b"kept")
    assert _libc.mprotect(two_pages, PAGE, mmap.PROT_READ) == 0
    with pytest.raises(InvalidArgument, match="not this process's memory"):
        memory.write(two_pages, b"lost", "a result")
    assert memory.read(two_pages, 4) == b"kept"


def test_memory_that_may_not_be_read_is_not_read(way: CopyWay, two_pages: int) -> None:
    """What is read after it was found readable, where it lies, would end the process."""
    assert _libc.mprotect(two_pages, PAGE, 0) == 0
    assert not memory.PresenceProbe([(two_pages, 8)]).holds()
    with pytest.raises(InvalidArgument, match="not this process's memory"):
        memory.read(two_pages, 8, "a number")


def test_long_copies(way: CopyWay) -> None:
    source = os.urandom(3 << 20)
    assert memory.read(memory._address(source), len(source), "a file") == source


def test_a_child_reads_its_own_memory(way: CopyWay) -> None:
    """Over a file that both have, one could read what the other copies."""
    value = ctypes.create_string_buffer(b"parent")
    child = os.fork()
    if not child:
        value.value = b"child!"
        os._exit(0 if memory.read(ctypes.addressof(value), 6) == b"child!" else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert memory.read(ctypes.addressof(value), 6) == b"parent"


def copy_files() -> int:
    """How many files for copies this process has open."""
    links = []
    for fd in os.listdir("/proc/self/fd"):
        with contextlib.suppress(OSError):
            links.append(os.readlink(f"/proc/self/fd/{fd}"))
    return sum("openhtp-copies" in link for link in links)


def test_copies_at_once_leave_one_file() -> None:
    """Each thread that copies beside others takes a file of its own, which must not stay open."""
    together = threading.Barrier(4)
    libc: Any = ctypes.CDLL(None)

    def pwrite(*arguments: int) -> int:
        together.wait(PATIENCE_S)
        return int(libc.pwrite(*map(ctypes.c_uint64, arguments)))

    files = kernel_copies.CopyFiles(SimpleNamespace(pread=libc.pread, pwrite=pwrite))
    source = ctypes.create_string_buffer(b"a word")
    before, copied = copy_files(), []

    def copy() -> None:
        target = ctypes.create_string_buffer(6)
        ours, theirs = (kernel_copies.IoVec(ctypes.addressof(buffer), 6) for buffer in (target, source))
        files.readv(0, ctypes.addressof(ours), 1, ctypes.addressof(theirs), 1, 0)
        copied.append(target.raw)

    threads = [threading.Thread(target=copy) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE_S)
    assert copied == [b"a word"] * 4
    assert copy_files() == before + 1


# A filter of the kernel's: load the number of the call, refuse two of them with "not permitted", allow the others.
DENIED = """
import ctypes, struct, sys
refused = {"x86_64": (310, 311), "aarch64": (270, 271)}[sys.argv[1]]
code = [(0x20, 0, 0, 0), *[(0x15, len(refused) - at, 0, number) for at, number in enumerate(refused)],
        (0x06, 0, 0, 0x7FFF0000), (0x06, 0, 0, 0x00050001)]
packed = b"".join(struct.pack("HBBI", *row) for row in code)
lines = ctypes.create_string_buffer(packed)
program = ctypes.create_string_buffer(struct.pack("HxxxxxxQ", len(code), ctypes.addressof(lines)))
libc = ctypes.CDLL(None, use_errno=True)
assert libc.prctl(38, 1, 0, 0, 0) == 0
if libc.prctl(22, 2, ctypes.c_void_p(ctypes.addressof(program))):
    sys.exit(77)
from openhtp.abi import memory
from openhtp.abi.kernel_copies import choose_way
word = ctypes.create_string_buffer(b"a word")
assert memory.read(ctypes.addressof(word), 6) == b"a word"
try:
    memory.read(8, 8, "a wild pointer")
except memory.InvalidArgument:
    print(choose_way().name)
"""


@pytest.mark.skipif(platform.machine() not in ("x86_64", "aarch64"), reason="the calls have other numbers here")
def test_a_container_that_forbids_the_call() -> None:
    """As the default profile of some container runtimes does."""
    done = subprocess.run(
        [sys.executable, "-c", DENIED, platform.machine()], capture_output=True, text=True, check=False
    )
    if done.returncode == 77:
        pytest.skip("this kernel or emulator takes no filter of calls")
    assert (done.returncode, done.stdout.strip()) == (0, "files"), done.stderr
