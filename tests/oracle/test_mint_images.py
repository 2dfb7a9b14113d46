"""Cells of `mint.nn` for images against those of PyTorch of the same name and arguments."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mspc import Tensor, mint

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install -e '.[oracle]'")

from tests.oracle.against import floats, near, same  # noqa: E402  # it imports PyTorch

LINE, IMAGE, VOLUME = (
    floats(n, *shape, dtype=np.float32) for n, shape in enumerate([(2, 4, 9), (2, 4, 6, 8), (2, 4, 4, 6, 3)], 1)
)
CELLS: list[tuple[str, tuple[Any, ...], dict[str, Any], np.ndarray]] = [
    ("Conv1d", (4, 6, 3), {"padding": 1}, LINE),
    ("Conv1d", (4, 6, 3), {"padding": 2, "stride": 2, "padding_mode": "circular", "groups": 2}, LINE),
    ("Conv2d", (4, 6, 3), {}, IMAGE),
    ("Conv2d", (4, 6, (3, 2)), {"stride": (2, 1), "padding": (1, 0), "bias": False}, IMAGE),
    ("Conv2d", (4, 6, 3), {"padding": "same", "dilation": (2, 1)}, IMAGE),
    ("Conv2d", (4, 6, 2), {"padding": "same", "padding_mode": "reflect"}, IMAGE),
    ("Conv2d", (4, 4, 3), {"padding": "valid", "groups": 4}, IMAGE),
    ("Conv2d", (4, 6, 3), {"padding": (1, 2), "padding_mode": "replicate"}, IMAGE),
    ("Conv2d", (4, 6, 3), {"padding": 1}, IMAGE[0]),
    ("Conv3d", (4, 6, 3), {"padding": (1, 0, 1), "stride": (1, 2, 1)}, VOLUME),
    ("BatchNorm1d", (4,), {}, LINE),
    ("BatchNorm2d", (4,), {"eps": 1e-3, "momentum": 0.3}, IMAGE),
    ("BatchNorm2d", (4,), {"affine": False}, IMAGE),
    ("BatchNorm3d", (4,), {"track_running_stats": False}, VOLUME),
    ("GroupNorm", (2, 4), {}, IMAGE),
    ("GroupNorm", (4, 4, 1e-3, False), {}, LINE),
    ("MaxPool2d", (2,), {}, IMAGE),
    ("MaxPool2d", (3, 2, 1), {"ceil_mode": True}, IMAGE),
    ("AvgPool2d", (2,), {}, IMAGE),
    ("AvgPool2d", (3, 2, 1), {"count_include_pad": False}, IMAGE),
    ("AdaptiveAvgPool1d", (3,), {}, LINE),
    ("AdaptiveAvgPool2d", ((2, 3),), {}, IMAGE),
    ("AdaptiveAvgPool3d", (2,), {}, VOLUME),
    ("Flatten", (), {}, IMAGE),
    ("Flatten", (2,), {}, IMAGE),
]


@pytest.mark.parametrize(("name", "given", "named", "x"), CELLS)
def test_a_cell_is_pytorchs(name: str, given: Any, named: Any, x: np.ndarray) -> None:
    """mint.nn.BatchNorm1d mint.nn.BatchNorm2d mint.nn.BatchNorm3d mint.nn.Conv1d mint.nn.Conv2d mint.nn.Conv3d
    mint.nn.GroupNorm mint.nn.AvgPool2d mint.nn.AdaptiveAvgPool1d
    mint.nn.AdaptiveAvgPool2d mint.nn.AdaptiveAvgPool3d mint.nn.Flatten"""
    mine, theirs = getattr(mint.nn, name)(*given, **named), getattr(torch.nn, name)(*given, **named)
    state = dict(theirs.named_parameters())
    own = {p.name: p for p in mine.get_parameters() if p.requires_grad}
    assert set(own) == set(state)
    for seed, (key, parameter) in enumerate(own.items()):
        assert tuple(parameter.shape) == tuple(state[key].shape)
        value = floats(seed + 7, *parameter.shape, dtype=np.float32)
        parameter.set_data(Tensor(value))
        state[key].data = torch.tensor(value)
    mine.set_train()
    same(mine, theirs, [x])
    if getattr(theirs, "running_mean", None) is None:
        return
    before = mine.running_mean.asnumpy(), mine.running_var.asnumpy()
    theirs.running_mean.data, theirs.running_var.data = map(torch.tensor, before)
    mine(Tensor(x))
    theirs(torch.tensor(x))
    near(mine.running_mean.asnumpy(), theirs.running_mean.numpy(), "running mean")
    near(mine.running_var.asnumpy(), theirs.running_var.numpy(), "running variance")
    mine.set_train(False)
    theirs.train(False)
    same(mine, theirs, [x])


def test_synchronised_statistics_are_those_of_the_batch() -> None:
    mine = mint.nn.SyncBatchNorm(4)
    mine.set_train()
    same(mine, torch.nn.BatchNorm2d(4), [IMAGE])
