"""Strategies that images cannot have, and windows larger than images: one message each, with what would be right."""

from __future__ import annotations

from typing import Any

import pytest

from mspc import nn, ops
from mspc.compiler.config import Config
from mspc.compiler.driver import compile_call
from mspc.ir.diagnostics import MspcError
from mspc.ir.types import FLOAT32, TensorType


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
