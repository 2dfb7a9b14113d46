"""Losses of pictures and of classes that are rare."""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.api.nn.activation import get_activation
from mspc.api.nn.cell_arguments import number, tensor_or_none
from mspc.api.nn.loss import LossBase


class MAELoss(LossBase):
    """Mean (or sum) of |logits - labels|."""

    def construct(self, logits: Any, labels: Any) -> Any:
        return self.get_loss(ops.abs(logits - labels))


class DiceLoss(LossBase):
    """1 minus twice the overlap of two pictures over the sum of their squares, `smooth` added to both."""

    def __init__(self, smooth: float = 1e-5) -> None:
        super().__init__()
        self.smooth = number("DiceLoss", "smooth", smooth)

    def construct(self, logits: Any, label: Any) -> Any:
        if logits.shape != label.shape:
            raise ApiValueError(f"{self.cls_name}: logits have shape {logits.shape}, but labels {label.shape}")
        shared = ops.reduce_sum(logits * label)
        total = ops.reduce_sum(logits * logits) + ops.reduce_sum(label * label)
        return 1.0 - (2.0 * shared + self.smooth) / (total + self.smooth)


class MultiClassDiceLoss(LossBase):
    """The mean over classes of DiceLoss of the logits [n, classes, ...] behind `activation`.

    Args:
        weights: of every class, [classes, 1], or None. ignore_indiex: a class that does not count.
        activation: a name, a Cell, or None.
    """

    def __init__(self, weights: Any = None, ignore_indiex: int | None = None, activation: Any = "softmax") -> None:
        super().__init__()
        self.weights = tensor_or_none("MultiClassDiceLoss", "weights", weights)
        if ignore_indiex is not None and (isinstance(ignore_indiex, bool) or not isinstance(ignore_indiex, int)):
            raise ApiTypeError(f"MultiClassDiceLoss: ignore_indiex must be an integer or None, not {ignore_indiex!r}")
        self.ignored = ignore_indiex
        self.dice = DiceLoss()
        self.activation = get_activation(activation) if isinstance(activation, str) else activation

    def construct(self, logits: Any, label: Any) -> Any:
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
    """Cross entropy in which what is known well counts little: times (1 - probability)**gamma. Lin et al. 2017.

    Logits are [n, classes, ...]; targets class numbers [n, 1, ...] or probabilities of the logits' shape.

    Args:
        weight: of every class, or None.
    """

    def __init__(self, weight: Any = None, gamma: float = 2.0, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.gamma = number("FocalLoss", "gamma", gamma)
        self.weight = tensor_or_none("FocalLoss", "weight", weight)

    def construct(self, logits: Any, labels: Any) -> Any:
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

    def construct(self, x: Any, target: Any) -> Any:
        terms = target * ops.logsigmoid(x) + (1.0 - target) * ops.logsigmoid(-x)
        if self.weight is not None:
            terms = terms * self.weight
        return self.get_loss(ops.reduce_mean(-terms, -1))


class PoissonNLLLoss(LossBase):
    """exp(input) - target * input, or with log_input=False input - target * log(input + eps).

    Args:
        full: Stirling's formula for the logarithm of target's factorial is added where target is above 1.
    """

    def __init__(self, log_input: bool = True, full: bool = False, eps: float = 1e-8, reduction: str = "mean") -> None:
        super().__init__(reduction)
        self.log_input, self.full, self.eps = log_input, full, number("PoissonNLLLoss", "eps", eps)

    def construct(self, input: Any, target: Any) -> Any:
        if self.log_input:
            loss = ops.exp(input) - target * input
        else:
            loss = input - target * ops.log(input + self.eps)
        if self.full:
            several = ops.clamp(target, 1.0)
            stirling = several * ops.log(several) - several + 0.5 * ops.log(several * 6.283185307179586)
            loss = loss + ops.where(target > 1.0, stirling, ops.zeros_like(target))
        return self.get_loss(loss)
