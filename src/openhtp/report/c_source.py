"""Saved calls as a C program that makes them again on any ``libQnnHtp.so``, and compares the outputs.

It needs no headers but ours (``openhtp_qnn.h``) and reads data from the file beside it. Signals, profiles, votes
and registered memory are left out with a remark; queued executions are waited for. A recording may come from
anybody: names are only ever text in quotes, and all else is numbers.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from openhtp.core import status as st
from openhtp.core.dtype import DType
from openhtp.core.enumerations import DataFormat, Priority
from openhtp.core.errors import FormatError, QnnError, UnsupportedOp
from openhtp.core.status import Status
from openhtp.core.tensor import TensorKind, TensorSpec
from openhtp.hw.catalog import find_soc
from openhtp.ops import PACKAGE, find_op
from openhtp.program.binary import read_binary
from openhtp.records import calls as cs

Array = npt.NDArray[Any]
Read = Callable[[cs.StoredArray], bytes]
"""The bytes of stored data."""

SOURCE_NAME, HEADER_NAME = "saver_output.c", "openhtp_qnn.h"

_UNDEFINED = 0x7FFFFFFF
_SPARSE = 1
_CALLS_OF_A_FUNCTION = 100
_CODES = {status.name: status.code for status in vars(st).values() if isinstance(status, Status)}
_C_TYPES = {"b": "uint8_t", "i1": "int8_t", "u1": "uint8_t", "i2": "int16_t", "u2": "uint16_t", "i4": "int32_t"}
_C_TYPES |= {"u4": "uint32_t", "i8": "int64_t", "u8": "uint64_t", "f4": "float", "f8": "double", "f2": "uint16_t"}

_HEAD = r"""/* Calls of the QNN API, as they were saved. To make them again:
       gcc -o replay saver_output.c -ldl -lm && ./replay libQnnHtp.so
   The program ends with status 1 if a call is answered otherwise, or an output is too far from the saved one. */
#include <math.h>
#include <string.h>

#include "openhtp_qnn.h"

static const qnn_functions *qnn;
static unsigned char *data; /* params.bin */
static qnn_handle handle[%(handles)d];
static qnn_tensor tensor[%(tensors)d];
static int failures;

static void answered(qnn_code code, qnn_code saved, const char *call)
{
    if (code != saved) {
        printf("%%s answered %%lu; it was %%lu\n", call, (unsigned long)code, (unsigned long)saved);
        failures++;
    }
}

static double half(uint16_t bits)
{
    int exponent = bits >> 10 & 31, fraction = bits & 1023;
    double size = exponent == 31 ? (fraction ? NAN : INFINITY)
                : exponent ? ldexp(1024 + fraction, exponent - 25) : ldexp(fraction, -24);
    return bits >> 15 ? -size : size;
}

static double number(const void *from, uint32_t type, size_t place)
{
    switch (type & 0xff) { /* its bits, written in hexadecimal */
    case 0x08: return (type >> 8) %% 3 == 0 && type >> 8 < 5 ? ((int8_t *)from)[place] : ((uint8_t *)from)[place];
    case 0x16: return type == 0x216 ? half(((uint16_t *)from)[place])
             : (type >> 8) %% 3 == 0 ? ((int16_t *)from)[place] : ((uint16_t *)from)[place];
    case 0x32: return type == 0x232 ? ((float *)from)[place]
             : (type >> 8) %% 3 == 0 ? ((int32_t *)from)[place] : ((uint32_t *)from)[place];
    default: return type == 0x64 ? (double)((int64_t *)from)[place] : (double)((uint64_t *)from)[place];
    }
}

/* Integers may be off by one, floats by a hundredth of the largest. */
static void compare(const char *name, const void *now, const void *then, uint32_t type, size_t count)
{
    double worst = 0, largest = 0;
    for (size_t i = 0; i < count; i++) {
        double a = number(now, type, i), b = number(then, type, i);
        if (a == b || (isnan(a) && isnan(b)))
            continue;
        worst = fmax(worst, isfinite(a - b) ? fabs(a - b) : INFINITY);
    }
    for (size_t i = 0; i < count; i++)
        largest = fmax(largest, isfinite(number(then, type, i)) ? fabs(number(then, type, i)) : 0);
    int real = type == 0x232 || type == 0x216, holds = worst <= (real ? 0.01 * largest : 1);
    printf("%%s: %%zu numbers, at most %%g off%%s\n", name, count, worst, holds ? "" : ": too far");
    failures += !holds;
}

static unsigned char *read_data(const char *path, size_t size)
{
    unsigned char *bytes = malloc(size + 1);
    FILE *file = fopen(path, "rb");
    if (!bytes || !file || fread(bytes, 1, size, file) != size) {
        fprintf(stderr, "%%s cannot be read: expected %%zu bytes\n", path, size);
        exit(2);
    }
    fclose(file);
    return bytes;
}

static void create(qnn_handle graph, qnn_tensor *made, qnn_code saved, const char *call)
{
    answered(qnn->tensor_create(graph, made), saved, call);
}

"""


@dataclass(slots=True)
class _SavedGraph:
    """The known facts about a graph: its tensors, and their places in the program's list."""

    places: dict[str, int] = field(default_factory=dict)
    specs: dict[str, TensorSpec] = field(default_factory=dict)


def c_source(calls: Iterable[cs.Call], read: Read) -> str:
    """The program. ``read`` gives the bytes of parameters and binaries, which the program has to know."""
    listed = list(calls)
    writer = _SourceWriter(read, {call.execution: call for call in listed if isinstance(call, cs.ExecutionEnded)})
    statements = ["".join(f"    {line}\n" for line in writer.lines(call)) for call in listed]
    head = _HEAD % {"handles": writer.handles + 1, "tensors": max(1, writer.tensors)}
    # Functions of a bounded length: a compiler takes long for one of a hundred thousand lines.
    parts, names = [], []
    for number, begin in enumerate(range(0, len(statements), _CALLS_OF_A_FUNCTION)):
        names.append(f"part_{number}")
        body = "".join(statements[begin : begin + _CALLS_OF_A_FUNCTION])
        parts.append(f"static void part_{number}(void)\n{{\n{body}}}\n\n")
    main = [
        "int main(int count, char **words)\n{\n",
        '    qnn = qnn_load(count > 1 ? words[1] : "libQnnHtp.so");\n',
        f'    data = read_data(count > 2 ? words[2] : "{cs.DATA_NAME}", {writer.data_bytes}ull);\n',
        *(f"    {name}();\n" for name in names),
        '    printf("%d differences\\n", failures);\n    return failures != 0;\n}\n',
    ]
    return head + "".join(parts) + "".join(main)


class _SourceWriter:
    """Turns calls into statements, one after the other."""

    def __init__(self, read: Read, ends: dict[int, cs.ExecutionEnded]) -> None:
        self.tensors = self.data_bytes = 0
        self._places_of_handles: dict[int, int] = {}
        self._read = read
        self._ends = ends
        self._graphs: dict[int, _SavedGraph] = {}
        self._backend_of: dict[int, int] = {}
        self._freed: dict[int, str] = {}

    def lines(self, call: cs.Call) -> Iterator[str]:
        """Statements for a call; a remark for one that is not made again."""
        kind = type(call).__name__
        write = _WRITERS.get(kind)
        if write is None:
            if kind not in _SILENT:
                yield f"/* {kind} is left out */"
            return
        yield from write(self, call)

    def _handle(self, number: int) -> str:
        return f"handle[{self._places_of_handles.setdefault(number, len(self._places_of_handles))}]"

    @property
    def handles(self) -> int:
        """How many objects there are."""
        return len(self._places_of_handles)

    def _data(self, stored: cs.StoredArray) -> str:
        self.data_bytes = max(self.data_bytes, stored.offset + stored.nbytes)
        return f"data + {stored.offset}ull"

    def backend(self, call: cs.BackendCreate) -> Iterator[str]:
        yield _answered(f"qnn->backend_create(NULL, NULL, &{self._handle(call.backend)})", call, "backendCreate")
        self._freed[call.backend] = "backend_free(%s)"

    def device(self, call: cs.DeviceCreate) -> Iterator[str]:
        self._backend_of[call.device] = call.backend
        yield from _remarks(call.options, {"soc"})
        soc = call.options.get("soc")
        device = self._handle(call.device)
        if isinstance(soc, str) and _known_soc(soc):
            model = find_soc(soc).soc_model
            yield f"{{ uint32_t chip[] = {{0, 0, {model}, 0}}; qnn_config config = {{0, {{.custom = chip}}}};"
            yield "  const qnn_config *list[] = {&config, NULL};"
            yield "  " + _answered(f"qnn->device_create(NULL, list, &{device})", call, "deviceCreate") + " }"
        else:
            yield _answered(f"qnn->device_create(NULL, NULL, &{device})", call, "deviceCreate")
        self._freed[call.device] = "device_free(%s)"

    def context(self, call: cs.ContextCreate) -> Iterator[str]:
        yield from _remarks(call.options, {"priority", "queue_depth"})
        yield "{ " + _context_configs(call.options)
        ends = f"{self._owners(call.device)}, list, &{self._handle(call.context)}"
        yield "  " + _answered(f"qnn->context_create({ends})", call, "contextCreate") + " }"
        self._freed[call.context] = "context_free(%s, NULL)"

    def restored(self, call: cs.ContextCreateFromBinary) -> Iterator[str]:
        yield from _remarks(call.options, {"priority", "queue_depth"})
        yield "{ " + _context_configs(call.options)
        ends = f"{self._owners(call.device)}, list, {self._data(call.binary)}, {call.binary.nbytes}ull"
        statement = f"qnn->context_from_binary({ends}, &{self._handle(call.context)}, NULL)"
        yield "  " + _answered(statement, call, "contextCreateFromBinary") + " }"
        self._freed[call.context] = "context_free(%s, NULL)"
        if call.error:
            return
        stored = read_binary(self._read(call.binary))
        for name, number in call.graphs.items():
            graph = self._handle(number)
            statement = f"qnn->graph_retrieve({self._handle(call.context)}, {_text(name)}, &{graph})"
            yield f"answered({statement}, 0, {_text(f'graphRetrieve {name}')});"
            packed, known = stored.packed(name), _SavedGraph()
            self._graphs[number] = known
            for spec in (*packed.info().inputs, *packed.info().outputs):
                place = self._place(known, spec)
                yield f"tensor[{place}] = {_tensor(spec, None)};"
                yield f"tensor[{place}].id = {packed.tensor_ids.get(spec.name, 0)};"

    def _owners(self, device: int) -> str:
        return f"{self._handle(self._backend_of.get(device, 0))}, {self._handle(device)}"

    def graph(self, call: cs.GraphCreate) -> Iterator[str]:
        yield from _remarks(call.options, set())
        self._graphs[call.graph] = _SavedGraph()
        ends = f"{self._handle(call.context)}, {_text(call.name)}, NULL, &{self._handle(call.graph)}"
        yield _answered(f"qnn->graph_create({ends})", call, f"graphCreate {call.name}")

    def tensor(self, call: cs.TensorCreate) -> Iterator[str]:
        spec = _spec_of(call)
        place = self._place(self._graphs.setdefault(call.graph, _SavedGraph()), spec)
        constant = None if call.data is None else (self._data(call.data), call.data.nbytes)
        yield from self._create(call.graph, place, _tensor(spec, constant, call.quantize_params), call, call.name)

    def _create(self, graph: int, place: int, literal: str, call: Any, name: str) -> Iterator[str]:
        yield f"tensor[{place}] = {literal};"
        title = _text(f"tensorCreateGraphTensor {name}")
        yield f"create({self._handle(graph)}, &tensor[{place}], {_code(call.error)}, {title});"

    def _place(self, graph: _SavedGraph, spec: TensorSpec) -> int:
        graph.places[spec.name], graph.specs[spec.name] = self.tensors, spec
        self.tensors += 1
        return graph.places[spec.name]

    def node(self, call: cs.GraphAddNode) -> Iterator[str]:
        graph = self._graphs.setdefault(call.graph, _SavedGraph())
        params = []
        if call.package != PACKAGE:
            yield "/* of an op package: register it with the backend before */"
        for name, value in {**call.params, **call.arrays}.items():
            dtype, array = _param(call, name, self._value(value))
            if array.ndim == 0:
                params.append(f"{{0, {_text(name)}, .scalar = {{{int(dtype)}, 0, {{{_scalar(dtype, array)}}}}}}}")
                continue
            spec = TensorSpec(f"{call.name}_{name}", array.shape, dtype, None, TensorKind.STATIC)
            place = self._place(_SavedGraph(), spec)
            values = ", ".join(map(_literal, array.ravel().tolist()))
            yield f"static {_c_type(array)} values_{place}[] = {{{values}}};"
            literal = _tensor(spec, (f"values_{place}", array.nbytes))
            yield from self._create(call.graph, place, literal, cs.EntryCall(name=""), spec.name)
            params.append(f"{{1, {_text(name)}, .tensor = tensor[{place}]}}")
        inputs = [self._used(graph, name) for name in call.inputs]
        outputs = [self._used(graph, name) for name in call.outputs]
        listed = ", ".join(
            part
            for items, kind in ((params, "qnn_param"), (inputs, "qnn_tensor"), (outputs, "qnn_tensor"))
            for part in (str(len(items)), f"({kind}[]){{{', '.join(items)}}}" if items else "NULL")
        )
        names = ", ".join(_text(word) for word in (call.name, call.package, call.op))
        statement = f"qnn->graph_add_node({self._handle(call.graph)}, (qnn_op){{1, {names}, {listed}}})"
        yield _answered(statement, call, f"graphAddNode {call.name}")

    def _value(self, value: Any) -> Any:
        try:
            return self._array(value)
        except (TypeError, ValueError, KeyError) as error:
            raise FormatError(f"a parameter cannot be read: {error}") from error

    def _array(self, value: Any) -> Any:
        if isinstance(value, cs.StoredArray):
            return np.frombuffer(self._read(value), _checked_type(value.dtype)).reshape(value.shape)
        if isinstance(value, dict):  # as the file has it
            return np.array(value["values"], _checked_type(value["dtype"])).reshape(value["shape"])
        return value

    @staticmethod
    def _used(graph: _SavedGraph, name: str | None) -> str:
        if name is None or name not in graph.places:
            return f"{{.version = 1, .kind = {int(TensorKind.NULL)}, .type = {_UNDEFINED}}}"
        return f"tensor[{graph.places[name]}]"

    def finalize(self, call: cs.GraphFinalize) -> Iterator[str]:
        graph = self._handle(call.graph)
        yield _answered(f"qnn->graph_finalize({graph}, NULL, NULL)", call, "graphFinalize")

    def execute(self, call: cs.GraphExecute | cs.GraphExecuteAsync) -> Iterator[str]:
        graph, end = self._graphs.get(call.graph), self._ends.get(call.execution)
        if graph is None or call.signal is not None or (set(call.inputs) - set(graph.places)):
            yield f"/* execution {call.execution} is left out: a signal could end it, or its graph is not known */"
            return
        outputs = [spec for spec in graph.specs.values() if spec.kind.is_output]
        yield f"{{ /* execution {call.execution} */"
        yield from (
            f"  unsigned char *out_{index} = calloc(1, {max(1, spec.nbytes)});"
            for index, spec in enumerate(outputs)
        )
        inputs = [
            _bound(graph.places[name], self._data(stored), stored.nbytes) for name, stored in call.inputs.items()
        ]
        bound = [
            _bound(graph.places[spec.name], f"out_{index}", spec.nbytes) for index, spec in enumerate(outputs)
        ]
        yield f"  qnn_tensor in[] = {{{', '.join(inputs) or '{0}'}}}, out[] = {{{', '.join(bound) or '{0}'}}};"
        code = _code((call.error or end.error) if end is not None else call.error)
        counts = f"in, {len(inputs)}, out, {len(bound)}, NULL, NULL"
        statement = f"qnn->graph_execute({self._handle(call.graph)}, {counts})"
        yield f"  answered({statement}, {code}, {_text(f'graphExecute {call.execution}')});"
        for index, spec in enumerate(outputs):
            stored = end.outputs.get(spec.name) if end is not None else None
            if stored is not None and code == "0":
                then = f"{self._data(stored)}, {int(spec.dtype)}, {spec.elements}"
                yield f"  compare({_text(spec.name)}, out_{index}, {then});"
        yield "  " + "".join(f"free(out_{index}); " for index in range(len(outputs))) + "}"

    def free(self, call: cs.Free) -> Iterator[str]:
        how = self._freed.pop(call.object, None)
        if how is not None:
            yield f'answered(qnn->{how % self._handle(call.object)}, {_code(call.error)}, "free");'


_WRITERS: dict[str, Callable[[_SourceWriter, Any], Iterator[str]]] = {
    "BackendCreate": _SourceWriter.backend,
    "DeviceCreate": _SourceWriter.device,
    "ContextCreate": _SourceWriter.context,
    "ContextCreateFromBinary": _SourceWriter.restored,
    "GraphCreate": _SourceWriter.graph,
    "TensorCreate": _SourceWriter.tensor,
    "GraphAddNode": _SourceWriter.node,
    "GraphFinalize": _SourceWriter.finalize,
    "GraphExecute": _SourceWriter.execute,
    "GraphExecuteAsync": _SourceWriter.execute,
    "Free": _SourceWriter.free,
}
_SILENT = {"Begin", "EntryCall", "ExecutionEnded"}


# C text


def _text(text: str) -> str:
    """A string literal, whatever is in the text."""
    plain = "".join(
        chr(byte) if 32 <= byte < 127 and chr(byte) not in '"\\?' else f"\\{byte:03o}"
        for byte in text.encode(errors="replace")
    )
    return f'"{plain}"'


def _answered(statement: str, call: Any, title: str) -> str:
    return f"answered({statement}, {_code(call.error)}, {_text(title)});"


def _code(error: str) -> str:
    return str(_CODES.get(error, 1 if error else 0))


def _remarks(options: dict[str, Any], written: set[str]) -> Iterator[str]:
    for name in options:
        if name not in written and re.fullmatch(r"\w{1,80}", name, re.ASCII):
            yield f"/* option {name} is left out */"


def _context_configs(options: dict[str, Any]) -> str:
    configs = []
    if isinstance(options.get("priority"), str | int):
        configs.append(f"{{1, {{.number = {int(Priority.parse(options['priority']))}}}}}")
    if isinstance(options.get("queue_depth"), int):
        configs.append(f"{{4, {{.queue = {{0, {options['queue_depth']}}}}}}}")
    pointers = "".join(f"&configs[{index}], " for index in range(len(configs)))
    declaration = f"qnn_config configs[] = {{{', '.join(configs) or '{0}'}}};"
    return f"{declaration} const qnn_config *list[] = {{{pointers}NULL}}; (void)configs;"


def _known_soc(name: str) -> bool:
    try:
        return bool(find_soc(name).soc_model)
    except QnnError:
        return False


def _spec_of(call: cs.TensorCreate) -> TensorSpec:
    try:
        return TensorSpec(
            call.name,
            tuple(call.dimensions),
            DType.parse(call.data_type),
            None,
            TensorKind.parse(call.type),
            tuple(call.dynamic),
            call.sparse_elements,
            DataFormat.parse(call.data_format or DataFormat.DENSE),
        )
    except QnnError as error:
        raise FormatError(f"a saved tensor is of no type that there is: {error}") from error


def _tensor(spec: TensorSpec, constant: tuple[str, int] | None, quant: cs.QuantizeParams | None = None) -> str:
    dims = f"(uint32_t[]){{{', '.join(map(str, spec.shape)) or '0'}}}"
    fields = [
        f".version = {2 if spec.is_dynamic or spec.sparse_elements is not None else 1}",
        f".name = {_text(spec.name)}, .kind = {int(spec.kind)}, .type = {int(spec.dtype)}",
        f".format = {int(spec.data_format) if spec.sparse_elements is None else _SPARSE}",
        f".quant = {_encoding(quant)}",
        f".rank = {spec.rank}, .dims = memcpy(malloc({4 * max(1, spec.rank)}), {dims}, {4 * max(1, spec.rank)})",
    ]
    layout = _UNDEFINED if spec.sparse_elements is None else 0
    fields.append(f".sparse = {{{layout}, {spec.sparse_elements or 0}, {spec.rank}}}")
    if spec.is_dynamic:
        flags = ", ".join(str(int(flag)) for flag in spec.dynamic)
        fields.append(f".dynamic = memcpy(malloc({spec.rank}), (uint8_t[]){{{flags}}}, {spec.rank})")
    if constant is not None:
        fields.append(f".raw = {{{constant[0]}, {constant[1]}}}")
    return f"(qnn_tensor){{{', '.join(fields)}}}"


def _encoding(quant: cs.QuantizeParams | None) -> str:
    if quant is None:
        return f"{{{_UNDEFINED}, {_UNDEFINED}}}"
    pairs = [
        f"{{{_literal(scale)}, {offset}}}" for scale, offset in zip(quant.scales, quant.offsets, strict=False)
    ]
    if quant.axis is None:
        return f"{{1, 0, {{.plain = {pairs[0]}}}}}"
    listed = f"(qnn_scale_offset[]){{{', '.join(pairs)}}}"
    copied = f"memcpy(malloc({8 * len(pairs)}), {listed}, {8 * len(pairs)})"
    return f"{{1, 1, {{.axis = {{{quant.axis}, {len(pairs)}, {copied}}}}}}}"


def _bound(place: int, address: str, nbytes: int) -> str:
    return f"qnn_with(tensor[{place}], {address}, {nbytes})"


def _param(call: cs.GraphAddNode, name: str, value: Any) -> tuple[DType, Array]:
    """A parameter in the type that its op defines; of an op that is not known here, by what it is."""
    param = None
    if call.package == PACKAGE:
        try:
            param = find_op(call.op).param(name)
        except UnsupportedOp:
            param = None
    if param is not None and isinstance(value, str):
        value = param.choices.get(value, 0)
    array = np.asarray(value)
    if param is not None:
        return param.dtype, np.nan_to_num(array.astype(param.dtype.numpy))
    if array.dtype.kind == "f":
        return DType.FLOAT_32, array.astype(np.float32)
    if array.dtype.kind == "b":
        return DType.BOOL_8, array
    return DType.UINT_32, array.astype(np.uint32)


def _scalar(dtype: DType, array: Array) -> str:
    stored = array.astype(dtype.numpy).tobytes()
    return f".raw = {int.from_bytes(stored, 'little')}ull"


def _checked_type(word: str) -> str:
    if not isinstance(word, str) or word[1:] not in (*_C_TYPES, "b1"):
        raise ValueError(f"type {word!r} is none that C has")
    return word


def _c_type(array: Array) -> str:
    return _C_TYPES["b" if array.dtype.kind == "b" else array.dtype.str[1:]]


def _literal(number: float) -> str:
    if isinstance(number, bool | int):
        return str(int(number))
    if math.isfinite(number):
        return repr(float(number))
    return "NAN" if math.isnan(number) else "-INFINITY" if number < 0 else "INFINITY"
