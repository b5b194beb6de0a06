"""Ops on pictures, against plain loops and pictures whose result is known."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from one_op import Given, check, run

from openhtp.core.errors import InvalidArgument, UnsupportedOp
from openhtp.core.quant import ScaleOffset
from openhtp.engine import emitter
from openhtp.ops.resize import PLACES, cubic_matrix, linear_matrix, resample

HALF = 2.0**-10


def nv(name: str, bright: Any, pairs: Any, word: str = "u8", quant: ScaleOffset | None = None) -> np.ndarray:
    bright, pairs = np.asarray(bright), np.asarray(pairs)
    flat = np.concatenate([bright.ravel(), pairs.ravel()])[None]
    numbers = flat if quant is None else quant.dequantize(flat)
    out = ((1, *bright.shape, 3), word, *([quant] if quant else []))
    (got,) = run(name, [Given(numbers, word, quant)], [out], output_order="RGB")
    return got[0] if quant is None else quant.quantize(got, 0, 255)[0]


@settings(max_examples=40, deadline=None)
@given(y=st.integers(0, 255), u=st.integers(0, 255), v=st.integers(0, 255), scale=st.sampled_from([1.0, 0.25]))
def test_every_colour(y: int, u: int, v: int, scale: float) -> None:
    sums = (y + 1.403 * (v - 128), y - 0.344 * (u - 128) - 0.714 * (v - 128), y + 1.773 * (u - 128))
    wanted = [min(max(math.floor(each), 0), 255) for each in sums]
    # Whether a sum that is nearly whole is rounded down is a matter of the last digit.
    near = [abs(each - round(each)) < 1e-4 for each in sums]
    got = nv("Nv12ToRgb", np.full((2, 2), y), [[u, v]], quant=ScaleOffset(scale, -3))
    swapped = nv("Nv21ToRgb", np.full((2, 2), y), [[v, u]])
    for each in (got, swapped):
        assert all(abs(each[0, 0] - wanted) <= near)
        assert (each == each[0, 0]).all()


def test_pixels_share_the_colour_of_their_block() -> None:
    got = nv("Nv12ToRgb", np.full((4, 4), 100), [[128, 128, 128, 228], [228, 128, 128, 128]])
    red, blue = got[..., 0], got[..., 2]
    assert red[:2, :2].tolist() == [[100, 100], [100, 100]]
    assert red[:2, 2:].tolist() == [[240, 240], [240, 240]]
    assert blue[2:, :2].tolist() == [[255, 255], [255, 255]]
    assert (blue[:2] == 100).all()


@pytest.mark.parametrize("word", ["f16", "f32"])
def test_float_pictures_are_not_rounded_down(word: str) -> None:
    got = nv("Nv12ToRgb", np.full((2, 2), 100.5), [[130.0, 127.0]], word)
    np.testing.assert_allclose(got[0, 0], [99.097, 100.526, 104.046], rtol=HALF)


def test_pictures_that_do_not_fit() -> None:
    with pytest.raises(InvalidArgument, match="even height"):
        check("Nv12ToRgb", [Given(np.zeros((1, 9)), "u8")], [((1, 3, 2, 3), "u8")], output_order=0)
    with pytest.raises(InvalidArgument, match=r"expected \[1, 6\]"):
        check("Nv21ToRgb", [Given(np.zeros((1, 9)), "u8")], [((1, 2, 2, 3), "u8")], output_order=0)
    with pytest.raises(UnsupportedOp, match="output_order is RGB"):
        check("Nv21ToRgb", [Given(np.zeros((1, 6)), "u8")], [((1, 2, 2, 3), "u8")], output_order="BGR")
    with pytest.raises(UnsupportedOp, match="reverse_output is false"):
        check("ArgbToRgb", [Given(np.zeros((1, 1, 1, 4)), "u8")], [((1, 1, 1, 3), "u8")], reverse_output=True)


def test_opacity_is_dropped() -> None:
    picture = [[[[1, 2, 3, 4]]]]
    for order, wanted in (("ARGB", [2, 3, 4]), ("RGBA", [1, 2, 3])):
        (got,) = run("ArgbToRgb", [Given(picture, "u8")], [((1, 1, 1, 3), "u8")], reverse_output=False,
                     input_order=order)  # fmt: skip
        assert got.ravel().tolist() == wanted


@settings(max_examples=30, deadline=None)
@given(
    size=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    stride=st.tuples(st.integers(1, 3), st.integers(1, 3)),
    rate=st.tuples(st.integers(1, 2), st.integers(1, 2)),
    same=st.booleans(),
)
def test_patches_pixel_by_pixel(size: Any, stride: Any, rate: Any, same: bool) -> None:
    x = np.arange(1, 5 * 6 * 2 + 1).reshape(5, 6, 2)
    reach = [r * (s - 1) + 1 for r, s in zip(rate, size, strict=True)]
    if same:
        counts = [math.ceil(n / s) for n, s in zip((5, 6), stride, strict=True)]
        begin = [
            max((c - 1) * s + r - n, 0) // 2 for c, s, r, n in zip(counts, stride, reach, (5, 6), strict=True)
        ]
    else:
        counts = [(n - r) // s + 1 for n, r, s in zip((5, 6), reach, stride, strict=True)]
        begin = [0, 0]
    wanted = np.zeros((*counts, *size, 2))
    for i, j, row, column in np.ndindex(*counts, *size):
        y, z = i * stride[0] - begin[0] + row * rate[0], j * stride[1] - begin[1] + column * rate[1]
        if 0 <= y < 5 and 0 <= z < 6:
            wanted[i, j, row, column] = x[y, z]
    (got,) = run(
        "ExtractPatches",
        [Given(x[None], "u8", ScaleOffset(1.0, -4))],
        [((1, *counts, size[0] * size[1] * 2), "u8", ScaleOffset(1.0, -4))],
        size=size,
        stride=stride,
        rate=rate,
        padding="SAME" if same else "VALID",
    )
    np.testing.assert_array_equal(got[0], wanted.reshape(*counts, -1))


IMAGE = np.arange(1.0, 81.0).reshape(1, 8, 10, 1)


def glimpse(place: Any, size: Any = (3, 4), word: str = "u8", **params: Any) -> np.ndarray:
    (got,) = run(
        "ExtractGlimpse",
        [Given(IMAGE, word), Given([place], word if word[0] == "f" else "f32")],
        [((1, *size, 1), word)],
        size=size,
        **params,
    )
    return got[0, :, :, 0]


@pytest.mark.parametrize(
    ("place", "centered", "normalized", "corner"),
    [
        ((0.0, 0.0), True, True, (2, 3)),
        ((0.5, 0.5), True, True, (4, 5)),
        ((-0.5, 0.3), True, True, (0, 4)),
        ((-0.9, -0.9), True, True, (-1, -1)),
        ((0.5, 0.5), False, True, (4, 5)),
        ((0.5, 2.7), False, False, (0, 2)),
        ((-1.0, -1.9), False, False, (-1, -1)),
        ((-0.5, 0.3), True, False, (3, 5)),
    ],
)
@pytest.mark.parametrize("word", ["u8", "f16", "f32"])
def test_where_a_glimpse_begins(place: Any, centered: bool, normalized: bool, corner: Any, word: str) -> None:
    got = glimpse(place, word=word, centered=centered, normalized=normalized, noise="ZEROES")
    wide = np.pad(IMAGE[0, :, :, 0], 5)
    top, left = corner[0] + 5, corner[1] + 5
    np.testing.assert_array_equal(got, wide[top : top + 3, left : left + 4])


def test_noise_is_of_the_images_kind() -> None:
    outside = glimpse((5.0, 5.0), (40, 50), "f32")
    assert outside.min() >= 1
    assert outside.max() <= 80
    assert abs(outside.mean() - 40.5) < 4
    assert len(np.unique(outside)) > 1000
    normal = glimpse((5.0, 5.0), (40, 50), "f32", noise="GAUSSIAN")
    assert abs(normal.mean() - IMAGE.mean()) < 4
    assert abs(normal.std() - IMAGE.std()) < 3
    assert normal.min() < 0
    # What is inside of the image is the image.
    assert glimpse((1.0, 1.0), (4, 4))[:2, :2].tolist() == [[69, 70], [79, 80]]


def project(image: Any, matrix: Any, mode: str = "BILINEAR") -> np.ndarray:
    image = np.asarray(image, float)
    (got,) = run("ImageProjectionTransform", [Given(image), Given(matrix)], [(image.shape, "f32")],
                 interpolation_mode=mode)  # fmt: skip
    return got


@pytest.mark.parametrize("mode", ["BILINEAR", "NEAREST_NEIGHBOR"])
def test_whole_shifts_move_pixels(mode: str) -> None:
    image = np.arange(1.0, 25.0).reshape(1, 4, 6, 1)
    np.testing.assert_array_equal(project(image, [1, 0, 0, 0, 1, 0, 0, 0], mode), image)
    got = project(image, [1, 0, 2, 0, 1, -1, 0, 0], mode)[0, :, :, 0]
    wanted = np.zeros((4, 6))
    wanted[1:, :4] = image[0, :3, 2:, 0]
    np.testing.assert_array_equal(got, wanted)


def test_halves_are_averaged_or_rounded_away() -> None:
    image = np.array([[10.0, 20.0, 40.0]]).reshape(1, 1, 3, 1)
    assert project(image, [1, 0, 0.5, 0, 1, 0, 0, 0]).ravel().tolist() == [15, 30, 20]
    assert project(image, [1, 0, 0.5, 0, 1, 0, 0, 0], "NEAREST_NEIGHBOR").ravel().tolist() == [20, 40, 0]
    assert project(image, [1, 0, -0.5, 0, 1, 0, 0, 0], "NEAREST_NEIGHBOR").ravel().tolist() == [0, 20, 40]


def test_perspective_divides() -> None:
    image = np.arange(0.0, 8.0).reshape(1, 1, 8, 1)
    # Column x is read at x / (x / 4 + 1).
    got = project(image, [1, 0, 0, 0, 1, 0, 0.25, 0]).ravel()
    np.testing.assert_allclose(got, [x / (x / 4 + 1) for x in range(8)], rtol=HALF)
    # At x = 2 there is no place to read at.
    assert project(image + 1, [0, 0, 0, 0, 0, 0, -0.5, 0]).ravel()[2] == 0


def test_images_have_matrices_of_their_own_or_share_one() -> None:
    images = np.arange(1.0, 7.0).reshape(2, 1, 3, 1)
    own = project(images, [[1, 0, 1, 0, 1, 0, 0, 0], [1, 0, 0, 0, 1, 0, 0, 0]])
    assert own.ravel().tolist() == [2, 3, 0, 4, 5, 6]
    assert project(images, [[1, 0, 1, 0, 1, 0, 0, 0]]).ravel().tolist() == [2, 3, 0, 5, 6, 0]


def heat(maps: Any, boxes: Any) -> tuple[np.ndarray, np.ndarray]:
    maps, quant = np.asarray(maps, float), ScaleOffset(2.0**-7, 0)
    count, _, _, points = maps.shape
    place = ScaleOffset(2.0**-9, 0)
    return tuple(
        run(
            "HeatMapMaxKeyPoint",
            [Given(maps, "u8", quant), Given(boxes, "u16", place)],
            [((count, points), "u8", quant), ((count, points, 2), "u16", place)],
        )
    )


def test_the_top_of_a_surface_lies_between_pixels() -> None:
    y, x = np.mgrid[0:8, 0:8]
    # A quadratic surface with its top of 1.5 at row 3.25, column 4.25.
    surface = 1.5 - (y - 3.25) ** 2 / 16 - (x - 4.25) ** 2 / 16
    scores, places = heat(np.clip(surface, 0, None)[None, :, :, None], [[8.0, 16.0, 24.0, 48.0]])
    assert abs(scores[0, 0] - 1.5) <= 2.0**-7
    np.testing.assert_allclose(places[0, 0], [8 + 4.75 * 16 / 8, 16 + 3.75 * 32 / 8], atol=0.1)


def test_a_lone_pixel_and_a_flat_map_stay_where_they_are() -> None:
    maps = np.zeros((1, 6, 6, 2))
    maps[0, 4, 1, 0] = 1.0
    scores, places = heat(maps, [[0.0, 0.0, 12.0, 12.0]])
    assert scores[0].tolist() == [1.0, 0.0]
    assert places[0].tolist() == [[3.0, 9.0], [1.0, 1.0]]


@pytest.mark.parametrize("aligned", [False, True])
@pytest.mark.parametrize("samples", [(1, 1), (2, 2), (3, 2), (-1, -1)])
def test_regions_of_a_slope_have_the_slopes_value_at_their_bins(samples: Any, aligned: bool) -> None:
    """On a plane, the mean of samples around a bin's centre is the plane's value there."""
    y, x = np.mgrid[0:12, 0:12]
    regions = np.array([[2.0, 4.0, 14.0, 10.0], [8.0, 6.0, 11.0, 18.0]])
    (got,) = run(
        "RoiAlign",
        [Given((3 * y + x)[None, :, :, None]), Given(regions), Given([0, 0], "i32")],
        [((2, 2, 3, 1), "f32")],
        img_size_ratio=[2.0, 1.5],
        num_samples_y=samples[0],
        num_samples_x=samples[1],
        aligned=aligned,
    )
    for number, (x1, y1, x2, y2) in enumerate(regions):
        rows = (y1 + (np.arange(2) + 0.5) * (y2 - y1) / 2) / 2.0 - 0.5 * aligned
        columns = (x1 + (np.arange(3) + 0.5) * (x2 - x1) / 3) / 1.5 - 0.5 * aligned
        np.testing.assert_allclose(got[number, :, :, 0], 3 * rows[:, None] + columns, rtol=HALF)


def test_a_region_is_of_its_own_image_and_zero_outside() -> None:
    images = np.array([1.0, 5.0]).reshape(2, 1, 1, 1).repeat(4, 1).repeat(4, 2)
    (got,) = run(
        "RoiAlign",
        [Given(images), Given([[0, 0, 3, 3], [0, 0, 3, 3], [20, 20, 24, 24]]), Given([1, 0, 1], "i32")],
        [((3, 1, 1, 1), "f32")],
        img_size_ratio=[1.0, 1.0],
    )
    assert got.ravel().tolist() == [5, 1, 0]


def test_samples_are_given_for_both_axes_or_neither() -> None:
    with pytest.raises(UnsupportedOp, match="for both axes or for neither"):
        check(
            "RoiAlign",
            [Given(np.zeros((1, 4, 4, 1))), Given([[0, 0, 3, 3]]), Given([0], "i32")],
            [((1, 2, 2, 1), "f32")],
            img_size_ratio=[1.0, 1.0],
            num_samples_y=2,
        )


@pytest.mark.parametrize("op", ["Conv2d", "PoolMax2d"])
def test_padding_without_a_partner_is_refused(op: str) -> None:
    image, filters = Given(np.zeros((1, 4, 4, 2))), Given(np.zeros((1, 1, 2, 2)), static=True)
    inputs, params = ([image, filters], {}) if op == "Conv2d" else ([image], {"filter_size": [1, 1]})
    with pytest.raises(InvalidArgument, match="pad_amount 2 x 2"):
        check(op, inputs, [((1, 4, 4, 2), "f32")], stride=[1, 1], pad_amount=[[0, 0, 0]], **params)


PICTURE = np.random.default_rng(17).uniform(-4, 4, (2, 9, 7, 3))
VOLUME = np.random.default_rng(18).uniform(-4, 4, (1, 5, 4, 6, 3))
LINE = np.random.default_rng(19).uniform(-4, 4, (2, 9, 3))
SHORTS = ScaleOffset(8 / 65535, -32768)


def resized(numbers: np.ndarray, sizes: tuple[int, ...], word: str = "f32", **params: Any) -> np.ndarray:
    quant = (SHORTS,) if word == "u16" else ()
    out = ((numbers.shape[0], *sizes, numbers.shape[-1]), word, *quant)
    return run("Resize", [Given(numbers, word, *quant)], [out], **params)[0]


@pytest.mark.parametrize("outside", [False, True])
@pytest.mark.parametrize("places", [name.upper() for name in PLACES])
@pytest.mark.parametrize("sizes", [(13, 15), (4, 3), (9, 3), (12, 7), (5, 11), (1, 1)])
def test_a_picture_is_interpolated_by_cubes(sizes: tuple[int, int], places: str, outside: bool) -> None:
    """Also a smaller one, which the runtime's operator does not make in every order of axes."""
    got = resized(
        PICTURE,
        sizes,
        interpolation_mode="CUBIC",
        transformation_mode=places,
        exclude_outside=outside,
        cubic_coeff=-0.5,
    )
    matrices = [
        cubic_matrix(size, out, places.lower(), -0.5, exclude_outside=outside)
        for size, out in zip((9, 7), sizes, strict=True)
    ]
    np.testing.assert_allclose(
        got, resample(PICTURE.astype(np.float16).astype(float), matrices), rtol=HALF, atol=1e-3
    )


@pytest.mark.parametrize("places", [name.upper() for name in PLACES])
@pytest.mark.parametrize(
    ("numbers", "sizes"),
    [
        *((PICTURE, sizes) for sizes in ((13, 15), (4, 3), (9, 3), (12, 7), (1, 1))),
        *((VOLUME, sizes) for sizes in ((7, 9, 3), (5, 9, 3), (7, 4, 3), (5, 4, 1))),
        *((LINE, sizes) for sizes in ((14,), (4,))),
    ],
)
def test_every_way_to_interpolate_has_the_same_bits(
    numbers: np.ndarray, sizes: tuple[int, ...], places: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The runtime's operator on x86, the engine's own, and the nodes in its place where there is no C side."""
    kinds = ["LINEAR", "CUBIC"] if len(sizes) == 2 else ["LINEAR"]
    params = [{"interpolation_mode": kind, "transformation_mode": places} for kind in kinds]
    words = ("f32", "u16")
    ways = [[resized(numbers, sizes, word, **each) for each in params for word in words]]
    monkeypatch.setattr(emitter, "rounds_products_alone", lambda: False)
    ways.append([resized(numbers, sizes, word, **each) for each in params for word in words])
    monkeypatch.setattr(emitter.NodeEmitter, "own_node", lambda *words, **attributes: "")
    ways.append([resized(numbers, sizes, word, **each) for each in params for word in words])
    # Along some of the axes, the last bits of the runtime's operator depend on the order of all axes.
    whole = len(sizes) > 1 and all(size != out for size, out in zip(numbers.shape[1:-1], sizes, strict=True))
    for way in ways[0 if whole else 1 : -1]:
        for got, wanted in zip(way, ways[-1], strict=True):
            np.testing.assert_array_equal(got, wanted)
    matrices = [
        linear_matrix(size, out, places.lower()) for size, out in zip(numbers.shape[1:-1], sizes, strict=True)
    ]
    exact = resample(numbers.astype(np.float16).astype(float), matrices)
    np.testing.assert_allclose(ways[1][0], exact, rtol=HALF, atol=1e-3)
