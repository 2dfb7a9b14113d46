"""Losses as cells."""

from __future__ import annotations

from typing import Any

from mspc.mindspore_api import ops
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.errors import ApiValueError
from mspc.mindspore_api.nn.activation import get_activation
from mspc.mindspore_api.nn.cell import Cell
from mspc.mindspore_api.nn.cell_arguments import class_number, class_weight, number, tensor_or_none


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


class RMSELoss(LossBase):
    """Square root of the mean of (logits - labels)^2."""

    def __init__(self) -> None:
        super().__init__("mean")

    def construct(self, logits: Any, labels: Any) -> Tensor:
        return ops.sqrt(self.get_loss(ops.square(logits - labels)))


class SmoothL1Loss(LossBase):
    """0.5 d^2 / beta if |d| < beta, |d| - 0.5 beta elsewhere, for d = logits - labels."""

    def __init__(self, beta: float = 1.0, reduction: str = "none") -> None:
        super().__init__(reduction)
        if not beta > 0:
            raise ApiValueError(f"SmoothL1Loss: beta {beta} must be positive")
        self.beta = beta

    def construct(self, logits: Any, labels: Any) -> Tensor:
        return ops.smooth_l1_loss(logits, labels, self.beta, self.reduction)


class HuberLoss(LossBase):
    """0.5 d^2 if |d| <= delta, delta (|d| - 0.5 delta) elsewhere, for d = logits - labels."""

    def __init__(self, reduction: str = "mean", delta: float = 1.0) -> None:
        super().__init__(reduction)
        self.delta = number("HuberLoss", "delta", delta, above=0.0)

    def construct(self, logits: Any, labels: Any) -> Tensor:
        return ops.huber_loss(logits, labels, self.reduction, self.delta)


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
        self,
        weight: Any = None,
        ignore_index: int = -100,
        reduction: str = "mean",
        label_smoothing: float = 0.0,
    ) -> None:
        super().__init__(reduction)
        self.weight = class_weight("CrossEntropyLoss", weight)
        self.ignore_index = class_number("CrossEntropyLoss", ignore_index)
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
        self.ignore_index = class_number("NLLLoss", ignore_index)

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


class SoftMarginLoss(LossBase):
    """log(1 + exp(-labels * logits)) for labels of 1 and -1."""

    def construct(self, logits: Any, labels: Any) -> Tensor:
        return ops.soft_margin_loss(logits, labels, self.reduction)


class HingeEmbeddingLoss(LossBase):
    """logits if labels are 1, max(0, margin - logits) if they are -1."""

    def __init__(self, margin: float = 1.0, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.margin = margin

    def construct(self, logits: Any, labels: Any) -> Tensor:
        return ops.hinge_embedding_loss(logits, labels, self.margin, self.reduction)


class MarginRankingLoss(LossBase):
    """max(0, -target (input1 - input2) + margin)."""

    def __init__(self, margin: float = 0.0, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.margin = margin

    def construct(self, input1: Any, input2: Any, target: Any) -> Tensor:
        return ops.margin_ranking_loss(input1, input2, target, self.margin, self.reduction)


class CosineEmbeddingLoss(LossBase):
    """1 - cos(logits_x1, logits_x2) if the label is 1, max(0, cos - margin) if it is -1."""

    def __init__(self, margin: float = 0.0, reduction: str = "mean") -> None:
        super().__init__(reduction)
        if not -1 <= margin <= 1:
            raise ApiValueError(f"CosineEmbeddingLoss: margin must be between -1 and 1, not {margin}")
        self.margin = margin

    def construct(self, logits_x1: Any, logits_x2: Any, labels: Any) -> Tensor:
        return ops.cosine_embedding_loss(logits_x1, logits_x2, labels, self.margin, self.reduction)


class TripletMarginLoss(LossBase):
    """max(0, |x - positive| - |x - negative| + margin), lengths of rows in the p-norm. A call may override the
    margin."""

    def __init__(
        self, p: float = 2, swap: bool = False, eps: float = 1e-6, reduction: str = "mean", margin: float = 1.0
    ) -> None:
        super().__init__(reduction)
        self.p, self.swap, self.eps, self.margin = p, swap, eps, margin

    def construct(self, x: Any, positive: Any, negative: Any, margin: Any = 1.0) -> Tensor:
        chosen = margin if self.margin == 1.0 else self.margin  # as in MindSpore: the cell's own argument wins
        return ops.triplet_margin_loss(x, positive, negative, chosen, self.p, self.eps, self.swap, self.reduction)


class GaussianNLLLoss(LossBase):
    """(log(var) + (logits - labels)^2 / var) / 2 with var at least eps, plus log(2 pi) / 2 if `full`."""

    def __init__(self, *, full: bool = False, eps: float = 1e-6, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.full, self.eps = full, eps

    def construct(self, logits: Any, labels: Any, var: Any) -> Tensor:
        return ops.gaussian_nll_loss(logits, labels, var, self.full, self.eps, self.reduction)


class MAELoss(LossBase):
    """Mean (or sum) of |logits - labels|."""

    def construct(self, logits: Any, labels: Any) -> Tensor:
        return self.get_loss(ops.abs(logits - labels))


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


class MultiClassDiceLoss(LossBase):
    """The mean over classes of DiceLoss of the logits [n, classes, ...] after `activation`.

    Args:
        weights: of every class, [classes, 1], or None. ignore_indiex: a class that is ignored.
        activation: a name, a Cell, or None.
    """

    def __init__(self, weights: Any = None, ignore_indiex: int | None = None, activation: Any = "softmax") -> None:
        super().__init__()
        self.weights = tensor_or_none("MultiClassDiceLoss", "weights", weights)
        self.ignored = ignore_indiex
        self.dice = DiceLoss()
        self.activation = get_activation(activation) if isinstance(activation, str) else activation

    def construct(self, logits: Any, label: Any) -> Tensor:
        if logits.shape != label.shape:
            raise ApiValueError(f"{self.cls_name}: logits have shape {logits.shape}, but labels {label.shape}")
        if self.activation is not None:
            logits = self.activation(logits)
        classes = label.shape[1]
        total = 0.0
        for i in range(classes):
            if i != self.ignored:
                found = self.dice(logits[:, i], label[:, i])
                if self.weights is not None:
                    found = found * self.weights[i]
                total = total + found
        return total / classes


class FocalLoss(LossBase):
    """Cross entropy with a small weight for well classified elements: times (1 - probability)**gamma. Lin et al. 2017.

    Logits are [n, classes, ...]; targets class numbers [n, 1, ...] or probabilities of the logits' shape.

    Args:
        weight: of every class, or None.
    """

    def __init__(self, weight: Any = None, gamma: float = 2.0, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.gamma = number("FocalLoss", "gamma", gamma)
        self.weight = tensor_or_none("FocalLoss", "weight", weight)

    def construct(self, logits: Any, labels: Any) -> Tensor:
        n, classes = logits.shape[:2]
        if len(labels.shape) != len(logits.shape) or labels.shape[1] not in (1, classes):
            raise ApiValueError(
                f"{self.cls_name}: labels {labels.shape} must be class numbers [n, 1, ...] or have the shape of the "
                f"logits {logits.shape}"
            )
        logs = ops.log_softmax(ops.reshape(logits, (n, classes, -1)), 1)
        targets = ops.reshape(labels, (n, labels.shape[1], -1))
        if targets.shape[1] != 1 or classes == 1:
            away = ops.pow(1.0 - ops.exp(logs), self.gamma)
            if self.weight is not None:
                logs = logs * ops.reshape(self.weight, (1, classes, 1))
            return self.get_loss(ops.reduce_mean(-away * targets * logs, -1))
        hits = ops.one_hot(ops.squeeze(targets, 1), classes, ops.cast(1, logs.dtype), ops.cast(0, logs.dtype), 1)
        chosen = ops.reduce_sum(logs * hits, 1)
        away = ops.pow(1.0 - ops.exp(chosen), self.gamma)
        if self.weight is not None:
            chosen = chosen * ops.reduce_sum(hits * ops.reshape(self.weight, (1, classes, 1)), 1)
        return self.get_loss(ops.reduce_mean(-away * chosen, 1))


class MultiLabelSoftMarginLoss(LossBase):
    """The mean over classes of the binary cross entropy of sigmoid(x), times `weight` of every class if given."""

    def __init__(self, weight: Any = None, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.weight = tensor_or_none("MultiLabelSoftMarginLoss", "weight", weight)

    def construct(self, x: Any, target: Any) -> Tensor:
        terms = target * ops.logsigmoid(x) + (1.0 - target) * ops.logsigmoid(-x)
        if self.weight is not None:
            terms = terms * self.weight
        return self.get_loss(ops.reduce_mean(-terms, -1))


class PoissonNLLLoss(LossBase):
    """exp(input) - target * input, or with log_input=False input - target * log(input + eps).

    Args:
        full: add Stirling's formula for the logarithm of target's factorial if target is above 1.
    """

    def __init__(self, log_input: bool = True, full: bool = False, eps: float = 1e-8, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.log_input, self.full, self.eps = log_input, full, number("PoissonNLLLoss", "eps", eps)

    def construct(self, input: Any, target: Any) -> Tensor:
        if self.log_input:
            loss = ops.exp(input) - target * input
        else:
            loss = input - target * ops.log(input + self.eps)
        if self.full:
            several = ops.clamp(target, 1.0)
            stirling = several * ops.log(several) - several + 0.5 * ops.log(several * 6.283185307179586)
            loss = loss + ops.where(target > 1.0, stirling, ops.zeros_like(target))
        return self.get_loss(loss)
