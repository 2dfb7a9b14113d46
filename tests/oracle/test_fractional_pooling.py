"""Pooling at drawn places beside PyTorch: values, places, gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mspc import Tensor, nn, ops

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install -e '.[oracle]'")

from tests.oracle.against import floats, near, same  # noqa: E402  # it imports PyTorch

CASES = [
    (2, (2, 3, 9, 8), (2, 3), {"output_size": (4, 3)}, 2),
    (2, (2, 3, 9, 8), 2, {"output_ratio": (0.5, 0.7)}, 1),
    (2, (3, 7, 6), 3, {"output_size": 1}, 1),
    (3, (2, 3, 6, 9, 8), (2, 2, 3), {"output_size": (3, 4, 3)}, 2),
    (3, (2, 3, 6, 5, 4), 2, {"output_ratio": 0.6}, 1),
]


@pytest.mark.parametrize(("dims", "shape", "window", "size", "images"), CASES)
def test_windows_lie_where_pytorchs_do(dims: int, shape: tuple[int, ...], window: Any, size: Any, images: int) -> None:
    drawn = floats(3, images, shape[-dims - 1], dims, low=0.0, high=1.0)
    whole = np.broadcast_to(drawn, (shape[0] if len(shape) == dims + 2 else 1, *drawn.shape[1:])).copy()
    theirs = getattr(torch.nn.functional, f"fractional_max_pool{dims}d")
    layer = {2: nn.FractionalMaxPool2d, 3: nn.FractionalMaxPool3d}[dims]
    x = floats(4, *shape)
    places = layer(window, return_indices=True, _random_samples=Tensor(drawn), **size)(Tensor(x))[1]
    expected = theirs(torch.tensor(x), window, return_indices=True, _random_samples=torch.tensor(whole), **size)[1]
    near(places.asnumpy(), expected.numpy())
    same(
        layer(window, _random_samples=Tensor(drawn), **size),
        lambda x: theirs(x, window, _random_samples=torch.tensor(whole), **size), [x],
    )  # fmt: skip


def test_places_are_drawn_anew_where_none_are_given() -> None:
    x = Tensor(floats(5, 2, 8, 16, 16))
    first, second = (ops.fractional_max_pool2d(x, 2, 7).asnumpy() for _ in range(2))
    assert first.shape == second.shape == (2, 8, 7, 7)
    assert (first != second).any()
