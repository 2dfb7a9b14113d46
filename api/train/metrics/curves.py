"""These metrics are curves of rates over thresholds, and the area below a curve."""

from __future__ import annotations

from typing import Any

import numpy as np

from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.api.train.metrics.metric import OfPairs, rearrange_inputs

__all__ = ["ROC", "auc"]


class ROC(OfPairs):
    """The receiver operating characteristic: (false positive rates, true positive rates, thresholds) over the scores of
    all batches, or a list of each with one entry per class.

    Scores and labels have one shape, with `pos_label` (1) as the class that is looked for; or scores are
    [n, class_num, ...] and labels classes [n, ...].
    """

    def __init__(self, class_num: int | None = None, pos_label: int | None = None) -> None:
        super().__init__()
        for what, value in (("class_num", class_num), ("pos_label", pos_label)):
            if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
                raise ApiTypeError(f"ROC: {what} must be an integer or None, not {value!r}")
        self.class_num = class_num
        self.pos_label = pos_label
        self.clear()

    def clear(self) -> None:
        self._scores: list[np.ndarray] = []
        self._labels: list[np.ndarray] = []

    @rearrange_inputs
    def update(self, *inputs: Any) -> None:
        scores, labels = self._two(inputs)
        shapes = f"ROC.update: scores have shape {scores.shape}, labels {labels.shape}"
        if scores.shape == labels.shape:
            if self.class_num not in (None, 1):
                raise ApiValueError(f"{shapes}; with class_num={self.class_num} scores are [n, {self.class_num}, ...]")
            scores = scores.reshape(-1, 1)
        elif labels.shape == (scores.shape[0], *scores.shape[2:]):
            if self.pos_label is not None:
                raise ApiValueError(f"{shapes}; with several classes pos_label must be None")
            if scores.shape[1] != self.class_num:
                raise ApiValueError(f"{shapes}, and class_num is {self.class_num}")
            scores = np.moveaxis(scores, 1, -1).reshape(-1, scores.shape[1])
        else:
            raise ApiValueError(f"{shapes}; both have one shape, or for scores [n, classes, ...] labels are [n, ...]")
        self._scores.append(scores)
        self._labels.append(labels.reshape(-1))

    def eval(self) -> Any:
        if not self._scores:
            raise self._no_sample()
        scores, labels = np.concatenate(self._scores), np.concatenate(self._labels)
        if scores.shape[1] == 1:
            return _curve(scores[:, 0], labels == (1 if self.pos_label is None else self.pos_label))
        curves = [_curve(column, labels == number) for number, column in enumerate(scores.T)]
        return tuple(list(part) for part in zip(*curves, strict=True))


def _curve(scores: np.ndarray, wanted: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rates at every score from the largest on, below a threshold at which nothing is chosen."""
    if wanted.all() or not wanted.any():
        raise ApiValueError(f"ROC.eval: there is no {'negative' if wanted.all() else 'positive'} sample")
    order = np.argsort(-scores, kind="stable")
    scores, wanted = scores[order], wanted[order]
    ends = np.append(np.flatnonzero(np.diff(scores)), len(scores) - 1)
    found = np.cumsum(wanted)[ends]
    false = 1 + ends - found
    rates = (np.append(0.0, count / count[-1]) for count in (false, found))
    return (*rates, np.append(scores[0] + 1, scores[ends]))


def auc(x: Any, y: Any, reorder: bool = False) -> float:
    """The area below a curve by the trapezoidal rule; x rises or falls throughout, unless `reorder` sorts the points.

    Raises:
        TypeError: x or y is no array. ValueError: they have no or different lengths, or x goes up and down.
    """
    if not isinstance(x, np.ndarray) or not isinstance(y, np.ndarray):
        raise ApiTypeError(f"auc: x and y must be arrays, not {type(x).__name__} and {type(y).__name__}")
    if x.size != y.size or x.size < 2 or x.size != len(x) or y.size != len(y):
        raise ApiValueError(f"auc: x and y must be two or more points, not of shapes {x.shape} and {y.shape}")
    x, y = x.reshape(-1), y.reshape(-1)
    if reorder:
        order = np.lexsort((y, x))
        x, y = x[order], y[order]
    steps = np.diff(x)
    if (steps < 0).any() and (steps > 0).any():
        raise ApiValueError("auc: x must rise or fall throughout", ["reorder=True sorts the points"])
    area = float((steps * (y[1:] + y[:-1]) / 2).sum())
    return -area if (steps < 0).any() else area
