"""Calls of the API as a file keeps them: one a line, readable, with the data of tensors in a file beside it.

The names are the API's. Objects are known by numbers that the file gives them; ``error`` is the status that a call
was answered with, empty for success.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any

import msgspec
from msgspec import Meta, Struct

FORMAT = "openhtp-saver"
FORMAT_VERSION = 1
CALLS_NAME = "saver_output.jsonl"
DATA_NAME = "params.bin"
DEFAULT_FOLDER = "saver_output"
"""Where calls are recorded unless it is said, from the working directory; as the vendor's saver does."""

Number = Annotated[int, Meta(ge=1, le=1 << 53)]
Size = Annotated[int, Meta(ge=0, le=1 << 48)]
Text = Annotated[str, Meta(max_length=4096)]
Short = Annotated[str, Meta(max_length=200)]
Dims = Annotated[list[Annotated[int, Meta(ge=0, le=1 << 40)]], Meta(max_length=8)]
Options = dict[Short, Any]


class _Call(Struct, frozen=True, kw_only=True, tag_field="call", forbid_unknown_fields=True, omit_defaults=True):
    """The common part: the status that answered the call."""

    error: Short = ""


class StoredArray(Struct, frozen=True, forbid_unknown_fields=True):
    """An array in the file beside: where it lies, its type and shape."""

    offset: Size
    nbytes: Size
    dtype: Short
    shape: Dims


class ListedArray(Struct, frozen=True, forbid_unknown_fields=True):
    """A small array, written out."""

    dtype: Short
    shape: Dims
    values: Annotated[list[Any], Meta(max_length=64)]


class QuantizeParams(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """An encoding: one scale and offset, or one for each index of an axis."""

    scales: Annotated[list[float], Meta(min_length=1, max_length=1 << 20)]
    offsets: Annotated[list[int], Meta(min_length=1, max_length=1 << 20)]
    axis: int | None = None


class Begin(Struct, frozen=True, kw_only=True, tag_field="call", tag="begin", forbid_unknown_fields=True):
    """The first line."""

    format: str
    version: int
    openhtp: Short
    data: Short


class BackendCreate(_Call, frozen=True, kw_only=True, tag="backendCreate"):
    """A backend."""

    backend: Number


class DeviceCreate(_Call, frozen=True, kw_only=True, tag="deviceCreate"):
    """A device."""

    backend: Number
    device: Number
    options: Options = {}


class ContextCreate(_Call, frozen=True, kw_only=True, tag="contextCreate"):
    """An empty context."""

    device: Number
    context: Number
    options: Options = {}


class ContextCreateFromBinary(_Call, frozen=True, kw_only=True, tag="contextCreateFromBinary"):
    """A context and its graphs, which have numbers from now on."""

    device: Number
    context: Number
    binary: StoredArray
    graphs: dict[Text, Number] = {}
    options: Options = {}


class GraphCreate(_Call, frozen=True, kw_only=True, tag="graphCreate"):
    """An empty graph."""

    context: Number
    graph: Number
    name: Text
    options: Options = {}


class TensorCreate(_Call, frozen=True, kw_only=True, tag="tensorCreateGraphTensor"):
    """A tensor of a graph; that of a constant has data."""

    graph: Number
    name: Text
    type: Short
    data_type: Short
    dimensions: Dims
    quantize_params: QuantizeParams | None = None
    dynamic: list[bool] = []
    sparse_elements: int | None = None
    data_format: Short = ""
    data: StoredArray | None = None


class GraphAddNode(_Call, frozen=True, kw_only=True, tag="graphAddNode"):
    """A node of a graph; parameters are numbers, texts, lists, or data."""

    graph: Number
    name: Text
    op: Short
    inputs: list[Text | None]
    outputs: list[Text]
    params: dict[Short, Any] = {}
    arrays: dict[Short, StoredArray] = {}
    package: Short = "qti.aisw"


class GraphFinalize(_Call, frozen=True, kw_only=True, tag="graphFinalize"):
    """A graph is compiled."""

    graph: Number
    profile: Number | None = None
    signal: Number | None = None


class GraphExecute(_Call, frozen=True, kw_only=True, tag="graphExecute"):
    """An execution that is waited for."""

    graph: Number
    execution: Number
    inputs: dict[Text, StoredArray]
    profile: Number | None = None
    signal: Number | None = None


class GraphExecuteAsync(_Call, frozen=True, kw_only=True, tag="graphExecuteAsync"):
    """An execution that is queued."""

    graph: Number
    execution: Number
    inputs: dict[Text, StoredArray]
    profile: Number | None = None
    signal: Number | None = None


class ExecutionEnded(_Call, frozen=True, kw_only=True, tag="executionEnded"):
    """The end of an execution: not a call, but the content of its notification."""

    execution: Number
    outputs: dict[Text, StoredArray] = {}


class SetConfig(_Call, frozen=True, kw_only=True, tag="setConfig"):
    """Other options for a context or a graph."""

    object: Number
    options: Options


class ApplySection(_Call, frozen=True, kw_only=True, tag="contextApplyBinarySection"):
    """Other data for a graph's updateable tensors."""

    context: Number
    graph: Text
    section: StoredArray


class MemRegister(_Call, frozen=True, kw_only=True, tag="memRegister"):
    """Memory is registered. Executions have its content as their inputs."""

    context: Number
    memory: Number
    nbytes: Size


class SetPerfProfile(_Call, frozen=True, kw_only=True, tag="setPerfProfile"):
    """Votes as a perf profile says."""

    device: Number
    name: Short
    options: Options = {}


class PowerConfigCreate(_Call, frozen=True, kw_only=True, tag="createPowerConfigId"):
    """A number to vote under."""

    device: Number
    power: Number
    core: Annotated[int, Meta(ge=0, le=1 << 16)] = 0


class SetPowerVotes(_Call, frozen=True, kw_only=True, tag="setPowerConfig"):
    """Votes: microseconds, or the fields of a vote on clocks."""

    power: Number
    votes: dict[Short, int | dict[Short, Any]] = {}
    profile: Short = ""


class SignalCreate(_Call, frozen=True, kw_only=True, tag="signalCreate"):
    """A signal to abort with, or that ends a call by itself."""

    backend: Number
    signal: Number
    timeout_us: int | None = None


class SignalTrigger(_Call, frozen=True, kw_only=True, tag="signalTrigger"):
    """The calls that carry the signal are to end."""

    signal: Number


class ProfileCreate(_Call, frozen=True, kw_only=True, tag="profileCreate"):
    """A profile for calls to fill."""

    backend: Number
    profile: Number
    level: Short
    options: Options = {}


class GetBinary(_Call, frozen=True, kw_only=True, tag="contextGetBinary"):
    """A context is saved."""

    context: Number
    nbytes: Size = 0


class Free(_Call, frozen=True, kw_only=True, tag="free"):
    """An object is given back."""

    object: Number


class EntryCall(_Call, frozen=True, kw_only=True, tag="entry"):
    """A call of the C table, by the name of its entry; its effects are the calls before it."""

    name: Short
    status: int = 0


Call = (
    Begin
    | BackendCreate
    | DeviceCreate
    | ContextCreate
    | ContextCreateFromBinary
    | GraphCreate
    | TensorCreate
    | GraphAddNode
    | GraphFinalize
    | GraphExecute
    | GraphExecuteAsync
    | ExecutionEnded
    | SetConfig
    | ApplySection
    | MemRegister
    | SetPerfProfile
    | PowerConfigCreate
    | SetPowerVotes
    | SignalCreate
    | SignalTrigger
    | ProfileCreate
    | GetBinary
    | Free
    | EntryCall
)

encode_call = msgspec.json.Encoder().encode
decode_call: Callable[[bytes], Call] = msgspec.json.Decoder(Call).decode
