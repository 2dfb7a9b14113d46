"""These metrics count true positives: Precision, Recall, F scores."""

from __future__ import annotations

from typing import Any

import numpy as np

from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.api.train.metrics.metric import EvaluationBase, check_classes, plain, rearrange_inputs

__all__ = ["F1", "Fbeta", "Precision", "Recall"]


class _ClassCounts(EvaluationBase):
    """Counts, per class, what was predicted, what is there, and what is both; with "multilabel" per sample."""

    def __init__(self, eval_type: str) -> None:
        super().__init__(eval_type)
        self.clear()

    def clear(self) -> None:
        self._class_num = 0
        self._both: Any = np.zeros(0)
        self._predicted: Any = np.zeros(0)
        self._there: Any = np.zeros(0)

    @rearrange_inputs
    def update(self, *inputs: Any) -> None:
        predicted, labels = self._batch(inputs)
        classes = predicted.shape[1]
        if self._type == "multilabel":
            counts = _per_sample(predicted, labels)
            self._both, self._predicted, self._there = (
                np.concatenate(pair) for pair in zip((self._both, self._predicted, self._there), counts, strict=True)
            )
            return
        numbers = check_classes(self, labels, classes).reshape(-1)
        chosen = predicted.argmax(axis=1).reshape(-1)
        before = (self._both, self._predicted, self._there) if self._both.size else (0.0, 0.0, 0.0)
        self._both = before[0] + np.bincount(numbers[numbers == chosen], minlength=classes)
        self._predicted = before[1] + np.bincount(chosen, minlength=classes)
        self._there = before[2] + np.bincount(numbers, minlength=classes)

    def eval(self, average: bool = False) -> Any:
        """One number per class (with "multilabel" per sample), 0 where nothing was counted; with `average` their mean.

        Raises:
            RuntimeError: there was no sample. TypeError: average is neither True nor False.
        """
        if not isinstance(average, bool):
            raise ApiTypeError(f"{type(self).__name__}.eval: average must be True or False, not {average!r}")
        if not self._both.size:
            raise self._no_sample()
        share = self._share()
        return plain(share.mean()) if average else share

    def _share(self) -> np.ndarray:
        raise NotImplementedError


class Precision(_ClassCounts):
    """Per class, the share of samples that are of it among those predicted to be."""

    def __init__(self, eval_type: str = "classification") -> None:
        super().__init__(eval_type)

    def _share(self) -> np.ndarray:
        return divided(self._both, self._predicted)


class Recall(_ClassCounts):
    """Per class, the share of samples predicted to be of it among those that are."""

    def __init__(self, eval_type: str = "classification") -> None:
        super().__init__(eval_type)

    def _share(self) -> np.ndarray:
        return divided(self._both, self._there)


class Fbeta(_ClassCounts):
    """Per class, the weighted harmonic mean of precision and recall; recall counts `beta` times as much.

    Raises:
        ValueError: beta is not above 0.
    """

    def __init__(self, beta: float) -> None:
        if isinstance(beta, bool) or not isinstance(beta, int | float) or not beta > 0:
            raise ApiValueError(f"{type(self).__name__}: beta {beta!r} must be a number above 0")
        self.beta = beta
        super().__init__("classification")

    def _share(self) -> np.ndarray:
        squared = self.beta**2
        return divided((1 + squared) * self._both, squared * self._there + self._predicted)


class F1(Fbeta):
    """Per class, the harmonic mean of precision and recall."""

    def __init__(self) -> None:
        super().__init__(1.0)


def _per_sample(predicted: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Counts over the classes of every sample: of what is right, predicted, there."""
    there, chosen = (np.moveaxis(a, 1, -1).reshape(-1, a.shape[1]).astype(np.float64) for a in (labels, predicted))
    return (there * chosen).sum(axis=1), chosen.sum(axis=1), there.sum(axis=1)


def divided(part: np.ndarray, total: np.ndarray) -> np.ndarray:
    """part / whole, 0 where the whole is 0."""
    return np.divide(part, total, out=np.zeros(np.shape(part)), where=total != 0)
