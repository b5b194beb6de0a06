"""Damaged models: random damage to a good file's bytes, or to what the file says."""

from __future__ import annotations

import random

from onnx import AttributeProto, ModelProto

from openhtp import zoo

_HUGE = (1 << 62, 1 << 40, 1 << 31, -1, 0, 1, 7, 65536)


def good_models() -> list[bytes]:
    """Small files that hold most kinds of nodes."""
    return [
        zoo.tiny_mlp(8),
        zoo.transformer_blocks(1, seq=4, hidden=8, heads=2, ffn=8),
        zoo.quantized(zoo.small_cnn(16), samples=1),
        zoo.quantized(zoo.transformer_blocks(1, seq=4, hidden=8, heads=2, ffn=8), "u16", samples=1),
    ]


def damaged(model: bytes, seed: int) -> bytes:
    """One damaged version of a model."""
    chance = random.Random(seed)
    return _bytes(model, chance) if chance.random() < 0.5 else _meaning(model, chance)


def _bytes(model: bytes, chance: random.Random) -> bytes:
    data = bytearray(model)
    for _ in range(chance.randint(1, 6)):
        kind = chance.randrange(5)
        # Most of a file is weights; what matters is at its ends.
        place = chance.randrange(len(data))
        if chance.random() < 0.5:
            place = min(len(data) - 1, chance.randrange(4000))
        if kind == 0:
            data[place] ^= 1 << chance.randrange(8)
        elif kind == 1:
            data[place] = chance.randrange(256)
        elif kind == 2:
            del data[place : place + chance.randrange(1, 40)]
        elif kind == 3:
            data[place:place] = data[chance.randrange(len(data)) :][: chance.randrange(1, 60)]
        else:
            del data[place:]
        if not data:
            break
    return bytes(data)


def _meaning(model: bytes, chance: random.Random) -> bytes:
    proto = ModelProto.FromString(model)
    for _ in range(chance.randint(1, 3)):
        chance.choice(_CHANGES)(proto, chance)
    return proto.SerializeToString()


def _names(proto: ModelProto) -> list[str]:
    names = [name for node in proto.graph.node for name in (*node.input, *node.output)]
    return [*names, *(tensor.name for tensor in proto.graph.initializer), "", "nothing"]


def _rewire_input(proto: ModelProto, chance: random.Random) -> None:
    node = chance.choice(proto.graph.node)
    if node.input:
        node.input[chance.randrange(len(node.input))] = chance.choice(_names(proto))


def _rewire_output(proto: ModelProto, chance: random.Random) -> None:
    node = chance.choice(proto.graph.node)
    if node.output:
        node.output[chance.randrange(len(node.output))] = chance.choice(_names(proto))


def _drop(proto: ModelProto, chance: random.Random) -> None:
    for field in chance.sample(["node", "initializer", "input", "output"], 1):
        items = getattr(proto.graph, field)
        if items:
            del items[chance.randrange(len(items))]


def _retype(proto: ModelProto, chance: random.Random) -> None:
    node = chance.choice(proto.graph.node)
    others = [other.op_type for other in proto.graph.node]
    node.op_type = chance.choice([*others, "Reshape", "Expand", "Tile", "Pad", "Resize", "Range"])


def _resize(proto: ModelProto, chance: random.Random) -> None:
    if chance.random() < 0.5 and proto.graph.initializer:
        dims = chance.choice(proto.graph.initializer).dims
    else:
        shape = chance.choice(proto.graph.input).type.tensor_type.shape if proto.graph.input else None
        if shape is not None and shape.dim:
            chance.choice(shape.dim).dim_value = chance.choice(_HUGE)
        return
    if dims:
        dims[chance.randrange(len(dims))] = chance.choice(_HUGE)
    else:
        dims.append(chance.choice(_HUGE))


def _attribute(proto: ModelProto, chance: random.Random) -> None:
    attributes = [item for node in proto.graph.node for item in node.attribute]
    if not attributes:
        return
    item = chance.choice(attributes)
    kind = chance.randrange(4)
    if kind == 0 and item.ints:
        item.ints[chance.randrange(len(item.ints))] = chance.choice(_HUGE)
    elif kind == 1:
        item.i = chance.choice(_HUGE)
    elif kind == 2:
        item.type = chance.choice(AttributeProto.AttributeType.values())
    else:
        item.name = chance.choice([other.name for other in attributes])


def _numbers(proto: ModelProto, chance: random.Random) -> None:
    """Constants that are shapes, axes, scales or zero points."""
    small = [tensor for tensor in proto.graph.initializer if 0 < len(tensor.raw_data) <= 64]
    if small:
        tensor = chance.choice(small)
        tensor.raw_data = bytes(chance.randrange(256) for _ in tensor.raw_data)


def _element(proto: ModelProto, chance: random.Random) -> None:
    if proto.graph.initializer:
        chance.choice(proto.graph.initializer).data_type = chance.randrange(30)


def _opset(proto: ModelProto, chance: random.Random) -> None:
    proto.opset_import[0].version = chance.choice([1, 7, 10, 12, 13, 18, 21, 28, 1 << 40])


_CHANGES = (
    _rewire_input,
    _rewire_output,
    _drop,
    _retype,
    _resize,
    _attribute,
    _numbers,
    _element,
    _opset,
)
