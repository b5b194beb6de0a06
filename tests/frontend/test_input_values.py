"""Values that inputs get where nobody gives any."""

from __future__ import annotations

import numpy as np
import pytest
from onnx import TensorProto, helper, numpy_helper

from openhtp.zoo.feeds import feeds_in_words, random_feeds

_TABLE = numpy_helper.from_array(np.ones((30, 4), np.float32), "table")


def _model(name: str, shape: tuple[int, ...], kind: int, *nodes: object, **others: tuple[int, ...]) -> bytes:
    inputs = [helper.make_tensor_value_info(name, kind, shape)]
    inputs += [helper.make_tensor_value_info(other, TensorProto.FLOAT, size) for other, size in others.items()]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", inputs, [output], [_TABLE])
    return helper.make_model(graph).SerializeToString()


def _filled(model: bytes, name: str) -> np.ndarray:
    return np.concatenate([feeds[name].reshape(-1) for feeds in random_feeds(model, 16)])


@pytest.mark.parametrize("name", ["input_ids", "x"])
def test_ids_are_rows_of_the_table_that_they_choose_from(name: str) -> None:
    """Also behind a cast and a change of shape; whatever the name is."""
    model = _model(
        name,
        (1, 20),
        TensorProto.INT32,
        helper.make_node("Cast", [name], ["long"], to=TensorProto.INT64),
        helper.make_node("Unsqueeze", ["long", "axes"], ["more"]),
        helper.make_node("Gather", ["table", "more"], ["y"]),
    )
    values = _filled(model, name)
    assert (values.min(), values.max()) == (0, 29)
    assert feeds_in_words(model) == {name: "ids below 30"}


@pytest.mark.parametrize(
    ("name", "kind", "others", "expected"),
    [
        ("attention_mask", TensorProto.INT64, {}, {1}),
        ("attentionMask", TensorProto.BOOL, {}, {True}),
        ("x_lengths", TensorProto.INT64, {"x": (1, 7), "wave": (1, 1, 500)}, {7}),
        ("length", TensorProto.INT32, {"x": (1, 7), "wave": (1, 1, 500)}, {500}),
        ("sr", TensorProto.INT64, {}, {16000}),
        ("orig_target_sizes", TensorProto.INT64, {"images": (1, 3, 48, 64)}, {48, 64}),
        ("scale_factor", TensorProto.FLOAT, {}, {1.0}),
        ("position_ids", TensorProto.INT64, {}, {0, 1, 2, 3}),
        ("training", TensorProto.BOOL, {}, {True}),
    ],
)
def test_what_a_name_stands_for(
    name: str, kind: int, others: dict[str, tuple[int, ...]], expected: set[object]
) -> None:
    model = _model(name, (1, 4), kind, helper.make_node("Identity", [name], ["y"]), **others)
    assert set(_filled(model, name).tolist()) == expected


def test_a_mask_that_is_added_hides_nothing() -> None:
    added = helper.make_node("Add", ["mask", "scores"], ["y"])
    model = _model("mask", (1, 4), TensorProto.FLOAT, added, scores=(1, 4))
    assert set(_filled(model, "mask").tolist()) == {0.0}


@pytest.mark.parametrize(("negated", "expected"), [(False, {False}), (True, {True})])
def test_a_mask_that_chooses_minus_infinity_hides_nothing(negated: bool, expected: set[bool]) -> None:
    """PyTorch's padding masks are true where something is hidden; all true, they hide everything."""
    lowest = helper.make_node("Constant", [], ["lowest"], value=numpy_helper.from_array(np.float32(-np.inf)))
    nodes = [
        lowest,
        helper.make_node("Not" if negated else "Identity", ["key_padding_mask"], ["hidden"]),
        helper.make_node("Where", ["hidden", "lowest", "scores"], ["y"]),
    ]
    model = _model("key_padding_mask", (1, 4), TensorProto.BOOL, *nodes, scores=(1, 4))
    assert set(_filled(model, "key_padding_mask").tolist()) == expected


def test_a_picture_of_bytes_has_all_colours() -> None:
    model = _model("x", (1, 3, 32, 32), TensorProto.UINT8, helper.make_node("Identity", ["x"], ["y"]))
    values = _filled(model, "x")
    assert (values.min(), values.max()) == (0, 255)


def test_floats_are_noise_and_need_no_words() -> None:
    model = _model("x", (1, 8), TensorProto.FLOAT, helper.make_node("Identity", ["x"], ["y"]))
    assert feeds_in_words(model) == {}
    assert abs(_filled(model, "x")).max() < 3**0.5
