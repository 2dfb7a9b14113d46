"""The sample's ResNet, narrow and with one block a stage, on simulated ranks beside one device: every mode, channels
sharded and height sharded; in steps of training, and as `mspc verify` has it."""

import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc import Tensor, nn, set_seed
from mspc.ir.types import FLOAT32, FLOAT64, INT32
from mspc.mindspore_api import alias
from tests.compiled_scripts import CompileOptions, verify_target
from tests.mindspore_api.nn.training import Training
from tests.shares import is_taken

Cut = tuple[int, int, int]
"""Slices of the batch, of the channels and of the height."""
CUTS: dict[str, tuple[int, Cut]] = {
    "channels": (2, (1, 2, 1)), "channels in four": (4, (1, 4, 1)), "batch and channels": (8, (4, 2, 1)),
    "height": (2, (1, 1, 2)), "height in four": (4, (1, 1, 4)), "batch and height": (8, (2, 1, 4)),
    "three": (3, (3, 1, 1)), "all": (8, (2, 2, 2)),
}  # fmt: skip
SIDE, CLASSES, BLOCKS, WIDTH = 32, 4, (1, 1), 4
NARROW = 3
"""One in so many cases runs in Float32 beside Float64, which shows more."""
SCRIPT = """
import sys
sys.path.insert(0, {folder!r})
import numpy as np
from mindspore import Tensor, nn, context
from mindspore.communication import get_group_size, init
from resnet import ResNet
init()
context.set_auto_parallel_context(parallel_mode={mode!r}, gradients_mean=True)
net = nn.WithLossCell(ResNet((1, 1), 4, 4), nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"))
step = nn.TrainOneStepCell(net, nn.Momentum(net.trainable_params(), 0.01, 0.9))
step.set_train()
rows = 24 // get_group_size()
step(Tensor(np.zeros((rows, 3, 16, 16), np.float32)), Tensor(np.zeros(rows, np.int32)))
"""


@pytest.fixture(autouse=True)
def resnet(samples: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    alias.install()
    monkeypatch.syspath_prepend(str(samples / "resnet50_cifar10"))
    yield
    sys.modules.pop("resnet", None)


def shard(net: Any, cut: Cut) -> None:
    """Every second convolution's output channels are sharded, those of the input of all others."""
    n, c, h = cut
    convolutions = [cell for _, cell in net.cells_and_names() if isinstance(cell, nn.Conv2d)]
    for index, cell in enumerate(convolutions):
        inner = c if index % 2 else 1
        cell.conv2d.shard(((n, inner, h, 1), (1 if index % 2 else c, inner, 1, 1)))
    for _, cell in net.cells_and_names():
        if isinstance(cell, nn.BatchNorm2d):
            cell.bn_train.shard(((n, c, h, 1), (c,), (c,), (c,), (c,)))
        if isinstance(cell, nn.MaxPool2d):
            cell.max_pool.shard(((n, 1, h, 1),))


@cache
def trained(cut: Cut | None, ranks: int, mode: str, wide: bool, batch: int) -> tuple[list[Any], list[Any], list[str]]:
    """(losses, parameters after each, operators) of two steps."""
    from resnet import ResNet  # type: ignore[import-not-found]  # the sample's, by the fixture above

    set_seed(3)
    kind, array = (FLOAT64, np.float64) if wide else (FLOAT32, np.float32)
    net: Any = ResNet(BLOCKS, CLASSES, WIDTH)
    if cut is not None:
        shard(net, cut)
    random = np.random.default_rng(5)
    for parameter in net.get_parameters():
        values = parameter.asnumpy() + (random.uniform(-0.1, 0.1, parameter.shape) if parameter.requires_grad else 0)
        parameter.set_dtype(kind)
        parameter.set_data(Tensor(values.astype(array)))
    with_loss = nn.WithLossCell(net, nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean"))
    step = nn.TrainOneStepCell(with_loss, nn.Momentum(net.trainable_params(), 0.01, 0.9))
    step.set_train()
    shapes: list[tuple[int, ...]] = [(batch, 3, SIDE, SIDE), (batch,)]
    training = Training(step, shapes, ranks, mode, [kind, INT32], gradients_mean=True)
    batches = [
        [random.standard_normal(shapes[0]).astype(array), random.integers(0, CLASSES, batch).astype(np.int32)]
        for _ in range(2)
    ]
    losses = [np.asarray(found).reshape(()) for found in training.run(batches)]
    return losses, training.states, training.names()


def compare(cut: Cut | None, ranks: int, mode: str, wide: bool) -> list[str]:
    """Compare with one device; the operators."""
    batch = 6 if ranks == 3 else 8
    losses, states, names = trained(cut, ranks, mode, wide, batch)
    wanted_losses, wanted, _ = trained(None, 1, "stand_alone", wide, batch)
    if mode != "data_parallel":  # there a rank's loss is that of its own rows
        np.testing.assert_allclose(losses[0], wanted_losses[0], rtol=1e-10 if wide else 1e-5)
    for name, array in wanted[0].items():  # of these the moments are the gradients
        close = 1e-10 if wide else 1e-5 if "moving" in name else 1e-4
        scale = max(float(np.abs(array).max()), 1e-3)
        np.testing.assert_allclose(states[0][name] / scale, array / scale, atol=close, err_msg=name)
    for name, array in wanted[1].items() if wide else ():
        scale = max(float(np.abs(array).max()), 1e-3)
        np.testing.assert_allclose(states[1][name] / scale, array / scale, atol=1e-9, err_msg=name)
    return names


@pytest.mark.share(2)
@pytest.mark.parametrize(
    ("name", "wide"),
    [
        pytest.param(name, wide, id=f"{name}-{'Float64' if wide else 'Float32'}")
        for place, name in enumerate(CUTS)
        for wide in (True, False)
        if wide or is_taken(place, NARROW)
    ],
)
def test_cut_by_hand(name: str, wide: bool) -> None:
    ranks, cut = CUTS[name]
    names = compare(cut, ranks, "semi_auto_parallel", wide)
    assert ("NeighborExchange" in names) == (cut[2] > 1)


@pytest.mark.parametrize(
    ("place", "ranks", "mode"),
    [
        (place, ranks, mode)
        for place, ranks in enumerate([2, 3, 4, 8])
        for turn, mode in enumerate(["data_parallel", "auto_parallel"])
        if is_taken(place + turn, 2)
    ],
)
def test_nothing_cut_by_hand(place: int, ranks: int, mode: str) -> None:
    """By turns in one mode or the other."""
    compare(None, ranks, mode, True)
    if is_taken(place, NARROW):
        compare(None, ranks, mode, False)


@pytest.mark.share(3)
@pytest.mark.parametrize(("mode", "ranks"), [("data_parallel", 3), ("auto_parallel", 4), ("semi_auto_parallel", 2)])
def test_verify(samples: Path, tmp_path: Path, mode: str, ranks: int, capsys: pytest.CaptureFixture[str]) -> None:
    """In data parallel mode one device computes the statistics of a batch of all ranks' rows."""
    script = tmp_path / "train.py"
    script.write_text(SCRIPT.format(folder=str(samples / "resnet50_cifar10"), mode=mode))
    verify_target(str(script), CompileOptions(ranks=ranks), seed=0)
    said = capsys.readouterr().out
    assert f"values on {ranks} ranks within 1e-05 of one device" in said
