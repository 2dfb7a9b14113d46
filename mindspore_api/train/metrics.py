"""Metrics of an evaluation, updated batch by batch."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mspc.ir.diagnostics import did_you_mean
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.errors import ApiKeyError, ApiRuntimeError, ApiTypeError, ApiValueError

__all__ = [
    "MAE", "MSE", "Accuracy", "Loss", "Metric", "Top1CategoricalAccuracy", "Top5CategoricalAccuracy",
    "TopKCategoricalAccuracy", "get_metric_fn", "get_metrics", "names", "rearrange_inputs",
]  # fmt: skip

EVAL_TYPES = ("classification", "multilabel")


def rearrange_inputs(func: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a method `update(self, *inputs)` so that it gets only the inputs chosen by `set_indexes`, in that order."""

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
        """Inputs that `update` takes, if it is decorated with `rearrange_inputs`; None for all."""
        return getattr(self, "_indexes", None)

    def set_indexes(self, indexes: list[int]) -> Metric:
        """Choose the inputs of `update`, and return the metric. Raise ValueError for no list of integers."""
        if not isinstance(indexes, list) or any(isinstance(i, bool) or not isinstance(i, int) for i in indexes):
            raise ApiValueError(f"{type(self).__name__}.set_indexes takes a list of integers, not {indexes!r}")
        self._indexes = indexes
        return self

    def __call__(self, *inputs: Any) -> Any:
        """Return the metric of one batch."""
        self.clear()
        self.update(*inputs)
        return self.eval()

    @abstractmethod
    def clear(self) -> None:
        """Forget all batches."""

    @abstractmethod
    def update(self, *inputs: Any) -> None:
        """Add a batch."""

    @abstractmethod
    def eval(self) -> Any:
        """Return the metric over the batches since `clear`."""

    def _convert_data(self, data: Any) -> np.ndarray:
        """Return an input as an array; metrics of scripts call this too. Raise TypeError if it is none."""
        if isinstance(data, Tensor):
            return data.asnumpy()
        if isinstance(data, list | tuple | np.ndarray | np.generic):
            return np.asarray(data)
        raise ApiTypeError(f"{type(self).__name__}.update takes Tensors, lists and arrays, not {type(data).__name__}")


class _Mean(Metric):
    """A sum over samples, divided by their number."""

    def __init__(self) -> None:
        super().__init__()
        self.clear()

    def clear(self) -> None:
        self._total = 0.0
        self._count = 0

    def eval(self) -> float:
        if not self._count:
            raise ApiRuntimeError(f"{type(self).__name__}: there was no sample", ["call update() before eval()"])
        return self._total / self._count


class OfPairs(Metric):
    """A metric of predictions and labels."""

    def _two(self, inputs: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
        """Return predictions and labels. Raise ValueError if there are not two inputs."""
        if len(inputs) != 2:
            raise ApiValueError(
                f"{type(self).__name__}.update takes 2 inputs, predictions and labels, not {len(inputs)}",
                ["set_indexes chooses among the outputs of an evaluation network"],
            )
        predicted, labels = self._convert_data(inputs[0]), self._convert_data(inputs[1])
        if not labels.ndim or not predicted.ndim:
            raise ApiValueError(f"{type(self).__name__}.update takes batches, not single numbers")
        return predicted, labels

    def _check_classes(self, predicted: np.ndarray, labels: np.ndarray) -> None:
        """Raise ValueError unless predictions are [n, classes, ...] and labels [n, ...]."""
        if predicted.ndim < 2 or labels.shape != (predicted.shape[0], *predicted.shape[2:]):
            raise ApiValueError(
                f"{type(self).__name__}.update: predictions have shape {predicted.shape}, labels {labels.shape}; "
                "for predictions [n, classes, ...] labels are [n, ...]"
            )


class EvaluationBase(OfPairs):
    """Metric of classes: predictions [n, classes, ...] and class numbers [n, ...] or one-hot labels; with eval_type
    "multilabel" zeros and ones [n, classes, ...] for both. Raise TypeError if eval_type is none of these."""

    def __init__(self, eval_type: str) -> None:
        super().__init__()
        if eval_type not in EVAL_TYPES:
            known = " nor ".join(map(repr, EVAL_TYPES))
            raise ApiTypeError(f"{type(self).__name__}: eval_type {eval_type!r} is neither {known}")
        self._type = eval_type
        self._class_num = 0

    def _batch(self, inputs: Sequence[Any]) -> tuple[np.ndarray, np.ndarray]:
        """Return predictions and labels that fit each other and the batches before. Raise ValueError if they do not."""
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
        """Raise ValueError if labels do not fit predictions."""
        if self._type != "multilabel":
            self._check_classes(predicted, labels)
        elif predicted.shape != labels.shape or predicted.ndim < 2:
            raise ApiValueError(
                f"{type(self).__name__}.update: predictions have shape {predicted.shape}, labels {labels.shape}; "
                "with 'multilabel' both are [n, classes, ...]"
            )

    def _check_value(self, predicted: np.ndarray, labels: np.ndarray) -> None:
        """Raise ValueError for anything but zeros and ones in multilabel data."""
        if self._type == "multilabel" and not (is_binary(predicted) and is_binary(labels)):
            raise ApiValueError(
                f"{type(self).__name__}.update: with 'multilabel' all predictions and labels are 0 or 1"
            )


def is_binary(data: np.ndarray) -> bool:
    """Return whether all elements are 0 or 1."""
    return bool(((data == 0) | (data == 1)).all())


def is_one_hot(data: np.ndarray) -> bool:
    """Return whether the data are [n, classes, ...] with a single 1 among the classes and zeros elsewhere."""
    return data.ndim > 1 and is_binary(data) and bool((data.sum(axis=1) == 1).all())


def plain(value: Any) -> Any:
    """Return a single number as a Python number; an array unchanged."""
    return value.item() if isinstance(value, np.ndarray | np.generic) and not value.shape else value


class Accuracy(EvaluationBase, _Mean):
    """Share of samples with the label as their likeliest class; with "multilabel", of those with every class right."""

    def __init__(self, eval_type: str = "classification") -> None:
        super().__init__(eval_type)

    def clear(self) -> None:
        super().clear()
        self._class_num = 0

    @rearrange_inputs
    def update(self, *inputs: Any) -> None:
        predicted, labels = self._batch(inputs)
        if self._type == "classification":
            right = predicted.argmax(axis=1) == labels
        else:
            right = (predicted == labels).all(axis=1)
        self._total += int(right.sum())
        self._count += right.size


class TopKCategoricalAccuracy(OfPairs, _Mean):
    """Share of samples with their class among the `k` likeliest.

    Predictions are [n, classes, ...], labels [n, ...] or one-hot. Among equally likely classes the first win. Raise
    TypeError or ValueError if k is no positive integer.
    """

    def __init__(self, k: int) -> None:
        super().__init__()
        if k < 1:
            raise ApiValueError(f"{type(self).__name__}: k {k} must be at least 1")
        self.k = k

    @rearrange_inputs
    def update(self, *inputs: Any) -> None:
        predicted, labels = self._two(inputs)
        if predicted.ndim == labels.ndim and is_one_hot(labels):
            labels = labels.argmax(axis=1)
        self._check_classes(predicted, labels)
        classes = predicted.shape[1]
        if self.k > classes:
            raise ApiValueError(f"{type(self).__name__}: {classes} classes have no {self.k} likeliest")
        rows = np.moveaxis(predicted, 1, -1).reshape(-1, classes)
        order = np.argsort(-rows.astype(np.float64), axis=1, kind="stable")[:, : self.k]
        self._total += int((order == labels.reshape(-1, 1)).any(axis=1).sum())
        self._count += len(rows)


class Top1CategoricalAccuracy(TopKCategoricalAccuracy):
    """Share of samples with the label as their likeliest class."""

    def __init__(self) -> None:
        super().__init__(1)


class Top5CategoricalAccuracy(TopKCategoricalAccuracy):
    """Share of samples with their class among the five likeliest."""

    def __init__(self) -> None:
        super().__init__(5)


class Loss(_Mean):
    """Mean of the batches' losses."""

    @rearrange_inputs
    def update(self, *inputs: Any) -> None:
        if len(inputs) != 1:
            raise ApiValueError(f"Loss.update takes 1 input, the loss of a batch, not {len(inputs)}")
        self._total += float(self._convert_data(inputs[0]).mean(dtype=np.float64))
        self._count += 1


class _Errors(OfPairs, _Mean):
    """Base of metrics of predictions and labels of one size."""

    def _differences(self, inputs: tuple[Any, ...]) -> np.ndarray:
        """Return labels - predictions, and count a sample for every row. Raise ValueError if their sizes differ."""
        predicted, labels = self._two(inputs)
        if predicted.size != labels.size:
            raise ApiValueError(
                f"{type(self).__name__}.update: predictions have shape {predicted.shape}, labels {labels.shape}"
            )
        self._count += labels.shape[0]
        return labels.reshape(predicted.shape).astype(np.float64) - predicted.astype(np.float64)


class MSE(_Errors):
    """Sum of squared errors over the number of rows."""

    @rearrange_inputs
    def update(self, *inputs: Any) -> None:
        self._total += float(np.square(self._differences(inputs)).sum())


class MAE(_Errors):
    """Sum of absolute errors over the number of rows."""

    @rearrange_inputs
    def update(self, *inputs: Any) -> None:
        self._total += float(np.abs(self._differences(inputs)).sum())


_BY_NAME: dict[str, Callable[..., Metric]] = {
    "accuracy": Accuracy, "acc": Accuracy, "loss": Loss, "mae": MAE, "mse": MSE,
    "top_1_accuracy": Top1CategoricalAccuracy, "top_5_accuracy": Top5CategoricalAccuracy,
    "topk": TopKCategoricalAccuracy,
}  # fmt: skip


def names() -> list[str]:
    """Return the names that `get_metric_fn` accepts."""
    return sorted(_BY_NAME)


def get_metric_fn(name: str, *args: Any, **kwargs: Any) -> Any:
    """Return the metric of a name, made with these arguments. Raise KeyError for an unknown name."""
    if name not in _BY_NAME:
        raise ApiKeyError(_unknown(name), did_you_mean(str(name), _BY_NAME))
    return _BY_NAME[name](*args, **kwargs)


def get_metrics(metrics: Any) -> dict[str, Metric]:
    """Return metrics by name, in a fixed order: those of a dict, or made for a set of names. Raise TypeError if
    `metrics` is of the wrong kind; ValueError for an unknown name, or one that needs arguments."""
    if metrics is None:
        return {}
    if isinstance(metrics, dict):
        for key, value in metrics.items():
            if not isinstance(key, str) or not isinstance(value, Metric):
                raise ApiTypeError(f"metrics holds {key!r}: {type(value).__name__}, not a name and a Metric")
        return dict(metrics)
    if not isinstance(metrics, set | frozenset):
        raise ApiTypeError(f"metrics must be a dict or a set of names, not {type(metrics).__name__}")
    return {name: _of_name(name) for name in sorted(metrics, key=str)}


def _of_name(name: Any) -> Metric:
    if not isinstance(name, str) or name not in _BY_NAME:
        raise ApiValueError(_unknown(name), did_you_mean(str(name), _BY_NAME))
    try:
        return _BY_NAME[name]()
    except TypeError:
        notes = [f"pass {{{name!r}: ...}} with the metric itself"]
        raise ApiValueError(f"metric {name!r} needs arguments", notes) from None


def _unknown(name: Any) -> str:
    return f"unknown metric {name!r}; known are {', '.join(_BY_NAME)}"
