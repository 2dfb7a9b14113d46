"""Metrics, over batches of different sizes, against scikit-learn and by hand."""

from importlib import import_module
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

import mspc
from mspc import Tensor, nn, train
from mspc.mindspore_api.train.metrics import EvaluationBase

if find_spec("sklearn") is None:
    pytest.skip("needs scikit-learn: pip install -e '.[dev]'", allow_module_level=True)


class _Judge:
    """scikit-learn's metrics, loaded by the process that runs these tests and by no other that collects them."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # pytest looks for marks and fixtures
            raise AttributeError(name)
        return getattr(import_module("sklearn.metrics"), name)


sk = _Judge()

DRAW = np.random.default_rng(3)
SIZES = (5, 9, 1)
LOGITS = DRAW.standard_normal((15, 6)).astype(np.float32)
CLASSES = DRAW.integers(0, 5, 15).astype(np.int32)  # the last class is in no label
CHOSEN = LOGITS.argmax(1)
LABELS = list(range(6))
MANY, MANY_TRUE = (DRAW.integers(0, 2, (15, 6)).astype(np.float32) for _ in range(2))


def fed(metric: Any, predicted: np.ndarray, labels: np.ndarray) -> Any:
    """The metric after `clear` and batches of SIZES rows, as Tensors."""
    metric.update(Tensor(predicted[:2]), Tensor(labels[:2]))
    metric.clear()
    start = 0
    for size in SIZES:
        metric.update(Tensor(predicted[start : start + size]), Tensor(labels[start : start + size]))
        start += size
    return metric


def one_hot(labels: np.ndarray) -> np.ndarray:
    return np.eye(6, dtype=np.float32)[labels]


@pytest.mark.parametrize("labels", [CLASSES, CLASSES.astype(np.float32), one_hot(CLASSES)], ids=["int", "float", "hot"])
@pytest.mark.parametrize(
    ("made", "expected"),
    [
        (train.Accuracy, lambda: sk.accuracy_score(CLASSES, CHOSEN)),
        (train.Top1CategoricalAccuracy, lambda: sk.accuracy_score(CLASSES, CHOSEN)),
        (train.Top5CategoricalAccuracy, lambda: sk.top_k_accuracy_score(CLASSES, LOGITS, k=5, labels=LABELS)),
        (
            lambda: train.TopKCategoricalAccuracy(3),
            lambda: sk.top_k_accuracy_score(CLASSES, LOGITS, k=3, labels=LABELS),
        ),
    ],
    ids=["accuracy", "top1", "top5", "top3"],
)
def test_classes_are_judged_as_by_scikit_learn(made: Any, expected: Any, labels: np.ndarray) -> None:
    np.testing.assert_allclose(fed(made(), LOGITS, labels).eval(), expected(), rtol=1e-12)


def test_several_labels_at_once_are_judged_per_sample() -> None:
    assert fed(train.Accuracy("multilabel"), MANY, MANY_TRUE).eval() == sk.accuracy_score(MANY_TRUE, MANY)


def test_of_equal_scores_the_first_class_is_the_likeliest() -> None:
    assert train.Top1CategoricalAccuracy()(Tensor(np.ones((2, 3), np.float32)), Tensor([0, 1])) == 0.5


@pytest.mark.parametrize(("made", "judge"), [(train.MSE, "mean_squared_error"), (train.MAE, "mean_absolute_error")])
def test_errors_are_means_over_rows(made: Any, judge: str) -> None:
    guesses = DRAW.standard_normal(15).astype(np.float32)
    truth = DRAW.standard_normal(15).astype(np.float32)
    metric = fed(made(), guesses, truth)
    assert metric.eval() == pytest.approx(getattr(sk, judge)(truth.astype(float), guesses.astype(float)), rel=1e-12)
    wide = made()(np.array([[1, 2], [3, 4]], np.uint8), np.array([[2, 2], [3, 6]], np.uint8))  # a sum per row
    assert wide == {"mean_squared_error": 2.5, "mean_absolute_error": 1.5}[judge]


def test_metrics_of_scripts_choose_their_inputs() -> None:
    class Largest(train.Metric):
        def __init__(self, scale: float) -> None:
            super().__init__()  # the attributes that `clear` needs come later
            self.scale = scale
            self.clear()

        def clear(self) -> None:
            self.found = -self.scale

        @train.rearrange_inputs
        def update(self, *inputs: Any) -> None:
            self.found = max(self.found, self.scale * float(self._convert_data(inputs[0]).max()))

        def eval(self) -> float:
            return self.found

    metric = Largest(2.0).set_indexes([1])
    assert metric.indexes == [1]
    assert metric(Tensor([9.0]), Tensor([3.0]), [7.0]) == 6.0
    with pytest.raises(ValueError, match=r"Largest: set_indexes\(\[1\]\) chooses among 1 inputs"):
        metric.update(Tensor([9.0]))
    with pytest.raises(ValueError, match=r"Largest\.set_indexes takes a list of integers, not 3"):
        metric.set_indexes(3)
    with pytest.raises(TypeError, match=r"Largest\.update takes Tensors, lists and arrays, not str"):
        metric.update(0, "x")
    with pytest.raises(TypeError, match="abstract"):
        train.Metric()


def test_metrics_by_name() -> None:
    assert {"accuracy", "acc", "topk", "loss", "top_5_accuracy"} <= set(train.names())
    assert isinstance(train.get_metric_fn("acc", eval_type="multilabel"), EvaluationBase)
    assert train.get_metric_fn("topk", 3).k == 3
    with pytest.raises(KeyError) as caught:
        train.get_metric_fn("acuracy")
    assert caught.value.message.startswith("unknown metric 'acuracy'; known are accuracy, acc, loss, ")
    assert caught.value.notes[0].startswith("did you mean 'accuracy'")
    assert nn.Accuracy is train.Accuracy  # as in MindSpore 1
    assert nn.rearrange_inputs is train.rearrange_inputs


@pytest.mark.parametrize(
    ("metrics", "error", "message"),
    [
        ({"topk"}, ValueError, "metric 'topk' needs arguments"),
        ({"a": 3}, TypeError, "metrics holds 'a': int, not a name and a Metric"),
        ("acc", TypeError, "metrics must be a dict or a set of names, not str"),
        ({3}, ValueError, "unknown metric 3; known are accuracy, "),
    ],
)
def test_metrics_of_a_model(metrics: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error) as caught:
        mspc.Model(nn.ReLU(), metrics=metrics)
    assert caught.value.message.startswith(message)
