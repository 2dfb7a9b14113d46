"""These metrics are shares of samples whose class is right, or among the likeliest."""

from __future__ import annotations

from typing import Any

import numpy as np

from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.api.train.metrics.metric import EvaluationBase, OfPairs, is_one_hot, rearrange_inputs


class Accuracy(EvaluationBase):
    """Share of samples whose likeliest class is the label's; with "multilabel", of those with every class right."""

    def __init__(self, eval_type: str = "classification") -> None:
        super().__init__(eval_type)
        self.clear()

    def clear(self) -> None:
        self._right = 0
        self._count = 0
        self._class_num = 0

    @rearrange_inputs
    def update(self, *inputs: Any) -> None:
        predicted, labels = self._batch(inputs)
        if self._type == "classification":
            right = predicted.argmax(axis=1) == labels
        else:
            right = (predicted == labels).all(axis=1)
        self._right += int(right.sum())
        self._count += right.size

    def eval(self) -> float:
        if not self._count:
            raise self._no_sample()
        return self._right / self._count


class TopKCategoricalAccuracy(OfPairs):
    """Share of samples whose class is among the `k` likeliest.

    Predictions are [n, classes, ...], labels [n, ...] or one-hot. Of classes that are equally likely the first count.

    Raises:
        TypeError, ValueError: k is no positive integer.
    """

    def __init__(self, k: int) -> None:
        super().__init__()
        if isinstance(k, bool) or not isinstance(k, int):
            raise ApiTypeError(f"{type(self).__name__}: k must be an integer, not {k!r}")
        if k < 1:
            raise ApiValueError(f"{type(self).__name__}: k {k} must be at least 1")
        self.k = k
        self.clear()

    def clear(self) -> None:
        self._right = 0
        self._count = 0

    @rearrange_inputs
    def update(self, *inputs: Any) -> None:
        predicted, labels = self._two(inputs)
        if predicted.ndim == labels.ndim and is_one_hot(labels):
            labels = labels.argmax(axis=1)
        if predicted.ndim < 2 or labels.shape != (predicted.shape[0], *predicted.shape[2:]):
            raise ApiValueError(
                f"{type(self).__name__}.update: predictions have shape {predicted.shape}, labels {labels.shape}; "
                "for predictions [n, classes, ...] labels are [n, ...]"
            )
        classes = predicted.shape[1]
        if self.k > classes:
            raise ApiValueError(f"{type(self).__name__}: {classes} classes have no {self.k} likeliest")
        rows = np.moveaxis(predicted, 1, -1).reshape(-1, classes)
        order = np.argsort(-rows.astype(np.float64), axis=1, kind="stable")[:, : self.k]
        self._right += int((order == labels.reshape(-1, 1)).any(axis=1).sum())
        self._count += len(rows)

    def eval(self) -> float:
        if not self._count:
            raise self._no_sample()
        return self._right / self._count


class Top1CategoricalAccuracy(TopKCategoricalAccuracy):
    """Share of samples whose likeliest class is the label's."""

    def __init__(self) -> None:
        super().__init__(1)


class Top5CategoricalAccuracy(TopKCategoricalAccuracy):
    """Share of samples whose class is among the five likeliest."""

    def __init__(self) -> None:
        super().__init__(5)
