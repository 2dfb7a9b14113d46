"""Convolutions as products of columns against sums written out place by place, in Float64.

Pooling at the borders of an image: padding is no place, so no gradient is lost to it.
"""

import itertools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from mspc.ir.types import FLOAT64, TensorType
from mspc.ops.convolution import convolve as products
from mspc.ops.convolution.pooling import AvgPool3D, MaxPool, MaxPool3D, MaxPoolGrad
from mspc.ops.convolution.window import Window
from tests.errors import error_of
from tests.ops.backend import BACKEND

Case = tuple[int, int, tuple[int, ...], int, int, int, tuple[Window, ...]]
"""(images, groups, lengths, channels in of a group, channels out of a group, images whose columns are
made together, windows)"""
SAME = Window(3, 1, 1, 1, 1)
CASES: dict[str, Case] = {
    "one image": (1, 1, (20, 18), 3, 4, 2, (SAME, SAME)),
    "images together": (5, 1, (4, 4), 3, 4, 2, (SAME, SAME)),
    "more images than are taken together": (37, 1, (3, 3), 2, 3, 2, (SAME, SAME)),
    "rows in pieces": (2, 1, (40, 40), 40, 3, 2, (SAME, SAME)),
    "points": (3, 1, (9, 9), 5, 4, 2, (Window(1), Window(1))),
    "points of small images": (3, 1, (2, 2), 5, 4, 3, (Window(1), Window(1))),
    "points with strides": (3, 1, (8, 7), 5, 4, 2, (Window(1, 2), Window(1, 3))),
    "strides that skip places": (2, 1, (9, 9), 2, 3, 1, (Window(2, 4, 1, 1, 0), Window(2, 3))),
    "dilation": (2, 1, (12, 11), 2, 3, 2, (Window(3, 2, 2, 3, 2), Window(2, 1, 4, 0, 1))),
    "padding wider than the window": (2, 1, (3, 3), 2, 3, 2, (Window(2, 1, 1, 5, 4), Window(3, 3, 1, 7, 7))),
    "places left out": (2, 1, (9, 9), 2, 3, 2, (Window(3, 1, 1, -1, 0), Window(2, 2, 1, 0, -2))),
    "groups": (3, 3, (6, 6), 2, 4, 2, (SAME, SAME)),
    "depthwise": (3, 4, (6, 5), 1, 2, 2, (Window(3, 2, 1, 1, 1), SAME)),
    "depthwise, one image": (2, 3, (17, 17), 1, 1, 2, (SAME, SAME)),
    "one dimension": (4, 1, (30,), 3, 2, 2, (Window(5, 2, 1, 2, 2),)),
    "three dimensions": (2, 2, (5, 4, 6), 2, 2, 2, (SAME, Window(2), Window(3, 2, 1, 1, 0))),
}


def met(along: Sequence[Window], lengths: Sequence[int], counts: Sequence[int]) -> Any:
    """All (position, place of the window, place of the image) within the image."""
    for position in itertools.product(*map(range, counts)):
        for tap in itertools.product(*(range(w.size) for w in along)):
            place = tuple(
                j * w.stride - w.before + t * w.dilation for j, t, w in zip(position, tap, along, strict=True)
            )
            if all(0 <= i < n for i, n in zip(place, lengths, strict=True)):
                yield position, tap, place


def written_out(x: Any, weight: Any, dout: Any, along: Sequence[Window], groups: int) -> tuple[Any, Any, Any]:
    """(result, gradient of x, gradient of the weights)."""
    parts = [a.reshape(len(a), groups, -1, *a.shape[2:]) for a in (x, dout)]
    image, gradient = parts
    factor = weight.reshape(groups, weight.shape[0] // groups, *weight.shape[1:])
    out, dimage, dfactor = np.zeros_like(gradient), np.zeros_like(image), np.zeros_like(factor)
    every = (slice(None),) * 3
    for position, tap, place in met(along, x.shape[2:], dout.shape[2:]):
        seen, used, asked = image[(*every, *place)], factor[(*every, *tap)], gradient[(*every, *position)]
        out[(*every, *position)] += np.einsum("ngi,goi->ngo", seen, used)
        dimage[(*every, *place)] += np.einsum("ngo,goi->ngi", asked, used)
        dfactor[(*every, *tap)] += np.einsum("ngo,ngi->goi", asked, seen)
    return out.reshape(dout.shape), dimage.reshape(x.shape), dfactor.reshape(weight.shape)


@pytest.mark.parametrize("name", CASES)
def test_sums(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    images, groups, lengths, inner, outer, together, along = CASES[name]
    counts = tuple(w.count(n) for w, n in zip(along, lengths, strict=True))
    column = groups * inner * math.prod(w.size for w in along)
    monkeypatch.setattr(products, "COLUMN_ELEMENTS", together * column * math.prod(counts))
    random = np.random.default_rng(3)
    x = random.standard_normal((images, groups * inner, *lengths))
    weight = random.standard_normal((groups * outer, inner, *(w.size for w in along)))
    dout = random.standard_normal((images, groups * outer, *counts))
    expected = written_out(x, weight, dout, along, groups)
    out, dx, dweight = (np.full(a.shape, np.nan) for a in (dout, x, weight))  # every element has to be written
    products.convolve(np, x, weight, along, counts, groups, out)
    products.input_gradient(np, dout, weight, along, groups, dx)
    products.weight_gradient(np, dout, x, along, groups, dweight)
    for made, wanted in zip((out, dx, dweight), expected, strict=True):
        np.testing.assert_allclose(made, wanted, atol=1e-11)


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("groups", [1, 2])
def test_infinity_times_padding_is_no_number(groups: int) -> None:
    """Padding is zeros that are multiplied, whichever way the sums are made."""
    along = (SAME, SAME)
    x, weight = np.ones((1, 2, 4, 4)), np.ones((2, 2 // groups, 3, 3))
    weight[0, 0, 0, 1] = np.inf
    out = np.zeros((1, 2, 4, 4))
    products.convolve(np, x, weight, along, (4, 4), groups, out)
    assert np.isnan(out[0, 0, 0]).all()
    assert np.isinf(out[0, 0, 1:]).all()
    dout = np.ones((1, 2, 4, 4))
    dout[0, 1, 0, 2] = -np.inf
    dweight = np.zeros_like(weight)
    products.weight_gradient(np, dout, x, along, groups, dweight)
    assert np.isnan(dweight[1, 0, 0]).all()
    assert np.isinf(dweight[1, 0, 1:]).all()


@pytest.mark.filterwarnings("ignore:invalid value")
@pytest.mark.parametrize("groups", [1, 2])
def test_an_image_without_places_is_padding(groups: int) -> None:
    """A rank's slice of the result may lie in the padding alone."""
    along = (Window(1), Window(1, 1, 1, 2, 1))
    x, weight, dout = np.ones((1, 2, 4, 0)), np.ones((2, 2 // groups, 1, 1)), np.ones((1, 2, 4, 3))
    weight[0], dout[0, 0] = np.inf, np.inf
    out, dweight = np.ones_like(dout), np.zeros_like(weight)
    products.convolve(np, x, weight, along, (4, 3), groups, out)
    products.weight_gradient(np, dout, x, along, groups, dweight)
    assert np.isnan(out[0, 0]).all()
    assert np.isnan(dweight[0]).all()
    assert not out[0, 1].any()
    assert not dweight[1].any()


@pytest.mark.parametrize("value", [-np.inf, np.nan, -3.0])
def test_a_window_of_one_value_hands_its_gradient_to_its_first_place(value: float) -> None:
    x = np.full((2, 3, 4, 4), value)
    pool = MaxPool(kernel_size=3, strides=2, pad_mode="pad", pad=1)
    out = pool.run(BACKEND, x)
    np.testing.assert_array_equal(out, np.full((2, 3, 2, 2), value))
    dout = np.arange(1.0, 25.0).reshape(out.shape)
    found = MaxPoolGrad(**pool.attributes()).run(BACKEND, x, out, dout)
    expected = np.zeros_like(x)
    expected[:, :, :2, :2] = dout  # windows begin at places -1 and 1
    np.testing.assert_array_equal(found, expected)


def test_three_dimensions_take_more_padding_on_one_side_than_half_a_window() -> None:
    x = np.arange(1.0, 17.0).reshape(1, 1, 16, 1, 1)
    given = {"kernel_size": (4, 1, 1), "strides": (5, 1, 1), "pad_mode": "pad", "pad": (3, 0, 0, 0, 0, 0)}
    for pool, expected in ((MaxPool3D, [1, 6, 11, 16]), (AvgPool3D, [1 / 4, (3 + 4 + 5 + 6) / 4, 9.5, 14.5])):
        pool(**given).infer(TensorType(FLOAT64, x.shape))
        np.testing.assert_array_equal(pool(**given).run(BACKEND, x).ravel(), expected)


def test_windows_hold_more_than_padding() -> None:
    pool = MaxPool3D(kernel_size=4, strides=5, pad_mode="pad", pad=(0, 0, 4, 0, 0, 0))
    assert error_of(pool.infer, TensorType(FLOAT64, (1, 1, 8, 8, 8))).message == (
        "MaxPool3D: paddings of 4 and 0 along dimension 3 must be smaller than the window's 4, both together at most "
        "as large"
    )
