"""Convolutional networks on simulated ranks, sharded along every dimension, train as on one device: losses and all
parameters."""

from functools import cache
from typing import Any

import numpy as np
import pytest

from mspc import Tensor, float32, float64, nn, ops, set_seed
from tests.compiled_scripts import Config, compile_call
from tests.graphs import FLOAT32, FLOAT64, INT32, MspcError, TensorType
from tests.mindspore_api.nn.training import Training

IMAGES, CLASSES = (3, 16, 16), 4
Shards = tuple[int, int, int, int] | None
CUTS: dict[str, Shards] = {
    "batch": (4, 1, 1, 1), "height": (1, 1, 2, 1), "both": (1, 1, 2, 2), "out of eight": (2, 1, 4, 1),
    "odd": (3, 1, 1, 1),
}  # fmt: skip


class Block(nn.Cell):
    """A stem, a residual block and a depthwise convolution, operators sharded as `shards`, channels as `channels`."""

    def __init__(self, shards: Shards, channels: int, dtype: Any) -> None:
        super().__init__()
        given: dict[str, Any] = {"pad_mode": "pad", "padding": 1, "dtype": dtype}
        self.conv1 = nn.Conv2d(3, 8, 3, **given)
        self.bn1 = nn.BatchNorm2d(8, dtype=dtype)
        self.pool = nn.MaxPool2d(3, 2, pad_mode="pad", padding=1)
        self.conv2 = nn.Conv2d(8, 8, 3, **given)
        self.bn2 = nn.BatchNorm2d(8, momentum=0.5, dtype=dtype)
        self.relu = nn.ReLU()
        self.add = ops.Add()
        self.conv3 = nn.Conv2d(8, 8, 3, 2, pad_mode="same", group=8, dtype=dtype)
        self.mean = nn.AvgPool2d(2, 1, pad_mode="same")
        self.head = nn.Dense(8, CLASSES, dtype=dtype)
        self.loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")
        if shards is not None:
            self.shard(shards, channels)

    def shard(self, shards: Shards, channels: int) -> None:
        """Channels are those of the second convolution's input."""
        n, _, h, w = shards
        self.conv1.conv2d.shard((shards, (1, 1, 1, 1)))
        self.conv2.conv2d.shard(((n, channels, h, w), (1, channels, 1, 1)))
        self.bn1.bn_train.shard((shards, (1,), (1,), (1,), (1,)))
        self.pool.max_pool.shard((shards,))
        self.conv3.conv2d.shard((shards, (1, 1, 1, 1)))

    def construct(self, x: Any, label: Any) -> Any:
        x = self.pool(self.relu(self.bn1(self.conv1(x))))
        x = self.add(self.relu(self.bn2(self.conv2(x))), x)
        x = self.mean(self.conv3(x))
        return self.loss(self.head(ops.mean(x, (2, 3))), label)


@cache
def trained(shards: Shards, channels: int, ranks: int, mode: str, wide: bool, batch: int, device: str = "CPU") -> Any:
    """(losses, parameters after each, operators) of three steps."""
    set_seed(3)
    dtype, kind, array = (float64, FLOAT64, np.float64) if wide else (float32, FLOAT32, np.float32)
    net = Block(shards, channels, dtype)
    generator = np.random.default_rng(5)
    for parameter in net.get_parameters():
        if parameter.requires_grad:
            parameter.set_data(Tensor(generator.uniform(-0.4, 0.5, parameter.shape).astype(array)))
    step = nn.TrainOneStepCell(net, nn.Momentum(net.trainable_params(), 0.05, 0.9))
    step.set_train()
    shapes: list[tuple[int, ...]] = [(batch, *IMAGES), (batch,)]
    training = Training(step, shapes, ranks, mode, [kind, INT32], gradients_mean=True, device=device)
    batches = [
        [generator.standard_normal(shapes[0]).astype(array), generator.integers(0, CLASSES, batch).astype(np.int32)]
        for _ in range(3)
    ]
    losses = [np.asarray(found).reshape(()) for found in training.run(batches)]
    return losses, training.states, training.names()


def compared(shards: Shards, channels: int, ranks: int, mode: str, wide: bool = True, device: str = "CPU") -> Any:
    """The results of ranks, after the comparison with one device."""
    batch = 12 if ranks == 3 else 8
    found = trained(shards, channels, ranks, mode, wide, batch, device)
    expected = trained(None, 1, 1, "stand_alone", wide, batch)
    close = 1e-10 if wide else 1e-5
    if mode != "data_parallel":  # there a rank's loss is that of its own rows
        np.testing.assert_allclose(found[0], expected[0], rtol=close)
    for mine, theirs in zip(found[1], expected[1], strict=True):
        for name, array in theirs.items():
            scale = max(float(np.abs(array).max()), 1e-2)
            np.testing.assert_allclose(mine[name] / scale, array / scale, atol=close * 10, err_msg=name)
    return found


@pytest.mark.parametrize(("name", "wide"), [*((name, True) for name in CUTS), ("out of eight", False)])
def test_sharded_images(name: str, wide: bool) -> None:
    shards = CUTS[name]
    found = compared(shards, 1, int(np.prod(shards)), "semi_auto_parallel", wide)
    assert ("NeighborExchange" in found[2]) == (shards[2] * shards[3] > 1)


@pytest.mark.parametrize(
    ("shards", "channels", "ranks"), [((2, 1, 1, 1), 2, 4), ((1, 1, 2, 1), 4, 8), ((2, 1, 1, 1), 4, 8)]
)
def test_sharded_channels(shards: Shards, channels: int, ranks: int) -> None:
    compared(shards, channels, ranks, "semi_auto_parallel")


@pytest.mark.share(2)
@pytest.mark.parametrize("mode", ["semi_auto_parallel", "auto_parallel", "data_parallel"])
@pytest.mark.parametrize("ranks", [2, 3, 8])
def test_nothing_configured(ranks: int, mode: str) -> None:
    """In data parallel mode too the statistics are those of all ranks' rows."""
    compared(None, 1, ranks, mode)


@pytest.mark.share(2)
@pytest.mark.parametrize(
    ("name", "channels", "ranks"),
    [("", 1, 1), *((name, 1, int(np.prod(shards))) for name, shards in CUTS.items()), ("batch", 2, 8)],
)
def test_in_the_order_of_gpus(name: str, channels: int, ranks: int) -> None:
    """Graphs for GPUs, with their channels last, give the same numbers; nothing large is transposed but the images
    that come in and weights of more than one place."""
    mode = "semi_auto_parallel" if ranks > 1 else "stand_alone"
    found = compared(CUTS.get(name), channels, ranks, mode, device="GPU")
    assert not any("BatchNorm" in operator for operator in found[2])
    assert "JoinStatistics" not in found[2]
    sharing = ranks // channels
    assert found[2].count("JoinMovingStatistics") == 2 * (sharing == 2)
    assert found[2].count("MovingStatistics") == 2 * (sharing > 2)
    assert found[2].count("Conv2D") == 3


class Sharded(nn.Cell):
    """One operator with a strategy for its image."""

    def __init__(self, cell: Any, primitive: str, strategy: tuple[int, ...] | None) -> None:
        super().__init__()
        self.cell = cell
        if strategy is not None:
            entries = (strategy, (1, 1, 1, 1)) if primitive == "conv2d" else (strategy,)
            getattr(cell, primitive).shard(entries)

    def construct(self, x: Any) -> Any:
        return self.cell(x)


def message(cell: Any, primitive: str, strategy: tuple[int, ...] | None, shape: tuple[int, ...], ranks: int = 4) -> str:
    with pytest.raises(MspcError) as caught:
        compile_call(Sharded(cell, primitive, strategy), [TensorType(FLOAT32, shape)],
                       Config(ranks=ranks, mode="semi_auto_parallel", dataset_strategy="full_batch"))  # fmt: skip
    error = caught.value
    return "\n".join([error.message, *error.notes])


FOUR = (1, 1, 4, 1)
BESIDE = "reads beyond the slices beside its own, or a slice has no result\nshard it into 1, 2 slices"


@pytest.mark.parametrize(("cell", "shape", "expected"), [
    (lambda: nn.Conv2d(4, 4, 9), (4, 4, 8, 8),
     f"would be sharded into 4 slices of 2 places, but a window that spans 9 {BESIDE}"),
    (lambda: nn.Conv2d(4, 4, 3, dilation=4), (4, 4, 8, 8),
     f"would be sharded into 4 slices of 2 places, but a window that spans 9 {BESIDE}"),
    (lambda: nn.Conv2d(4, 4, 3), (4, 4, 6, 8),
     "has 6 places, which 4 does not divide\nshard it into 1, 2, 3, 6 slices"),
    (lambda: nn.Conv2d(4, 4, 3, 2, "valid"), (4, 4, 8, 8),
     "makes 3 places of the result, which 4 does not divide\nuse 1 there"),
])  # fmt: skip
def test_height_sharded_finer_than_borders_allow(cell: Any, shape: tuple[int, ...], expected: str) -> None:
    found = message(cell(), "conv2d", FOUR, shape)
    assert found == f"Conv2D 'conv2d': dimension 2 of input 0 {expected}"


def test_pools_sharded_finer_than_borders_allow() -> None:
    found = message(nn.MaxPool2d(5, 1, "same"), "max_pool", FOUR, (4, 4, 4, 4))
    assert found == (
        "MaxPool 'max_pool': dimension 2 of input 0 would be sharded into 4 slices of 1 place, but a window that "
        f"spans 5 {BESIDE}"
    )
    found = message(nn.AvgPool2d(3, 1, "same"), "avg_pool", (1, 1, 1, 4), (4, 4, 4, 6))
    assert found == (
        "AvgPool 'avg_pool': dimension 3 of input 0 has 6 places, which 4 does not divide\n"
        "shard it into 1, 2, 3, 6 slices"
    )
    found = message(nn.MaxPool2d(2, 2, "pad", return_indices=True), "max_pool", (1, 1, 2, 1), (4, 4, 4, 4))
    assert found == (
        "MaxPoolWithArgmaxV2 'max_pool': dimension 2 of input 0 must not be sharded, "
        "but the strategy shards it into 2 slices\n"
        "use 1 there"
    )


def test_batch_and_ranks() -> None:
    found = message(nn.Conv2d(4, 4, 3), "conv2d", (4, 1, 1, 1), (6, 4, 8, 8))
    assert found == (
        "Conv2D 'conv2d': dimension 0 of input 0 is 6, which 4 does not divide\nshard it into 1, 2, 3 or 6 slices"
    )
    found = message(nn.Conv2d(4, 4, 3), "conv2d", (2, 1, 1, 1), (4, 4, 8, 8), 3)
    assert found.startswith("Conv2D 'conv2d': the strategy ((2, 1, 1, 1), (1, 1, 1, 1)) uses 2 ranks, which does not")


@pytest.mark.parametrize(("cell", "operator", "spans", "padding"), [
    (lambda: nn.Conv2d(4, 4, 9, pad_mode="valid"), "Conv2D 'conv2d'", "9", 0),
    (lambda: nn.Conv2d(4, 4, 11, pad_mode="pad", padding=1), "Conv2D 'conv2d'", "11", 2),
    (lambda: nn.Conv2d(4, 4, 3, pad_mode="valid", dilation=4), "Conv2D 'conv2d'",
     "9 (a kernel of 3 with dilation 4)", 0),
    (lambda: nn.MaxPool2d(9), "MaxPool 'max_pool'", "9", 0),
    (lambda: nn.AvgPool2d(9, pad_mode="pad"), "AvgPool 'avg_pool'", "9", 0),
    (lambda: nn.MaxPool2d(9, pad_mode="pad", return_indices=True), "MaxPoolWithArgmaxV2 'max_pool'", "9", 0),
])  # fmt: skip
def test_a_window_larger_than_the_image(cell: Any, operator: str, spans: str, padding: int) -> None:
    found = message(cell(), "", None, (4, 4, 8, 8))
    assert found == (
        f"{operator}: the window along dimension 2 spans {spans}, more than the image with its 8 and {padding} of "
        "padding\nuse a smaller kernel, a larger image, or more padding"
    )


def test_functions_of_images() -> None:
    class Rearranged(nn.Cell):
        def construct(self, x: Any) -> Any:
            return ops.pixel_shuffle(x, 3)

    with pytest.raises(ValueError, match="pixel_shuffle") as caught:
        compile_call(Rearranged(), [TensorType(FLOAT32, (4, 4, 8, 8))], Config(ranks=1))
    assert str(getattr(caught.value, "message", "")) == (
        "pixel_shuffle: the channels of shape (4, 4, 8, 8) cannot be shared out to blocks of 3 x 3"
    )
