"""How an engine recognises its own work: a secret of this user, and a fingerprint of all that the work depends on.

Anybody can write a context binary, with any checksum. A prepared form goes to the runtime without having been
lowered here, so it is taken only from the holder of the secret: this user. Why: ``docs/decisions/006``.
"""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import logging
import os
import platform
import secrets
import stat
from functools import cache
from pathlib import Path

from blake3 import blake3

from openhtp.core.version import VERSION
from openhtp.engine.onnxruntime import onnxruntime as ort

log = logging.getLogger(__name__)

KEY_BYTES = 32


@cache
def fingerprint() -> str:
    """A fingerprint of our compiler and lowering, the runtime's optimiser, and the processor."""
    words = (VERSION, _lowering(), ort.__version__, platform.machine(), _processor())
    return hashlib.sha256("\n".join(words).encode()).hexdigest()


def _lowering() -> str:
    """A digest of all code that lowers programs, so that nobody has to remember to raise a version."""
    package = Path(__file__).parents[1]
    digest = hashlib.sha256()
    kinds = ("compiler/**/*.py", "engine/**/*.py", "engine/native/*.c", "ops/**/*.py")
    for path in sorted(path for kind in kinds for path in package.glob(kind)):
        digest.update(f"{path.relative_to(package)} {path.stat().st_size}\n".encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _processor() -> str:
    """Features of the processor; the runtime chooses its kernels by them."""
    with contextlib.suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines():
            if line.startswith(("flags", "Features")):
                return " ".join(sorted(line.partition(":")[2].split()))
    return platform.processor()


def sealed(key: bytes, manifest: bytes) -> bytes:
    """The seal on a manifest."""
    return blake3(manifest, key=key).digest()


def is_own(key: bytes, manifest: bytes, seal: bytes) -> bool:
    """Whether the seal was put on by somebody who has the key."""
    return hmac.compare_digest(sealed(key, manifest), seal)


def key_path() -> Path:
    """Where the secret is: ``OPENHTP_KEY_FILE``, or a file in the user's state directory."""
    chosen = os.environ.get("OPENHTP_KEY_FILE")
    if chosen:
        return Path(chosen)
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return Path(state) / "openhtp" / "prepared.key"


def read_key() -> bytes | None:
    """The secret of this user, made on first use; None where there is no private place for it."""
    path = key_path()
    try:
        with contextlib.suppress(FileNotFoundError):
            return _read_private(path)
        _create(path)
        return _read_private(path)
    except (OSError, ValueError) as error:
        log.info("no key for prepared forms at %s: %s", path, error)
        return None


def _read_private(path: Path) -> bytes:
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK)
    with open(fd, "rb") as file:
        about = os.fstat(fd)
        if not stat.S_ISREG(about.st_mode) or about.st_uid != os.getuid() or about.st_mode & 0o077:
            raise ValueError("it must be a file of this user that nobody else can read (mode 0600)")
        key = file.read(KEY_BYTES + 1)
    if len(key) != KEY_BYTES:
        raise ValueError(f"it must have {KEY_BYTES} bytes")
    return key


def _create(path: Path) -> None:
    """Write a new key beside its path and link it there. Others see all of it or nothing; the first one wins."""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    draft = path.with_name(f"{path.name}.{secrets.token_hex(8)}")
    fd = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
    try:
        with open(fd, "wb") as file:
            file.write(secrets.token_bytes(KEY_BYTES))
        with contextlib.suppress(FileExistsError):
            os.link(draft, path)
    finally:
        draft.unlink()
