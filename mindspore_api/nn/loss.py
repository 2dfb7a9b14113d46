"""Losses as cells."""

from __future__ import annotations

from typing import Any

from mspc.mindspore_api import checks, ops
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.errors import ApiValueError
from mspc.mindspore_api.nn.cell import Cell
from mspc.mindspore_api.nn.cell_arguments import class_weight, number, tensor_or_none


class LossBase(Cell):
    """A loss that is reduced to a number by `reduction`: "mean", "sum" or "none"."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        if reduction not in ("mean", "sum", "none"):
            raise ApiValueError(f"{type(self).__name__}: reduction {reduction!r} is not 'mean', 'sum' or 'none'")
        self.reduction = reduction
        self.reduce_mean = ops.ReduceMean()
        self.reduce_sum = ops.ReduceSum()
        self.mul = ops.Mul()
        self.cast = ops.Cast()

    def get_axis(self, x: Any) -> Any:
        """Return all axes of x."""
        return tuple(range(x.ndim))

    def get_loss(self, x: Any, weights: float = 1.0) -> Any:
        """Return the loss of the elements, weighted and reduced."""
        if weights != 1.0:
            x = self.mul(x, weights)
        if self.reduction == "mean":
            x = self.reduce_mean(x, self.get_axis(x))
        if self.reduction == "sum":
            x = self.reduce_sum(x, self.get_axis(x))
        return x

    def construct(self, logits: Any, labels: Any) -> Tensor:
        raise NotImplementedError


_Loss = LossBase
"""Older name of LossBase, which public code imports."""


class MSELoss(LossBase):
    """Mean (or sum) of (logits - labels)^2."""

    def construct(self, logits: Any, labels: Any) -> Tensor:
        return self.get_loss(ops.square(logits - labels))


class L1Loss(LossBase):
    """Mean (or sum) of |logits - labels|."""

    def construct(self, logits: Any, labels: Any) -> Tensor:
        return self.get_loss(ops.abs(logits - labels))


class SmoothL1Loss(LossBase):
    """0.5 d^2 / beta if |d| < beta, |d| - 0.5 beta elsewhere, for d = logits - labels."""

    def __init__(self, beta: float = 1.0, reduction: str = "none") -> None:
        super().__init__(reduction)
        if not beta > 0:
            raise ApiValueError(f"SmoothL1Loss: beta {beta} must be positive")
        self.beta = beta

    def construct(self, logits: Any, labels: Any) -> Tensor:
        return ops.smooth_l1_loss(logits, labels, self.beta, self.reduction)


class SoftmaxCrossEntropyWithLogits(LossBase):
    """Cross entropy between softmax(logits) [n, classes] and labels: [n, classes], or class
    numbers [n] if sparse.

    The operators have MindSpore's names, so that they can be sharded: `loss.one_hot`, `loss.softmax_cross_entropy`.
    """

    def __init__(self, sparse: bool = False, reduction: str = "none") -> None:
        super().__init__(reduction)
        self.sparse = sparse
        self.one_hot = ops.OneHot()
        self.softmax_cross_entropy = ops.SoftmaxCrossEntropyWithLogits()
        self.sparse_softmax_cross_entropy = ops.SparseSoftmaxCrossEntropyWithLogits()

    def construct(self, logits: Any, labels: Any) -> Tensor:
        if self.sparse:
            if self.reduction == "mean":
                return self.sparse_softmax_cross_entropy(logits, labels)
            labels = ops.cast(self.one_hot(labels, logits.shape[-1], 1.0, 0.0), logits.dtype)
        return self.get_loss(self.softmax_cross_entropy(logits, labels)[0])


class CrossEntropyLoss(LossBase):
    """Cross entropy of logits [n, classes, ...] and labels: class numbers [n, ...], or probabilities of the logits'
    shape.

    Args:
        weight: one for every class; the mean is that over the weights.
        ignore_index: labels with this class number are ignored.
        label_smoothing: share of every label distributed evenly over all classes.
    """

    def __init__(
        self, weight: Any = None, ignore_index: int = -100, reduction: str = "mean", label_smoothing: float = 0.0,
    ) -> None:  # fmt: skip
        super().__init__(reduction)
        self.weight = class_weight("CrossEntropyLoss", weight)
        self.ignore_index = checks.whole("CrossEntropyLoss: ignore_index", ignore_index)
        if not 0.0 <= label_smoothing <= 1.0:
            raise ApiValueError(f"CrossEntropyLoss: label_smoothing {label_smoothing} must be in [0, 1]")
        self.label_smoothing = label_smoothing

    def construct(self, logits: Any, labels: Any) -> Tensor:
        return ops.cross_entropy(logits, labels, self.weight, self.ignore_index, self.reduction, self.label_smoothing)


class NLLLoss(LossBase):
    """Negative of the log-probability [n, classes, ...] of the labels' classes [n, ...].

    Args:
        weight: one for every class; the mean is that over the weights.
        ignore_index: labels with this class number are ignored.
    """

    def __init__(self, weight: Any = None, ignore_index: int = -100, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.weight = class_weight("NLLLoss", weight)
        self.ignore_index = checks.whole("NLLLoss: ignore_index", ignore_index)

    def construct(self, logits: Any, labels: Any) -> Tensor:
        return ops.nll_loss(logits, labels, self.weight, self.ignore_index, self.reduction)


class BCELoss(LossBase):
    """Binary cross entropy of probabilities and labels in [0, 1], times weight; logarithms are not below -100."""

    def __init__(self, weight: Any = None, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.weight = tensor_or_none("BCELoss", "weight", weight)

    def construct(self, logits: Any, labels: Any) -> Tensor:
        return ops.binary_cross_entropy(logits, labels, self.weight, self.reduction)


class BCEWithLogitsLoss(LossBase):
    """Binary cross entropy of sigmoid(logits) and labels, times weight; labels of 1 have the additional weight
    pos_weight."""

    def __init__(self, reduction: str = "mean", weight: Any = None, pos_weight: Any = None) -> None:
        super().__init__(reduction)
        self.weight = tensor_or_none("BCEWithLogitsLoss", "weight", weight)
        self.pos_weight = tensor_or_none("BCEWithLogitsLoss", "pos_weight", pos_weight)

    def construct(self, logits: Any, labels: Any) -> Tensor:
        return ops.binary_cross_entropy_with_logits(logits, labels, self.weight, self.pos_weight, self.reduction)


class KLDivLoss(Cell):
    """labels (log(labels) - logits) for probabilities `labels` and logarithms of probabilities `logits`, reduced by
    "mean", "batchmean", "sum" or "none"."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        if reduction not in ("mean", "batchmean", "sum", "none"):
            raise ApiValueError(f"KLDivLoss: reduction {reduction!r} is not 'mean', 'batchmean', 'sum' or 'none'")
        self.reduction = reduction

    def construct(self, logits: Any, labels: Any) -> Tensor:
        return ops.kl_div(logits, labels, self.reduction)


class MarginRankingLoss(LossBase):
    """max(0, -target (input1 - input2) + margin)."""

    def __init__(self, margin: float = 0.0, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.margin = margin

    def construct(self, input1: Any, input2: Any, target: Any) -> Tensor:
        return ops.margin_ranking_loss(input1, input2, target, self.margin, self.reduction)


class DiceLoss(LossBase):
    """1 minus twice the overlap of two pictures over the sum of their squares, `smooth` added to both."""

    def __init__(self, smooth: float = 1e-5) -> None:
        super().__init__()
        self.smooth = number("DiceLoss", "smooth", smooth)

    def construct(self, logits: Any, label: Any) -> Tensor:
        if logits.shape != label.shape:
            raise ApiValueError(f"{self.cls_name}: logits have shape {logits.shape}, but labels {label.shape}")
        shared = ops.reduce_sum(logits * label)
        total = ops.reduce_sum(logits * logits) + ops.reduce_sum(label * label)
        return 1.0 - (2.0 * shared + self.smooth) / (total + self.smooth)
