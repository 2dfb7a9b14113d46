"""Metrics of an evaluation: they are fed batch by batch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mspc.api.common.tensor import Tensor
from mspc.api.errors import ApiTypeError, ApiValueError


class Metric:
    """A number over many batches: `clear`, `update` with outputs and labels, `eval`."""

    uses_loss = False

    def __init__(self) -> None:
        self._indexes: Sequence[int] | None = None
        self.clear()

    def set_indexes(self, indexes: Sequence[int]) -> Metric:
        """Which outputs of the evaluation network go to `update`."""
        self._indexes = indexes
        return self

    def chosen(self, outputs: Any, indexes: Any = None) -> tuple[Any, ...]:
        """The outputs of the evaluation network, (loss, output, label), that this metric wants."""
        values = outputs if isinstance(outputs, tuple) else (outputs,)
        if self._indexes is not None:
            return tuple(values[i] for i in self._indexes)
        if self.uses_loss:
            return (values[0 if indexes is None else indexes[0]],)
        return tuple(values[i] for i in indexes[1:]) if indexes is not None else tuple(values[-2:])

    def clear(self) -> None:
        raise NotImplementedError

    def update(self, *inputs: Any) -> None:
        raise NotImplementedError

    def eval(self) -> Any:
        raise NotImplementedError


class _Mean(Metric):
    """Mean over samples."""

    def clear(self) -> None:
        self._total = 0.0
        self._count = 0

    def eval(self) -> float:
        if not self._count:
            raise ApiValueError(f"{type(self).__name__}: there was no sample")
        return self._total / self._count


class Accuracy(_Mean):
    """Share of right classes; labels are class numbers [n] or one-hot [n, classes]."""

    def __init__(self, eval_type: str = "classification") -> None:
        if eval_type != "classification":
            raise ApiValueError(f"Accuracy: eval_type {eval_type!r} is not supported")
        super().__init__()

    def update(self, *inputs: Any) -> None:
        predicted, labels = (_array(x) for x in inputs)
        if labels.ndim == predicted.ndim:
            labels = labels.argmax(-1)
        self._total += float((predicted.argmax(-1) == labels).sum())
        self._count += labels.size


class Top1CategoricalAccuracy(Accuracy):
    """Share of right classes."""

    def __init__(self) -> None:
        super().__init__()


class Loss(_Mean):
    """Mean of the batches' losses."""

    uses_loss = True

    def update(self, *inputs: Any) -> None:
        self._total += float(_array(inputs[0]).mean())
        self._count += 1


class MSE(_Mean):
    """Mean of squared errors."""

    def update(self, *inputs: Any) -> None:
        predicted, labels = (_array(x) for x in inputs)
        self._total += float(np.square(predicted - labels).sum())
        self._count += labels.shape[0]


class MAE(_Mean):
    """Mean of absolute errors."""

    def update(self, *inputs: Any) -> None:
        predicted, labels = (_array(x) for x in inputs)
        self._total += float(np.abs(predicted - labels).sum())
        self._count += labels.shape[0]


_BY_NAME: dict[str, type[Metric]] = {
    "accuracy": Accuracy, "acc": Accuracy, "loss": Loss, "mse": MSE, "mae": MAE,
    "top_1_accuracy": Top1CategoricalAccuracy,
}  # fmt: skip


def get_metrics(metrics: Any) -> dict[str, Metric]:
    """Metrics by name, in a fixed order.

    Raises:
        TypeError: `metrics` is of the wrong kind. ValueError: an unknown name.
    """
    if metrics is None:
        return {}
    if isinstance(metrics, dict):
        for value in metrics.values():
            if not isinstance(value, Metric):
                raise ApiTypeError(f"metrics holds {type(value).__name__}, not a Metric")
        return dict(metrics)
    if not isinstance(metrics, (set, list, tuple)):
        raise ApiTypeError(f"metrics must be a dict or a set of names, not {type(metrics).__name__}")
    found: dict[str, Metric] = {}
    for name in sorted(metrics) if isinstance(metrics, set) else metrics:
        if name not in _BY_NAME:
            raise ApiValueError(f"unknown metric {name!r}; known are {', '.join(_BY_NAME)}")
        found[name] = _BY_NAME[name]()
    return found


def _array(value: Any) -> np.ndarray:
    return value.value if isinstance(value, Tensor) else np.asarray(value)
