"""Labels that are no class: losses of class numbers refuse them on a CPU, on every rank."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mspc import Tensor, nn, ops
from mspc.ir.diagnostics import MspcError
from mspc.ir.types import FLOAT32, INT32
from tests.mindspore_api.nn.training import Training

LOGITS = Tensor(np.arange(6, dtype=np.float32).reshape(2, 3))
LOSSES: list[Callable[[Any, Any], Any]] = [
    lambda x, y: nn.SoftmaxCrossEntropyWithLogits(sparse=True, reduction="mean")(x, y),
    lambda x, y: ops.SparseSoftmaxCrossEntropyWithLogits()(x, y),
    lambda x, y: nn.CrossEntropyLoss()(x, y),
    lambda x, y: nn.NLLLoss()(x, y),
    lambda x, y: ops.cross_entropy(x, y),
    lambda x, y: ops.nll_loss(x, y),
]


@pytest.mark.parametrize("label", [3, 7, -1])
@pytest.mark.parametrize("loss", LOSSES)
def test_a_label_that_is_no_class(loss: Callable[[Any, Any], Any], label: int) -> None:
    with pytest.raises(MspcError, match=rf"label {label} is not from 0 to 2"):
        loss(LOGITS, Tensor(np.array([1, label], np.int32)))


@pytest.mark.parametrize("cut", [(2, 1), (1, 2)])
def test_on_ranks_classes_are_those_of_all(cut: tuple[int, int]) -> None:
    """A label beside the classes of a rank's own slice is no mistake."""

    class Net(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.double = ops.Mul().shard((cut, ()))

        def construct(self, x: Any, y: Any) -> Any:
            return ops.cross_entropy(self.double(x, 2.0), y)

    x = np.arange(16, dtype=np.float32).reshape(4, 4)
    training = Training(Net(), [(4, 4), (4,)], 2, "semi_auto_parallel", [FLOAT32, INT32])
    (found,) = training.run([[x, np.array([0, 3, 1, 2], np.int32)]])
    expected = ops.cross_entropy(Tensor(x * 2), Tensor(np.array([0, 3, 1, 2], np.int32)))
    np.testing.assert_allclose(np.asarray(found), expected.asnumpy(), rtol=1e-6)
    with pytest.raises(MspcError, match=r"label 4 is not from 0 to 3"):
        training.run([[x, np.array([0, 3, 1, 4], np.int32)]])
