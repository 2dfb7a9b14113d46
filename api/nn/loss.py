"""Losses."""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.api.nn.cell import Cell


class LossBase(Cell):
    """A loss that is reduced to a number by `reduction`: "mean", "sum" or "none"."""

    def __init__(self, reduction: str = "mean") -> None:
        super().__init__()
        if reduction not in ("mean", "sum", "none"):
            raise ApiValueError(
                f"{type(self).__name__}: reduction {reduction!r} is not 'mean', 'sum' or 'none'"
            )
        self.reduction = reduction
        self.reduce_mean = ops.ReduceMean()
        self.reduce_sum = ops.ReduceSum()
        self.mul = ops.Mul()

    def get_axis(self, x: Any) -> Any:
        """All axes of x."""
        return tuple(range(x.ndim))

    def get_loss(self, x: Any, weights: float = 1.0) -> Any:
        """The loss of every element, weighted and reduced."""
        if weights != 1.0:
            x = self.mul(x, weights)
        if self.reduction == "mean":
            x = self.reduce_mean(x, self.get_axis(x))
        if self.reduction == "sum":
            x = self.reduce_sum(x, self.get_axis(x))
        return x

    def construct(self, logits: Any, labels: Any) -> Any:
        raise NotImplementedError


class MSELoss(LossBase):
    """Mean (or sum) of (logits - labels)^2."""

    def construct(self, logits: Any, labels: Any) -> Any:
        return self.get_loss(ops.square(logits - labels))


class L1Loss(LossBase):
    """Mean (or sum) of |logits - labels|."""

    def construct(self, logits: Any, labels: Any) -> Any:
        return self.get_loss(ops.abs(logits - labels))


class RMSELoss(LossBase):
    """Square root of the mean of (logits - labels)^2."""

    def __init__(self) -> None:
        super().__init__("mean")

    def construct(self, logits: Any, labels: Any) -> Any:
        return ops.sqrt(self.get_loss(ops.square(logits - labels)))


class SmoothL1Loss(LossBase):
    """|d| - beta / 2 where |d| >= beta, else d^2 / (2 beta), for d = logits - labels."""

    def __init__(self, beta: float = 1.0, reduction: str = "none") -> None:
        super().__init__(reduction)
        if not beta > 0:
            raise ApiValueError(f"SmoothL1Loss: beta {beta} must be positive")
        self.beta = beta

    def construct(self, logits: Any, labels: Any) -> Any:
        distance = ops.abs(logits - labels)
        near = ops.square(distance) * (0.5 / self.beta)
        return self.get_loss(ops.select(distance < self.beta, near, distance - 0.5 * self.beta))


class SoftmaxCrossEntropyWithLogits(LossBase):
    """Cross entropy between softmax(logits) [n, classes] and labels: [n, classes], or class
    numbers [n] if sparse.

    The operators have MindSpore's names, so that they can be sharded: `loss.one_hot`, `loss.softmax_cross_entropy`.
    """

    def __init__(self, sparse: bool = False, reduction: str = "none") -> None:
        super().__init__(reduction)
        if not isinstance(sparse, bool):
            raise ApiTypeError(f"SoftmaxCrossEntropyWithLogits: sparse must be True or False, not {sparse!r}")
        self.sparse = sparse
        self.one_hot = ops.OneHot()
        self.softmax_cross_entropy = ops.SoftmaxCrossEntropyWithLogits()
        self.sparse_softmax_cross_entropy = ops.SparseSoftmaxCrossEntropyWithLogits()

    def construct(self, logits: Any, labels: Any) -> Any:
        if self.sparse:
            if self.reduction == "mean":
                return self.sparse_softmax_cross_entropy(logits, labels)
            labels = self.one_hot(labels, logits.shape[-1], 1.0, 0.0)
        return self.get_loss(self.softmax_cross_entropy(logits, labels)[0])


class CrossEntropyLoss(LossBase):
    """Cross entropy of logits [n, classes] and labels: class numbers [n], or probabilities [n, classes].

    Args:
        label_smoothing: share of every label spread evenly over all classes.
        weight, ignore_index: only their defaults are supported; a class number outside [0, classes), as -100,
            contributes nothing to the sum, but counts in the mean.
    """

    def __init__(
        self,
        weight: Any = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(reduction)
        if weight is not None:
            raise ApiValueError("CrossEntropyLoss: weight is not supported")
        if not 0.0 <= label_smoothing < 1.0:
            raise ApiValueError(f"CrossEntropyLoss: label_smoothing {label_smoothing} must be in [0, 1)")
        self.ignore_index = ignore_index
        self.label_smoothing = label_smoothing

    def construct(self, logits: Any, labels: Any) -> Any:
        return ops.cross_entropy(
            logits, labels, None, self.ignore_index, self.reduction, self.label_smoothing
        )


class NLLLoss(LossBase):
    """Negative of the log-probability [n, classes] of the labels' classes [n]."""

    def construct(self, logits: Any, labels: Any) -> Any:
        picked = ops.reduce_sum(logits * ops.one_hot(labels, logits.shape[-1], 1.0, 0.0), -1)
        return self.get_loss(ops.neg(picked))


class BCELoss(LossBase):
    """Binary cross entropy of probabilities and labels in [0, 1]."""

    def __init__(self, weight: Any = None, reduction: str = "mean") -> None:
        super().__init__(reduction)
        if weight is not None:
            raise ApiValueError("BCELoss: weight is not supported")

    def construct(self, logits: Any, labels: Any) -> Any:
        return self.get_loss(ops.neg(labels * ops.log(logits) + (1.0 - labels) * ops.log(1.0 - logits)))
