"""Losses of sharded networks: values and gradients in every mode equal PyTorch's of the whole batch."""

from typing import Any

import numpy as np
import pytest

from mspc import Parameter, Tensor, nn, ops
from tests.mindspore_api.nn.training import Training

torch = pytest.importorskip("torch", reason="needs PyTorch: pip install -e '.[oracle]'")

from tests.oracle.against import floats, near  # noqa: E402  # it imports PyTorch
from tests.shares import crossed  # noqa: E402  # as above

F = torch.nn.functional
X = floats(1, 16, 8, dtype=np.float32)
WEIGHT = floats(2, 8, 6, dtype=np.float32)
TARGET = np.random.default_rng(3).integers(0, 6, 16)
TARGET[[0, 5, 6, 7, 12]] = 2
CLASSES = floats(4, 6, dtype=np.float32, low=0.5)
SHARES = floats(5, 16, 6, dtype=np.float32, low=0.05, high=0.95)
CUTS: list[tuple[tuple[int, int], tuple[int, int]]] = [((4, 1), (1, 1)), ((2, 2), (2, 1)), ((1, 1), (1, 2))]

SIGNED = np.where(np.arange(6) < 3, np.argsort(SHARES, axis=1), -1)

LOSSES: list[tuple[str, Any, Any]] = [
    ("margin", lambda y: ops.multi_margin_loss(y, Tensor(TARGET), 2, 1, Tensor(CLASSES)),
     lambda y: F.multi_margin_loss(y, torch.tensor(TARGET), 2, 1, torch.tensor(CLASSES))),
    ("margin of labels", lambda y: ops.multilabel_margin_loss(y, Tensor(SIGNED)),
     lambda y: F.multilabel_margin_loss(y, torch.tensor(SIGNED))),
    ("classes", lambda y: ops.cross_entropy(y, Tensor(TARGET), Tensor(CLASSES), 2, "mean", 0.1),
     lambda y: F.cross_entropy(y, torch.tensor(TARGET), torch.tensor(CLASSES), ignore_index=2, label_smoothing=0.1)),
    ("nll", lambda y: ops.nll_loss(y, Tensor(TARGET), None, 2),
     lambda y: F.nll_loss(y, torch.tensor(TARGET), ignore_index=2)),
    ("bce", lambda y: ops.binary_cross_entropy(ops.sigmoid(y), Tensor(SHARES)),
     lambda y: F.binary_cross_entropy(F.sigmoid(y), torch.tensor(SHARES))),
    ("bce with logits", lambda y: ops.binary_cross_entropy_with_logits(y, Tensor(SHARES), None, Tensor(CLASSES)),
     lambda y: F.binary_cross_entropy_with_logits(y, torch.tensor(SHARES), pos_weight=torch.tensor(CLASSES))),
    ("kl", lambda y: ops.kl_div(y, Tensor(SHARES), "batchmean"),
     lambda y: F.kl_div(y, torch.tensor(SHARES), reduction="batchmean")),
    ("KLDivLoss", lambda y: ops.KLDivLoss("batchmean").shard(((2, 2), (2, 2)))(y, Tensor(SHARES)),
     lambda y: F.kl_div(y, torch.tensor(SHARES), reduction="batchmean")),
    ("huber", lambda y: ops.huber_loss(y, Tensor(SHARES)), lambda y: F.huber_loss(y, torch.tensor(SHARES))),
    ("smooth l1", lambda y: ops.smooth_l1_loss(y, Tensor(SHARES), 0.5, "mean"),
     lambda y: F.smooth_l1_loss(y, torch.tensor(SHARES), beta=0.5)),
    ("SmoothL1Loss", lambda y: ops.SmoothL1Loss(0.5, "sum")(y, Tensor(SHARES)),
     lambda y: F.smooth_l1_loss(y, torch.tensor(SHARES), beta=0.5, reduction="sum")),
]  # fmt: skip


class Step(nn.Cell):
    """(loss, its gradient in the weight)."""

    def __init__(self, loss: Any, cuts: Any) -> None:
        super().__init__()
        self.w = Parameter(Tensor(WEIGHT), "w")
        self.product = ops.MatMul().shard(cuts)
        self.loss = loss
        self.both = ops.value_and_grad(self.whole, None, [self.w])

    def whole(self, x: Any) -> Any:
        return self.loss(self.product(x, self.w))

    def construct(self, x: Any) -> Any:
        loss, gradients = self.both(x)
        return loss, gradients[0] + 0.0


@pytest.mark.parametrize(("case", "cuts", "mode"), crossed(LOSSES, CUTS, ["semi_auto_parallel", "auto_parallel"]))
def test_sharded(case: tuple[str, Any, Any], cuts: Any, mode: str) -> None:
    _, mine, theirs = case
    weight = torch.tensor(WEIGHT, requires_grad=True)
    loss = theirs(torch.tensor(X) @ weight)
    loss.backward()
    found, gradient = Training(Step(mine, cuts), [X.shape], 4, mode).run([(X,)])[0]
    near(found, loss.detach().numpy(), "loss")
    near(gradient, weight.grad.numpy(), "gradient")
