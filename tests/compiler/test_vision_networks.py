"""Convolutional networks of the literature on simulated ranks train two steps as on one device."""

from collections.abc import Callable, Iterable
from functools import cache
from typing import Any

import numpy as np
import pytest

from mspc import nn, ops, set_seed
from mspc.ir.types import FLOAT32, INT32
from tests.compiler import vision_networks
from tests.mindspore_api.nn.training import Training
from tests.shares import is_taken

BATCH, CLASSES = 4, 10
CLASSIFIERS: dict[str, tuple[Callable[[], nn.Cell], tuple[int, ...]]] = {
    "ShuffleNetV2": (lambda: vision_networks.ShuffleNetV2(), (3, 32, 32)),
    "ConvNeXt": (lambda: vision_networks.ConvNeXt(drop_path=0.0), (3, 32, 32)),
    "Pieces": (lambda: vision_networks.Pieces(), (3, 32, 32)),
}
PICTURES: dict[str, tuple[Callable[[], nn.Cell], tuple[int, ...]]] = {
    "UNet": (lambda: vision_networks.UNet(), (3, 16, 16)),
    "DeepLab": (lambda: vision_networks.DeepLab(), (3, 32, 32)),
    "Generator": (lambda: vision_networks.Generator(), (3, 16, 16)),
}
RANDOM: dict[str, tuple[Callable[[], nn.Cell], tuple[int, ...]]] = {
    "ConvNeXt": (lambda: vision_networks.ConvNeXt(), (3, 32, 32)),
}


class Classified(nn.Cell):
    """The loss of a network that names classes."""

    def __init__(self, net: nn.Cell) -> None:
        super().__init__()
        self.net = net
        self.loss = nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")

    def construct(self, x: Any, label: Any) -> Any:
        return self.loss(self.net(x), label)


class Drawn(nn.Cell):
    """The loss of a network that gives images: the mean of their squares, moved by the label."""

    def __init__(self, net: nn.Cell) -> None:
        super().__init__()
        self.net = net

    def construct(self, x: Any, label: Any) -> Any:
        return ops.mean(ops.cast(label, x.dtype)) * 0.01 + ops.mean(ops.square(self.net(x) - 0.3))


def shard(net: nn.Cell, strategy: tuple[int, int, int, int], channels: int) -> int:
    """Shard every convolution that can be; returns how many are."""
    count = 0
    for name, cell in net.cells_and_names():
        is_pooled = "pooling" in name and strategy[2] > 1  # one place of each image
        if is_pooled or not isinstance(cell, nn.Conv2d) or cell.group > 1 or cell.in_channels % channels:
            continue
        n, _, h, w = strategy
        cell.conv2d.shard(((n, channels, h, w), (1, channels, 1, 1)))
        count += 1
    return count


@cache
def trained(kind: str, name: str, ranks: int, mode: str, channels: int = 1, height: int = 1) -> Any:
    """(losses, parameters after each) of two steps, the second of which reads the moments of the first."""
    set_seed(3)
    table = {"classes": CLASSIFIERS, "pictures": PICTURES, "random": RANDOM}[kind]
    make, image = table[name]
    net = make()
    if channels * height > 1:
        assert shard(net, (ranks // channels // height, 1, height, 1), channels)
    network = Drawn(net) if kind == "pictures" else Classified(net)
    step = nn.TrainOneStepCell(network, nn.Momentum(network.trainable_params(), 0.05, 0.9))
    step.set_train()
    shapes: list[tuple[int, ...]] = [(BATCH, *image), (BATCH,)]
    training = Training(step, shapes, ranks, mode, [FLOAT32, INT32], gradients_mean=True)
    generator = np.random.default_rng(5)
    batches = [
        [
            generator.standard_normal(shapes[0]).astype(np.float32),
            generator.integers(0, CLASSES, BATCH).astype(np.int32),
        ]
        for _ in range(2)
    ]
    return [float(np.asarray(found)) for found in training.run(batches)], training.states


def compared(kind: str, name: str, mode: str, channels: int = 1, height: int = 1) -> None:
    ranks = 4 if mode == "auto_parallel" or channels * height > 1 else 2  # where a mesh can have two axes
    losses, states = trained(kind, name, ranks, mode, channels, height)
    expected, alone = trained(kind, name, 1, "stand_alone")
    assert np.isfinite(expected).all()
    if mode != "data_parallel":  # there a rank's loss is that of its own rows
        np.testing.assert_allclose(losses, expected, rtol=1e-5)
    for mine, theirs in zip(states, alone, strict=True):
        for key, array in theirs.items():
            scale = max(float(np.abs(array).max()), 1e-2)
            assert float(np.abs(mine[key] - array).max()) <= 1e-4 * scale, key
    assert any(not np.array_equal(alone[0][key], alone[1][key]) for key in alone[0])


def with_modes(names: Iterable[str]) -> list[tuple[str, str]]:
    """(network, mode): every network in auto parallel mode, and by turns in the other two. In semi-auto parallel mode
    all have strategies below."""
    return [
        (name, mode)
        for place, name in enumerate(names)
        for turn, mode in enumerate(("data_parallel", "semi_auto_parallel", "auto_parallel"))
        if mode == "auto_parallel" or is_taken(place + turn, 3)
    ]


@pytest.mark.share(3)
@pytest.mark.parametrize(("name", "mode"), with_modes(CLASSIFIERS))
def test_classifiers(name: str, mode: str) -> None:
    compared("classes", name, mode)


@pytest.mark.share(2)
@pytest.mark.parametrize(("name", "mode"), with_modes(PICTURES))
def test_pictures(name: str, mode: str) -> None:
    compared("pictures", name, mode)


@pytest.mark.parametrize("name", RANDOM)
def test_random_masks(name: str) -> None:
    compared("random", name, "auto_parallel")


@pytest.mark.share(3)
@pytest.mark.parametrize("name", CLASSIFIERS)
def test_sharded_channels(name: str) -> None:
    compared("classes", name, "semi_auto_parallel", 2)


@pytest.mark.share(2)
@pytest.mark.parametrize("name", PICTURES)
def test_sharded_height(name: str) -> None:
    compared("pictures", name, "semi_auto_parallel", 1, 2)
