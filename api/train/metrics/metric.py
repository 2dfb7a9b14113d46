"""This module has the base of metrics, and what all of them do with their inputs."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mspc.api.common.tensor import Tensor
from mspc.api.errors import ApiRuntimeError, ApiTypeError, ApiValueError

__all__ = ["Metric", "rearrange_inputs"]

EVAL_TYPES = ("classification", "multilabel")


def rearrange_inputs(func: Callable[..., Any]) -> Callable[..., Any]:
    """A method `update(self, *inputs)` that gets only the inputs chosen by `set_indexes`, in that order."""

    @functools.wraps(func)
    def update(self: Any, *inputs: Any) -> Any:
        chosen = self.indexes
        if not chosen:
            return func(self, *inputs)
        if max(chosen) >= len(inputs) or min(chosen) < -len(inputs):
            raise ApiValueError(f"{type(self).__name__}: set_indexes({chosen}) chooses among {len(inputs)} inputs")
        return func(self, *(inputs[i] for i in chosen))

    return update


class Metric(ABC):
    """A number over many batches: `clear`, `update` with the outputs and labels of a batch, `eval`."""

    def __init__(self) -> None:
        self._indexes: list[int] | None = None

    @property
    def indexes(self) -> list[int] | None:
        """Which inputs `update` takes, where it stands under `rearrange_inputs`; None for all."""
        return getattr(self, "_indexes", None)

    def set_indexes(self, indexes: list[int]) -> Metric:
        """Choose the inputs that go to `update`, and return the metric. Raises ValueError for no list of integers."""
        if not isinstance(indexes, list) or any(isinstance(i, bool) or not isinstance(i, int) for i in indexes):
            raise ApiValueError(f"{type(self).__name__}.set_indexes takes a list of integers, not {indexes!r}")
        self._indexes = indexes
        return self

    def __call__(self, *inputs: Any) -> Any:
        """The metric of one batch alone."""
        self.clear()
        self.update(*inputs)
        return self.eval()

    @abstractmethod
    def clear(self) -> None:
        """Forget all batches."""

    @abstractmethod
    def update(self, *inputs: Any) -> None:
        """Take in a batch."""

    @abstractmethod
    def eval(self) -> Any:
        """The metric over the batches since `clear`."""

    def _convert_data(self, data: Any) -> np.ndarray:
        """An input as an array; metrics of scripts call this too. Raises TypeError for what is none."""
        if isinstance(data, Tensor):
            return data.asnumpy()
        if isinstance(data, list | tuple | np.ndarray | np.generic):
            return np.asarray(data)
        raise ApiTypeError(f"{type(self).__name__}.update takes Tensors, lists and arrays, not {type(data).__name__}")

    def _no_sample(self) -> ApiRuntimeError:
        """The error of `eval` before any sample."""
        return ApiRuntimeError(f"{type(self).__name__}: there was no sample", ["call update() before eval()"])


class OfPairs(Metric):
    """A metric of predictions and labels."""

    def _two(self, inputs: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
        """Predictions and labels. Raises ValueError where there are not two inputs."""
        if len(inputs) != 2:
            raise ApiValueError(
                f"{type(self).__name__}.update takes 2 inputs, predictions and labels, not {len(inputs)}",
                ["set_indexes chooses among the outputs of an evaluation network"],
            )
        predicted, labels = self._convert_data(inputs[0]), self._convert_data(inputs[1])
        if not labels.ndim or not predicted.ndim:
            raise ApiValueError(f"{type(self).__name__}.update takes batches, not single numbers")
        return predicted, labels


class EvaluationBase(OfPairs):
    """A metric of classes: predictions [n, classes, ...] beside the number of a class for each [n, ...] or one-hot
    labels; with eval_type "multilabel" zeros and ones [n, classes, ...] on both sides.

    Raises:
        TypeError: eval_type is none of these.
    """

    def __init__(self, eval_type: str) -> None:
        super().__init__()
        if eval_type not in EVAL_TYPES:
            known = " nor ".join(map(repr, EVAL_TYPES))
            raise ApiTypeError(f"{type(self).__name__}: eval_type {eval_type!r} is neither {known}")
        self._type = eval_type
        self._class_num = 0

    def _batch(self, inputs: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
        """Predictions and labels that fit each other and the batches before. Raises ValueError."""
        predicted, labels = self._two(inputs)
        if self._type == "classification" and predicted.ndim == labels.ndim and is_one_hot(labels):
            labels = labels.argmax(axis=1)
        self._check_shape(predicted, labels)
        self._check_value(predicted, labels)
        classes = predicted.shape[1]
        if self._class_num not in (0, classes):
            raise ApiValueError(
                f"{type(self).__name__}.update: predictions of {classes} classes come after some of {self._class_num}"
            )
        self._class_num = classes
        return predicted, labels

    def _check_shape(self, predicted: np.ndarray, labels: np.ndarray) -> None:
        """Raises ValueError where labels do not fit predictions."""
        shapes = f"predictions have shape {predicted.shape}, labels {labels.shape}"
        name = type(self).__name__
        if self._type == "multilabel":
            if predicted.shape != labels.shape or predicted.ndim < 2:
                raise ApiValueError(f"{name}.update: {shapes}; with 'multilabel' both are [n, classes, ...]")
        elif predicted.ndim < 2 or labels.shape != (predicted.shape[0], *predicted.shape[2:]):
            raise ApiValueError(f"{name}.update: {shapes}; for predictions [n, classes, ...] labels are [n, ...]")

    def _check_value(self, predicted: np.ndarray, labels: np.ndarray) -> None:
        """Raises ValueError for anything but zeros and ones in multilabel data."""
        if self._type == "multilabel" and not (is_binary(predicted) and is_binary(labels)):
            raise ApiValueError(
                f"{type(self).__name__}.update: with 'multilabel' all predictions and labels are 0 or 1"
            )


def is_binary(data: np.ndarray) -> bool:
    """Whether all elements are 0 or 1."""
    return bool(((data == 0) | (data == 1)).all())


def is_one_hot(data: np.ndarray) -> bool:
    """Whether the data are [n, classes, ...] with one 1 among the classes and zeros beside it."""
    return data.ndim > 1 and is_binary(data) and bool((data.sum(axis=1) == 1).all())


def check_classes(metric: Metric, labels: np.ndarray, classes: int) -> np.ndarray:
    """Labels as integers. Raises ValueError for one that is no class."""
    integers = labels.astype(np.int64)
    outside = (integers != labels) | (integers < 0) | (integers >= classes)
    if outside.any():
        bad = labels[outside].flat[0]
        raise ApiValueError(f"{type(metric).__name__}.update: label {bad} is no class; there are 0 to {classes - 1}")
    return integers


def plain(value: Any) -> Any:
    """A single number as Python has it; an array as it is."""
    return value.item() if isinstance(value, np.ndarray | np.generic) and not value.shape else value
