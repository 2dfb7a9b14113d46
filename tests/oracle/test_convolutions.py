"""Convolutions, pooling, resizing and normalisation of channels against PyTorch: values and every gradient."""

from typing import Any

import numpy as np
import pytest

from mspc import Tensor, float64, mint, nn, ops

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install -e '.[oracle]'")

from tests.oracle.against import floats, near, same  # noqa: E402  # it imports PyTorch

F = torch.nn.functional

CONVOLUTIONS = [
    ((2, 4, 9, 8), (6, 4, 3, 3), 1, 0, 1, 1),
    ((2, 4, 9, 8), (6, 4, 3, 3), 1, 1, 1, 1),
    ((1, 4, 9, 8), (6, 2, 3, 2), 2, (1, 0), 1, 2),
    ((2, 4, 9, 8), (4, 1, 3, 3), (2, 1), 2, 2, 4),
    ((2, 3, 7, 7), (8, 1, 2, 3), 3, 1, 1, 3),
    ((3, 4, 5, 6), (2, 4, 1, 1), 2, 0, 1, 1),
    ((2, 2, 3, 3), (2, 2, 5, 5), 1, 2, 1, 1),
    ((2, 6, 8, 8), (6, 2, 7, 7), 2, 3, 1, 3),
]


@pytest.mark.parametrize(("x", "weight", "stride", "padding", "dilation", "groups"), CONVOLUTIONS)
@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_conv2d(x: Any, weight: Any, stride: Any, padding: Any, dilation: Any, groups: int, dtype: Any) -> None:
    if groups > weight[0] or weight[0] % groups:
        weight = (groups * 2, *weight[1:])
    arrays = [floats(1, *x, dtype=dtype), floats(2, *weight, dtype=dtype), floats(3, weight[0], dtype=dtype)]
    same(lambda a, w, b: ops.conv2d(a, w, b, stride, "pad", padding, dilation, groups),
         lambda a, w, b: F.conv2d(a, w, b, stride, padding, dilation, groups), arrays)  # fmt: skip


@pytest.mark.parametrize(
    ("length", "kernel", "stride", "dilation"), [(8, 3, 1, 1), (8, 3, 2, 1), (7, 2, 2, 1), (9, 3, 1, 2)]
)
def test_same_padding_puts_the_odd_place_behind(length: int, kernel: int, stride: int, dilation: int) -> None:
    total = max((-(-length // stride) - 1) * stride + (kernel - 1) * dilation + 1 - length, 0)
    sides = (total // 2, total - total // 2) * 2

    def theirs(a: Any, w: Any) -> Any:
        return F.conv2d(F.pad(a, sides), w, None, stride, 0, dilation)

    same(lambda a, w: ops.conv2d(a, w, None, stride, "same", 0, dilation), theirs,
         [floats(1, 2, 3, length, length), floats(2, 4, 3, kernel, kernel)])  # fmt: skip


def test_conv1d_and_conv3d() -> None:
    same(lambda a, w, b: ops.conv1d(a, w, b, 2, "pad", 1, 1, 2), lambda a, w, b: F.conv1d(a, w, b, 2, 1, 1, 2),
         [floats(1, 2, 4, 9), floats(2, 6, 2, 3), floats(3, 6)])  # fmt: skip
    same(lambda a, w, b: ops.conv3d(a, w, b, (1, 2, 1), "pad", 1, 1, 2),
         lambda a, w, b: F.conv3d(a, w, b, (1, 2, 1), 1, 1, 2),
         [floats(1, 2, 4, 5, 6, 4), floats(2, 6, 2, 3, 3, 3), floats(3, 6)])  # fmt: skip


@pytest.mark.parametrize(
    ("stride", "padding", "more", "groups"), [(1, 0, 0, 1), (2, 1, 1, 1), (3, 0, 0, 2), (2, 1, 0, 4)]
)
def test_transposed(stride: int, padding: int, more: int, groups: int) -> None:
    cell = nn.Conv2dTranspose(4, 8, 3, stride, "pad", padding, more, 1, groups, has_bias=True, dtype=float64)
    theirs = torch.nn.ConvTranspose2d(4, 8, 3, stride, padding, 0, groups).double()
    _load(cell, theirs)
    same(cell, lambda x: F.pad(theirs(x), (0, more, 0, more)), [floats(1, 2, 4, 5, 6)])


@pytest.mark.parametrize(("cell", "theirs", "shape"), [
    (lambda: nn.Conv1d(4, 6, 3, 2, "pad", 1, has_bias=True, dtype=float64),
     lambda: torch.nn.Conv1d(4, 6, 3, 2, 1), (2, 4, 9)),
    (lambda: nn.Conv1dTranspose(4, 6, 3, 2, "pad", 1, has_bias=True, dtype=float64),
     lambda: torch.nn.ConvTranspose1d(4, 6, 3, 2, 1), (2, 4, 9)),
    (lambda: nn.Conv2d(4, 6, (3, 2), 2, "pad", (1, 1, 0, 0), group=2, has_bias=True, dtype=float64),
     lambda: torch.nn.Conv2d(4, 6, (3, 2), 2, (1, 0), groups=2), (2, 4, 9, 8)),
    (lambda: nn.Conv3d(4, 6, 3, 2, "pad", 1, has_bias=True, dtype=float64),
     lambda: torch.nn.Conv3d(4, 6, 3, 2, 1), (2, 4, 5, 6, 7)),
    (lambda: nn.Conv3dTranspose(4, 6, 3, 2, "pad", 1, has_bias=True, dtype=float64),
     lambda: torch.nn.ConvTranspose3d(4, 6, 3, 2, 1), (2, 4, 3, 4, 2)),
])  # fmt: skip
def test_cells(cell: Any, theirs: Any, shape: tuple[int, ...]) -> None:
    mine, judged = cell(), theirs().double()
    _load(mine, judged)
    same(mine, judged, [floats(1, *shape)])


def _load(cell: Any, judged: Any) -> None:
    """Give both the same weights and bias, in Float64."""
    for name in ("weight", "bias"):
        parameter, other = getattr(cell, name), getattr(judged, name)
        values = floats(sum(map(ord, name)), *other.shape, low=-1.0, high=1.0)
        other.data = torch.tensor(values)
        parameter.set_data(Tensor(values.reshape(parameter.shape)))


@pytest.mark.parametrize(("kernel", "stride", "padding", "ceil"), [
    (2, 2, 0, False), (3, 2, 1, False), (3, 2, 1, True), ((3, 2), (1, 2), (1, 0), False), (3, 1, 1, True),
    (2, 3, 0, True),
])  # fmt: skip
def test_pooling(kernel: Any, stride: Any, padding: Any, ceil: bool) -> None:
    x = [floats(1, 2, 3, 8, 7)]
    same(lambda a: ops.max_pool2d(a, kernel, stride, padding, 1, False, ceil),
         lambda a: F.max_pool2d(a, kernel, stride, padding, 1, ceil), x)  # fmt: skip
    for counted in (True, False):
        same(lambda a, c=counted: ops.avg_pool2d(a, kernel, stride, padding, ceil, c),
             lambda a, c=counted: F.avg_pool2d(a, kernel, stride, padding, ceil, c), x)  # fmt: skip
    same(lambda a: ops.avg_pool2d(a, kernel, stride, padding, ceil, True, 5),
         lambda a: F.avg_pool2d(a, kernel, stride, padding, ceil, True, 5), x)  # fmt: skip


def test_pooling_in_one_and_three_dimensions() -> None:
    same(nn.MaxPool1d(3, 2, "pad", 1), torch.nn.MaxPool1d(3, 2, 1), [floats(1, 2, 3, 9)])
    same(nn.AvgPool1d(3, 2, "pad", 1), torch.nn.AvgPool1d(3, 2, 1), [floats(1, 2, 3, 9)])
    same(nn.MaxPool3d(3, 2, "pad", 1), torch.nn.MaxPool3d(3, 2, 1), [floats(1, 2, 3, 5, 6, 4)])
    same(nn.AvgPool3d(3, 2, "pad", 1, count_include_pad=False),
         torch.nn.AvgPool3d(3, 2, 1, count_include_pad=False), [floats(1, 2, 3, 5, 6, 4)])  # fmt: skip
    same(nn.MaxPool2d(3, 2, "pad", 1, dilation=2), torch.nn.MaxPool2d(3, 2, 1, dilation=2), [floats(1, 2, 3, 9, 8)])


def test_greatest_of_equal_ones_and_of_what_is_not_finite() -> None:
    """The first of equal values gets the gradient."""
    x = np.zeros((1, 1, 4, 4))
    x[0, 0, 1, 1] = x[0, 0, 2, 2] = np.inf
    x[0, 0, 3, 0] = -np.inf
    same(lambda a: ops.max_pool2d(a, 3, 1, 1), lambda a: F.max_pool2d(a, 3, 1, 1), [x])
    x[0, 0, 0, 3] = np.nan
    same(lambda a: ops.max_pool2d(a, 2), lambda a: F.max_pool2d(a, 2), [x], grads=[])


@pytest.mark.parametrize("size", [1, 2, (3, 5), (None, 2), 7])
def test_adaptive_means(size: Any) -> None:
    same(lambda a: ops.adaptive_avg_pool2d(a, size), lambda a: F.adaptive_avg_pool2d(a, size), [floats(1, 2, 3, 7, 5)])
    if isinstance(size, int):
        same(lambda a: ops.adaptive_avg_pool1d(a, size), lambda a: F.adaptive_avg_pool1d(a, size), [floats(1, 2, 3, 7)])
        same(lambda a: ops.adaptive_avg_pool3d(a, size), lambda a: F.adaptive_avg_pool3d(a, size),
             [floats(1, 2, 3, 7, 5, 4)])  # fmt: skip


def test_cells_of_pooling_and_resizing() -> None:
    image, line, volume = floats(1, 2, 3, 7, 5), floats(1, 2, 3, 7), floats(1, 2, 3, 4, 5, 6)
    same(nn.AdaptiveAvgPool1d(3), torch.nn.AdaptiveAvgPool1d(3), [line])
    same(nn.AdaptiveAvgPool2d((3, 2)), torch.nn.AdaptiveAvgPool2d((3, 2)), [image])
    same(nn.AdaptiveAvgPool3d(2), torch.nn.AdaptiveAvgPool3d(2), [volume])
    same(nn.AvgPool2d(3, 2, "pad", 1), torch.nn.AvgPool2d(3, 2, 1), [image])
    same(nn.Upsample(scale_factor=2.0, mode="bilinear"), torch.nn.Upsample(scale_factor=2.0, mode="bilinear"), [image])
    same(nn.SyncBatchNorm(3, dtype=float64).set_train(), torch.nn.BatchNorm2d(3).double(), [image])


@pytest.mark.parametrize("size", [(8, 3), (4, 4), (1, 1), (11, 13)])
def test_resizing(size: tuple[int, int]) -> None:
    x = [floats(1, 2, 3, 5, 6)]
    same(lambda a: ops.interpolate(a, size), lambda a: F.interpolate(a, size), x)
    same(lambda a: ops.ResizeNearestNeighbor(size, half_pixel_centers=True)(a),
         lambda a: F.interpolate(a, size, mode="nearest-exact"), x)  # fmt: skip
    for align in (True, False):
        same(lambda a, c=align: ops.interpolate(a, size, None, "bilinear", c),
             lambda a, c=align: F.interpolate(a, size, None, "bilinear", c), x)  # fmt: skip


@pytest.mark.parametrize("shape", [(6, 4), (3, 4, 5), (3, 4, 5, 2), (2, 4, 3, 2, 2)])
@pytest.mark.parametrize("training", [True, False])
def test_batch_norm(shape: tuple[int, ...], training: bool) -> None:
    cells = {2: nn.BatchNorm1d, 3: nn.BatchNorm1d, 4: nn.BatchNorm2d, 5: nn.BatchNorm3d}
    judges = {2: torch.nn.BatchNorm1d, 3: torch.nn.BatchNorm1d, 4: torch.nn.BatchNorm2d, 5: torch.nn.BatchNorm3d}
    mine = cells[len(shape)](4, 1e-3, 0.8, dtype=float64)
    held = mine.bn2d if len(shape) == 5 else mine
    judged = judges[len(shape)](4, 1e-3, 0.2).double()
    for name, other, low in (("gamma", "weight", -1.0), ("beta", "bias", -1.0), ("moving_mean", "running_mean", -1.0),
                             ("moving_variance", "running_var", 0.5)):  # fmt: skip
        values = floats(len(name), 4, low=low, high=2.0)
        getattr(held, name).set_data(Tensor(values))
        getattr(judged, other).data = torch.tensor(values)
    mine.set_train(training)
    judged.train(training)
    x = floats(1, *shape) + 2
    near(mine(Tensor(x)).asnumpy(), judged(torch.tensor(x)).detach().numpy(), "value")
    near(held.moving_mean.asnumpy(), judged.running_mean.numpy(), "moving mean")
    near(held.moving_variance.asnumpy(), judged.running_var.numpy(), "moving variance")
    same(lambda a, g, b: ops.batch_norm(a, held.moving_mean, held.moving_variance, g, b, training, 0.2, 1e-3),
         lambda a, g, b: F.batch_norm(a, judged.running_mean, judged.running_var, g, b, training, 0.2, 1e-3),
         [x, floats(2, 4), floats(3, 4)])  # fmt: skip


@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_statistics_far_from_zero(offset: float) -> None:
    """A mean of 1000 and a deviation of 1 in Float32: sums of squares would leave nothing of the variance."""
    x = (floats(1, 16, 4, 8, 8) / 3 + offset).astype(np.float32)
    mine = nn.BatchNorm2d(4)
    mine.set_train()
    wide = torch.tensor(x.astype(np.float64))
    expected = F.batch_norm(wide, None, None, training=True).numpy()
    np.testing.assert_allclose(mine(Tensor(x)).asnumpy(), expected, atol=2e-3 if offset else 1e-5)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_group_and_instance_norm(dtype: Any) -> None:
    x, gamma, beta = floats(1, 3, 6, 4, 5, dtype=dtype), floats(2, 6, dtype=dtype), floats(3, 6, dtype=dtype)
    for groups in (1, 2, 6):
        same(lambda a, g, b, n=groups: ops.group_norm(a, n, g, b), lambda a, g, b, n=groups: F.group_norm(a, n, g, b),
             [x, gamma, beta])  # fmt: skip
    for cell, shape in ((nn.InstanceNorm1d, (2, 6, 5)), (nn.InstanceNorm2d, (2, 6, 4, 5)),
                        (nn.InstanceNorm3d, (2, 6, 2, 4, 5))):  # fmt: skip
        same(cell(6), F.instance_norm, [floats(4, *shape, dtype=np.float32)])
    same(nn.GroupNorm(3, 6), torch.nn.GroupNorm(3, 6), [floats(5, 2, 6, 4, dtype=np.float32)])


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
