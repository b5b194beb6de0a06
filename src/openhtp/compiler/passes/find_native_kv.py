"""Native KV caches: recognises the one structure that an HTP computes on tiles, and refuses others with a reason.

Per head: ``idx = Add(cache_index, iota)``; ``K' = ScatterElements(past_key, idx, k_new, axis 3)``; ``V' =
ScatterElements(past_value, Transpose(idx), v_new, axis 2)``; both are read by a MatMul. The vendor's library
accepts most of the graphs that are refused here without a word, and computes something else.
"""

from __future__ import annotations

import dataclasses
from typing import NoReturn

import numpy as np

from openhtp.core import status as st
from openhtp.core.dtype import DType
from openhtp.core.enumerations import DataFormat
from openhtp.core.errors import InvalidArgument, UnsupportedFeature
from openhtp.core.hmx_layout import BLOCK, HEAD_DIM_MULTIPLE, MOST_NEW_TOKENS, sizes_problem
from openhtp.core.quant import ScaleOffset
from openhtp.core.tensor import TensorSpec
from openhtp.core.units import MIB
from openhtp.program.htp_program import HtpProgram, Kernel, MaskInput, NativeKv, NativeTensor

_NATIVE = DataFormat.HMX_WEIGHT_LAYOUT
_FIRST_ARCH = 69
# v69 supports the structure with 16-bit activations only.
_NARROW_ARCH = 69
_SMALL_VTCM, _SMALL_VTCM_CONTEXT = 2 * MIB, 16384
_STRUCTURE = "new tokens joined by ScatterElements, head by head, at cache_index plus a constant iota"
# An added mask that subtracts less than this lets a position take part.
_LETS_THROUGH = -10.0


def find_native_kv(program: HtpProgram) -> HtpProgram:
    """Describe the program's use of native caches, if it has any; raises for uses that an HTP cannot compute."""
    ends = [spec for spec in (*program.inputs, *program.outputs) if spec.data_format is _NATIVE]
    inner = [spec for spec in program.tensors.values() if spec.data_format is _NATIVE and spec not in ends]
    if inner:
        _unsupported(f"tensor {inner[0].name!r} has data format hmx_weight_layout; it is for KV caches only")
    if not ends:
        return program
    return dataclasses.replace(program, native_kv=_Search(program).run())


@dataclasses.dataclass(frozen=True, slots=True)
class _Scatter:
    """One use of a cache: the input that it reads, its node, and the input with the position of new tokens."""

    cache: TensorSpec
    side: str
    node: Kernel
    index: str
    tokens: int


class _Search:
    def __init__(self, program: HtpProgram) -> None:
        self._program = program
        self._tensors = program.tensors
        self._uses = program.def_use()

    def run(self) -> NativeKv:
        """All native tensors of the program. Raises with the reason if it cannot have any."""
        self._check_chip()
        scatters = [scatter for spec in self._program.inputs for scatter in self._uses_of(spec)]
        native = [scatter for scatter in scatters if scatter.cache.data_format is _NATIVE]
        self._check_all_or_none(scatters)
        if not native:
            outputs = [spec.name for spec in self._program.outputs if spec.data_format is _NATIVE]
            _unsupported(f"output {outputs[0]!r} is native, no input is; a native cache is an input first")
        for scatter in native:
            self._check_cache(scatter)
        first = native[0]
        self._check_alike(first, native)
        return NativeKv(
            index=first.index,
            tokens=first.tokens,
            context=_context(first),
            caches=tuple({f.cache.name: NativeTensor(f.cache.name, f.side) for f in native}.values()),
            outputs=tuple(self._outputs(native)),
            mask=self._mask(first),
            strict=bool(self._program.options.strict_kv),
        )

    def _check_chip(self) -> None:
        soc = self._program.soc
        if soc.arch < _FIRST_ARCH:
            _unsupported(
                f"native KV needs v{_FIRST_ARCH} or later; {soc.name} is {soc.arch_name}: use flat KV (dense)"
            )

    def _uses_of(self, spec: TensorSpec) -> list[_Scatter]:
        """Every ScatterElements that puts tokens into an input, or into one head of the input."""
        native = spec.data_format is _NATIVE
        scatters = []
        for reader in self._uses.readers(spec.name):
            heads = [reader]
            if reader.op in ("StridedSlice", "Split"):
                heads = [other for name in reader.outputs for other in self._uses.readers(name)]
            for node in heads:
                if node.op == "ScatterElements" and self._reads_first(node, spec, reader):
                    scatter = self._scatter(spec, node)
                    scatters += [scatter] if scatter is not None else []
                elif native:
                    self._refuse_reader(spec, node)
        return scatters

    def _reads_first(self, node: Kernel, spec: TensorSpec, reader: Kernel) -> bool:
        return node.nodes[0].inputs[0] in (spec.name, *reader.outputs)

    def _refuse_reader(self, spec: TensorSpec, node: Kernel) -> NoReturn:
        if node.op == "Concat":
            _unsupported(f"native cache {spec.name!r} is joined by Concat {node.name!r}; expected {_STRUCTURE}")
        _unsupported(
            f"{spec.name!r} has data format hmx_weight_layout and is read by {node.op} {node.name!r}; it is for KV"
            f" caches only: expected {_STRUCTURE}"
        )

    def _scatter(self, spec: TensorSpec, node: Kernel) -> _Scatter | None:
        """A scatter into a cache; None if a flat input is scattered into for some other reason."""
        native = spec.data_format is _NATIVE
        resolved = self._program.source.resolved(node.nodes[0])
        data, axis = resolved.input(0), resolved.params["axis"]
        if data.rank != 4 or data.shape[0] * data.shape[1] != 1 or axis not in (2, 3):
            if native:
                _unsupported(
                    f"ScatterElements {node.name!r} takes {list(data.shape)} of {spec.name!r} on axis {axis};"
                    " expected one head: [1, 1, head_dim, context] on axis 3, [1, 1, context, head_dim] on axis 2"
                )
            return None
        side = "key" if axis == 3 else "value"
        index = self._index(spec, node, side)
        return None if index is None else _Scatter(spec, side, node, index, resolved.shape(2)[axis])

    def _index(self, spec: TensorSpec, node: Kernel, side: str) -> str | None:
        """The input that says where new tokens go."""
        native = spec.data_format is _NATIVE
        positions = node.nodes[0].inputs[1]
        if side == "value":
            turn = self._uses.maker(positions)
            if turn is None or turn.op != "Transpose" or self._perm(turn) != (0, 1, 3, 2):
                if native:
                    _unsupported(
                        f"the index of ScatterElements {node.name!r} is not the transposed index of the keys;"
                        " expected Transpose (0, 1, 3, 2) of it. A library would read the values row by row"
                    )
                return None
            positions = turn.nodes[0].inputs[0]
        index = self._counted(positions)
        if index is None and native:
            _unsupported(
                f"the index of ScatterElements {node.name!r} is not cache_index plus iota; expected"
                " ElementWiseAdd of an input of one number and a constant [1, 1, head_dim, tokens]: 0, 1, .., or"
                " for one token ElementWiseMultiply by ones"
            )
        return index

    def _perm(self, turn: Kernel) -> tuple[int, ...]:
        return tuple(self._program.source.resolved(turn.nodes[0]).ints("perm"))

    def _counted(self, positions: str | None) -> str | None:
        """The input of one number to which a constant that counts is added to make this tensor."""
        add = self._uses.maker(positions)
        if add is not None and add.op == "ElementWiseMultiply":
            return self._repeated(add)
        if add is None or add.op not in ("ElementWiseAdd", "ElementWiseBinary"):
            return None
        if self._program.source.resolved(add.nodes[0]).params.get("operation", 0) != 0:
            return None
        start, iota = add.nodes[0].inputs[:2]
        stored = self._program.statics.get(iota or "")
        if (
            stored is None
            or stored.ndim != 4
            or not np.array_equal(stored, np.broadcast_to(np.arange(stored.shape[3]), stored.shape))
        ):
            return None
        return self._root(start)

    def _repeated(self, product: Kernel) -> str | None:
        """The input of one number that is multiplied by ones: the position of one token needs no iota."""
        start, ones = product.nodes[0].inputs[:2]
        stored = self._program.statics.get(ones or "")
        if stored is None or stored.ndim != 4 or stored.shape[3] != 1 or not (stored == 1).all():
            return None
        return self._root(start)

    def _root(self, name: str | None) -> str | None:
        maker = self._uses.maker(name)
        while maker is not None and maker.op == "Reshape":
            name = maker.nodes[0].inputs[0]
            maker = self._uses.maker(name)
        spec = self._tensors.get(name or "")
        if maker is not None or spec is None or not spec.kind.is_input or spec.elements != 1:
            return None
        return spec.name

    # Rules for each cache, and for all together

    def _check_all_or_none(self, scatters: list[_Scatter]) -> None:
        names = list(dict.fromkeys(scatter.cache.name for scatter in scatters))
        flat = [name for name in names if self._tensors[name].data_format is not _NATIVE]
        if flat and len(flat) < len(names):
            raise InvalidArgument(
                f"{flat[0]!r} is flat, {len(names) - len(flat)} others are native; expected all KV tensors of all"
                " layers in the native format, or none",
                st.QNN_GRAPH_ERROR_INVALID_TENSOR,
            )

    def _check_cache(self, scatter: _Scatter) -> None:
        cache = scatter.cache
        if cache.dtype is not DType.UFIXED_POINT_8 or not isinstance(cache.quant, ScaleOffset):
            _invalid(f"native KV needs ufixed8 with offset -128; {cache.name!r} is {cache.dtype.short}")
        if cache.quant.offset != -128:
            _invalid(
                f"native KV needs ufixed8 with offset -128; {cache.name!r} has {cache.quant.offset}. Requantize KV"
                " symmetrically"
            )
        context, head_dim = cache.shape[-2:] if scatter.side == "value" else cache.shape[:-3:-1]
        problem = sizes_problem(context, head_dim)
        if problem is not None:
            _invalid(f"native cache {cache.name!r} {list(cache.shape)}: {problem}")
        soc = self._program.soc
        vtcm = min(self._program.options.vtcm_bytes or soc.vtcm_bytes, soc.vtcm_bytes)
        if vtcm <= _SMALL_VTCM and context >= _SMALL_VTCM_CONTEXT:
            _unsupported(
                f"a native context of {context} does not fit {vtcm / MIB:.3g} MB of VTCM ({soc.name}); expected"
                f" less than {_SMALL_VTCM_CONTEXT}"
            )
        if scatter.tokens > MOST_NEW_TOKENS:
            _unsupported(
                f"AR-{scatter.tokens} is more than the {MOST_NEW_TOKENS} tokens that a native cache takes in one"
                f" pass; export AR-{MOST_NEW_TOKENS} or less"
            )
        self._check_new(scatter, head_dim)
        self._check_reader(scatter)

    def _check_new(self, scatter: _Scatter, head_dim: int) -> None:
        """New values that take more than one tile have to be made by an op."""
        name = scatter.node.nodes[0].inputs[2] or ""
        maker = self._uses.maker(name)
        while maker is not None and (maker.op == "Reshape" or (maker.op == "Transpose" and scatter.tokens == 1)):
            name = maker.nodes[0].inputs[0] or ""
            maker = self._uses.maker(name)
        if scatter.side == "value" and head_dim > HEAD_DIM_MULTIPLE and maker is None:
            _unsupported(
                f"new values of {scatter.cache.name!r} come from the client as they are ({name!r}), with head_dim"
                f" {head_dim}; an HTP would read them row by row: expected an op that makes them, such as Convert"
            )

    def _check_reader(self, scatter: _Scatter) -> None:
        joined = scatter.node.outputs[0]
        if self._uses.is_output(joined):
            _unsupported(
                f"output {joined!r} is the whole cache with new tokens; expected only the new ones as output"
            )
        for reader in self._uses.readers(joined):
            if reader.op != "MatMul" or reader.nodes[0].inputs[1] != joined:
                _unsupported(
                    f"{scatter.side} cache {scatter.cache.name!r} goes to {reader.op} {reader.name!r};"
                    " expected MatMul"
                )
            left = self._tensors[reader.nodes[0].inputs[0] or ""]
            if self._program.soc.arch == _NARROW_ARCH and left.dtype.bits == 8:
                _unsupported(
                    f"native KV with 8-bit activations ({left.name!r}) needs v73 or later;"
                    f" {self._program.soc.name} is {self._program.soc.arch_name}: use 16-bit activations"
                )

    def _check_alike(self, first: _Scatter, native: list[_Scatter]) -> None:
        for scatter in native:
            if (scatter.index, scatter.tokens, _context(scatter)) != (first.index, first.tokens, _context(first)):
                _unsupported(
                    f"{scatter.cache.name!r} takes {scatter.tokens} tokens at {scatter.index!r} in a context of"
                    f" {_context(scatter)}, {first.cache.name!r} {first.tokens} at {first.index!r} in"
                    f" {_context(first)}; expected one of each for all layers"
                )
        sides = {scatter.side for scatter in native}
        if len(sides) == 1:
            _invalid(f"only the {sides.pop()} caches are native; expected keys and values of all layers, or none")
        for reader in self._uses.readers(first.index):
            if reader.op != "Reshape" and self._counted(reader.outputs[0]) is None:
                _unsupported(
                    f"{first.index!r} is also read by {reader.op} {reader.name!r}; the position of new tokens is"
                    f" rounded up to a multiple of {BLOCK}, so nothing else may use it"
                )

    def _outputs(self, native: list[_Scatter]) -> list[NativeTensor]:
        new = {scatter.node.nodes[0].inputs[2]: scatter.side for scatter in native}
        result = []
        for spec in self._program.outputs:
            if spec.data_format is not _NATIVE:
                continue
            maker = self._uses.maker(spec.name)
            parts = maker.nodes[0].inputs if maker is not None and maker.op == "Concat" else (spec.name,)
            sides = {new.get(part) for part in parts}
            side = sides.pop() if len(sides) == 1 else None
            if side is None:
                _unsupported(
                    f"output {spec.name!r} has data format hmx_weight_layout; it is for new keys and values of a"
                    " native cache only"
                )
            tokens = native[0].tokens
            if tokens % BLOCK:
                _invalid(
                    f"output {spec.name!r} is native; AR-{tokens} must give its new KV flat (no multiple of 32)"
                )
            result.append(NativeTensor(spec.name, side))
        return result

    def _mask(self, scatter: _Scatter) -> MaskInput | None:
        """The input that says which positions take part, and how."""
        sizes = (scatter.tokens, _context(scatter))
        for spec in self._program.inputs:
            if spec.shape[-2:] != sizes or spec.data_format is _NATIVE or spec.dtype.is_float:
                continue
            low, high = spec.dtype.integer_range if spec.dtype.is_fixed_point else (0, 255)
            for reader in self._uses.readers(spec.name):
                if reader.op == "ElementWiseEqual":
                    return MaskInput(spec.name, 0, 0)
                if reader.op in ("ElementWiseNotEqual", "ElementWiseSelect"):
                    return MaskInput(spec.name, 1, high)
                if reader.op == "ElementWiseAdd" and isinstance(spec.quant, ScaleOffset):
                    least = int(np.ceil(_LETS_THROUGH / spec.quant.scale - spec.quant.offset))
                    return MaskInput(spec.name, max(low, least), high)
        return None


def _context(scatter: _Scatter) -> int:
    return scatter.cache.shape[-1 if scatter.side == "key" else -2]


def _unsupported(problem: str) -> NoReturn:
    raise UnsupportedFeature(problem, st.QNN_GRAPH_ERROR_UNSUPPORTED_FEATURE)


def _invalid(problem: str) -> NoReturn:
    raise InvalidArgument(problem, st.QNN_GRAPH_ERROR_INVALID_TENSOR)
