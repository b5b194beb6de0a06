"""Arguments: what a signature seems to want, by name and type of each parameter, and what nobody should give."""

from __future__ import annotations

import inspect
import math
import random
import re
from collections.abc import Callable
from typing import Any

import numpy as np

import openhtp as htp

_HUGE = (2**31 - 1, 10**18, 2**63 - 1, 2**63, 2**64, 10**30, 10**5000, 1 << 40)
_NAMES = ("x", "y", "g", "a", "b", "relu", "out", "input", "")
_OPS = ("Relu", "ElementWiseAdd", "Conv2d", "Reshape", "Softmax", "MatMul", "nothing")
_SOCS = ("SM8650", "SM8550", "SM8750", "SM8450")
_PRIORITIES = ("low", "normal", "normal_high", "high", 0, 100, 200, htp.Priority.HIGH)
_KINDS = ("app_write", "app_read", "native", "static", "optional_app_write", 0, 1, htp.TensorKind.NULL)
_DTYPES = ("float32", "ufixed8", "int32", "float16", "bool8", "sfixed16", np.float32, htp.DType.parse("float32"))


class _Odd:
    """Answers every protocol by raising; what it raises is the caller's own affair."""

    def __iter__(self) -> Any:
        raise RuntimeError("an iterator that raises")

    def __index__(self) -> int:
        raise RuntimeError("an index that raises")

    def __array__(self, *args: object, **kwargs: object) -> Any:
        raise RuntimeError("an array that raises")

    def __repr__(self) -> str:
        return "<odd>"


def hostile(rng: random.Random) -> Any:
    """Something that fits nowhere."""
    return rng.choice(_HOSTILE)(rng)


def _ring(_: random.Random) -> list[Any]:
    ring: list[Any] = [1]
    ring.append(ring)
    return ring


_HOSTILE: tuple[Callable[[random.Random], Any], ...] = (
    lambda rng: None,
    lambda rng: rng.choice((True, False)),
    lambda rng: rng.choice((math.nan, math.inf, -math.inf, -0.0, 1e308, 5e-324, 1.5)),
    lambda rng: rng.choice((-1, 0, 1, -(2**31), -(2**63), -(10**30), *_HUGE)),
    lambda rng: rng.choice(("", "\ud800", "\0", "a\0b", "n" * 70_000, "../../etc", "\u202e", "12", "nan", " ")),
    lambda rng: rng.choice((b"", b"ab", bytes(100), bytearray(3), memoryview(b"xyz"))),
    lambda rng: rng.choice(([], {}, set(), (), [[]], {"x": None}, {None: 1}, {1: {2: 3}}, range(3))),
    lambda rng: rng.choice((object(), int, len, lambda: None, NotImplemented, ..., iter([1]), 1 + 2j)),
    _ring,
    lambda rng: np.zeros(rng.choice(((), (0,), (1, 8), (8, 1), (3,), (1, 8, 1))), rng.choice(_ODD_DTYPES)),
    lambda rng: np.arange(16, dtype=np.float32)[::2].reshape(1, 8),
    lambda rng: np.broadcast_to(np.float32(1), (1, 8)),
    lambda rng: np.array([None, object()], object),
    lambda rng: np.array(["text"]),
    lambda rng: np.datetime64("2020"),
    lambda rng: np.float32(3),
    lambda rng: _Odd(),
)
_ODD_DTYPES = ("f4", ">f4", "f8", "u1", "i8", "c8", "?", "S3", "V0", [("a", "f4")], "M8[s]", "f2")


def array(rng: random.Random, shape: tuple[int, ...] = (1, 8), dtype: Any = np.float32) -> Any:
    """An array that fits, more often than not."""
    made = np.ones(shape, dtype)
    twist = rng.random()
    if twist < 0.05:
        made.flags.writeable = False
    elif twist < 0.1:
        made = np.asfortranarray(made)
    elif twist < 0.15:
        made = made.astype(">f4" if made.dtype == np.float32 else np.float64)
    elif twist < 0.2:
        made = made.reshape(-1)
    return made


class Guesser:
    """Guesses arguments. ``pick`` finds an object of a class among those that live, or lived."""

    def __init__(self, rng: random.Random, classes: dict[str, type], pick: Callable[[type], Any]) -> None:
        self._rng = rng
        self._classes = classes
        self._pick = pick
        self.by_name: dict[str, Callable[[Any], Any]] = {
            "name": lambda _: rng.choice(_NAMES) + rng.choice(("", "", str(rng.randrange(50)))),
            "op": lambda _: rng.choice(_OPS),
            "shape": lambda _: rng.choice(((1, 8), [1, 8], (8,), (2, 0), (1, 2, 3, 4), (1,) * 9, (10**6, 10**6))),
            "dtype": lambda _: rng.choice(_DTYPES),
            "kind": lambda _: rng.choice(_KINDS),
            "priority": lambda _: rng.choice(_PRIORITIES),
            "soc": lambda _: rng.choice(_SOCS),
            "platform": lambda _: rng.choice(("linux", "windows", "android")),
            "policy": lambda _: rng.choice(("strict", "edf", "fair")),
            "transport": lambda _: rng.choice(("rpc", "rpc", "inprocess")),
            "precision": lambda _: rng.choice(("float16", "float32", "w8a8")),
            "params": lambda _: rng.choice(({}, None, {"axis": 0}, {"nothing": 1})),
            "timeout": lambda _: rng.choice((0, 0.01, 0.2, -1)),
            "timeout_us": lambda _: rng.choice((1, 100, 10**5, None)),
            "duration_us": lambda _: rng.choice((1, 50.5, 2000)),
            "eviction_us": lambda _: rng.choice((0, 10)),
            "level": lambda _: rng.choice(("basic", "detailed", "verbose", "error", 1, 2)),
            "queue_depth": lambda _: rng.choice((1, 2, 10, 300, 301)),
            "nbytes": lambda _: rng.choice((1, 64, 4096, 1 << 20)),
            "offset": lambda _: rng.choice((0, 64, 1, -64, 1 << 20)),
            "data": lambda _: array(rng),
            "inputs": self._feeds,
            "outputs": self._targets,
        }

    def arguments(self, owner: Any, parameters: tuple[inspect.Parameter, ...]) -> tuple[list[Any], dict[str, Any]]:
        """Values for a call; each may be hostile, and those with a default may be left out."""
        rng = self._rng
        given: list[Any] = []
        named: dict[str, Any] = {}
        for parameter in parameters:
            optional = parameter.default is not inspect.Parameter.empty
            if optional and rng.random() < 0.5:
                continue
            value = hostile(rng) if rng.random() < 0.15 else self.guess(owner, parameter)
            if parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
                given.append(value)
            else:
                named[parameter.name] = value
        return given, named

    def guess(self, owner: Any, parameter: inspect.Parameter) -> Any:
        """Something that the parameter may mean."""
        if parameter.name in self.by_name:
            return self.by_name[parameter.name](owner)
        words = re.findall(r"\w+", str(parameter.annotation))
        known = [word for word in words if word in self._classes or word in _BY_TYPE]
        if not known:
            return hostile(self._rng)
        word = self._rng.choice(known)
        if word in self._classes:
            return self._pick(self._classes[word])
        return _BY_TYPE[word](self._rng)

    def _feeds(self, owner: Any) -> Any:
        """Inputs of a graph: by name, id or tensor; arrays or registered memory."""
        if not isinstance(owner, htp.Graph):
            return [self._pick(htp.Tensor)] if self._rng.random() < 0.7 else ["x"]
        return {self._key(tensor): self._value(tensor) for tensor in owner.inputs}

    def _targets(self, owner: Any) -> Any:
        if not isinstance(owner, htp.Graph):
            return [self._pick(htp.Tensor)] if self._rng.random() < 0.7 else ["y"]
        if self._rng.random() < 0.5:
            return None
        return {self._key(tensor): self._value(tensor) for tensor in owner.outputs}

    def _key(self, tensor: htp.Tensor) -> Any:
        return self._rng.choice((tensor.name, tensor.name, tensor.name, tensor.id, tensor))

    def _value(self, tensor: htp.Tensor) -> Any:
        twist = self._rng.random()
        if twist < 0.1:
            return self._pick(htp.Mem)
        if twist < 0.2:
            memory = self._pick(htp.Mem)
            try:
                return memory.array(tensor)
            except htp.QnnError:
                return memory
        if twist < 0.25:
            return hostile(self._rng)
        return array(self._rng, tensor.spec.shape, tensor.spec.dtype.numpy)


_BY_TYPE: dict[str, Callable[[random.Random], Any]] = {
    "int": lambda rng: rng.choice((0, 1, 2, 3, 8, 64, 100)),
    "float": lambda rng: rng.choice((0.0, 0.5, 1, 10)),
    "bool": lambda rng: rng.random() < 0.5,
    "str": lambda rng: rng.choice(_NAMES),
    "bytes": lambda rng: rng.choice((b"", b"OHTP", rng.randbytes(64))),
    "None": lambda rng: None,
    "Encoding": lambda rng: htp.ScaleOffset(0.1, -rng.randrange(200)),
    "Path": lambda rng: rng.choice(("/nonexistent", "/dev/null", "/", "/dev/zero")),
    "PathLike": lambda rng: rng.choice(("/nonexistent", "/dev/null", "/", "/dev/zero")),
    "ArrayLike": array,
    "NDArray": array,
    "Array": array,
    "Iterable": lambda rng: rng.choice(([], [1], [True], ["g"], (1, 8))),
    "Sequence": lambda rng: rng.choice(([], [1], ["x"], (1, 8))),
    "tuple": lambda rng: rng.choice(((), (1,), (1, 8), (0.1, 0.2))),
    "list": lambda rng: rng.choice(([], [1], ["x"])),
    "Mapping": lambda rng: rng.choice(({}, {"x": 1}, {"x": array(rng)})),
    "Values": lambda rng: rng.choice(({}, {"x": array(rng)})),
    "Callable": lambda rng: lambda *_: None,
    "Notify": lambda rng: lambda *_: None,
    "object": lambda rng: rng.choice((None, 1, "x")),
    "Any": lambda rng: rng.choice((None, 1, "x")),
    "type": lambda rng: rng.choice((int, np.float32, np.uint8)),
}
