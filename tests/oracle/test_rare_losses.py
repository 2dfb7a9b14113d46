"""Losses of pictures and rare classes, turned and spread tensors: PyTorch, or numbers of MindSpore."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mspc import Tensor, mint, nn, ops

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install -e '.[oracle]'")

from tests.oracle.against import floats, near, same  # noqa: E402  # it imports PyTorch

F = torch.nn.functional
LOGITS, PLACES = floats(1, 4, 3), np.array([[1], [0], [2], [2]], np.int32)
PICTURE, WEIGHT = np.arange(6).reshape(2, 3) / 6, np.array([1, 2, 0.5])


@pytest.mark.parametrize("reduction", ["mean", "sum", "none"])
def test_margins(reduction: str) -> None:
    classes, weight = np.array([2, 0, 1, 1]), torch.tensor(WEIGHT)
    target = torch.tensor(classes)
    for p in (1, 2):
        same(lambda x, p=p: ops.multi_margin_loss(x, Tensor(classes), p, 2, Tensor(WEIGHT), reduction),
             lambda x, p=p: F.multi_margin_loss(x, target, p, 2, weight, reduction=reduction), [LOGITS])  # fmt: skip
    labels = np.array([[2, 0, -1], [1, -1, 0], [0, 1, 2], [-1, 1, 1]])
    same(lambda x: ops.multilabel_margin_loss(x, Tensor(labels), reduction),
         lambda x: F.multilabel_margin_loss(x, torch.tensor(labels), reduction=reduction), [LOGITS])  # fmt: skip
    same(lambda x: ops.multilabel_margin_loss(x, Tensor(labels[0].astype(np.int32)), reduction),
         lambda x: F.multilabel_margin_loss(x, torch.tensor(labels[0]), reduction=reduction), [LOGITS[0]])  # fmt: skip




def test_numbers_of_mindspore() -> None:
    """MindSpore 2.10 on a CPU."""
    near(nn.DiceLoss()(Tensor(PICTURE), Tensor(np.eye(2, 3))).asnumpy(), np.array(0.62204826), "DiceLoss", 3e-5)


def test_dice() -> None:
    def theirs(a: Any, b: Any) -> Any:
        return 1 - (2 * (a * b).sum() + 1e-5) / ((a * a).sum() + (b * b).sum() + 1e-5)

    same(nn.DiceLoss(), theirs, [PICTURE, np.eye(2, 3)])


@pytest.mark.parametrize("k", [0, 1, 2, 3, -1, 6])
def test_quarters(k: int) -> None:
    x = floats(1, 2, 3, 4)
    for dims in ((0, 1), (2, 1), (0, -1)):
        same(lambda a, d=dims: ops.rot90(a, k, d), lambda a, d=dims: torch.rot90(a, k, d), [x])
    same(ops.fliplr, torch.fliplr, [x])
    same(ops.flipud, torch.flipud, [x])


def test_grids_of_vectors_and_extrema() -> None:
    vectors = [floats(1, 3), floats(2, 4), floats(3, 2)]
    for indexing in ("xy", "ij"):
        for count in (1, 2, 3):
            given = vectors[:count]
            judged = torch.meshgrid(*map(torch.tensor, given), indexing=indexing)
            for mine in (ops.meshgrid(*map(Tensor, given), indexing=indexing),
                         mint.meshgrid(*map(Tensor, given), indexing=indexing)):  # fmt: skip
                assert all(np.array_equal(a.asnumpy(), b.numpy()) for a, b in zip(mine, judged, strict=True))
    x = floats(5, 3, 4)
    for mine, theirs in ((ops.max, torch.max), (ops.min, torch.min)):
        same(lambda a, m=mine: m(a, 1)[0], lambda a, t=theirs: t(a, 1)[0], [x])
        same(lambda a, m=mine: m(a, 0, True)[0], lambda a, t=theirs: t(a, 0, True)[0], [x])
        same(lambda a, m=mine: m(a)[0], theirs, [x])
        near(mine(Tensor(x), 1)[1].asnumpy(), theirs(torch.tensor(x), 1)[1].numpy(), "places")
    near(mint.argmax(Tensor(x), 1).asnumpy(), torch.argmax(torch.tensor(x), 1).numpy(), "places")
    for axis in (None, 0, 1):
        same(lambda a, d=axis: ops.repeat_interleave(a, 3, d), lambda a, d=axis: a.repeat_interleave(3, d), [x])
    same(lambda a: ops.repeat_elements(a, 2, 1), lambda a: a.repeat_interleave(2, 1), [x])
    hot = mint.nn.functional.one_hot(Tensor(np.array([1, 2, 0])), 4)
    near(hot.asnumpy(), F.one_hot(torch.tensor([1, 2, 0]), 4).numpy(), "rows")
