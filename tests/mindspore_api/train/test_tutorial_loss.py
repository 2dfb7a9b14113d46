"""The tutorials' softmax cross entropy, written out in small operators, on logits whose classes are sharded."""

from typing import Any

import numpy as np
import pytest

import mspc as ms
import mspc.common.dtype as mstype
from mspc import Parameter, Tensor, nn, ops
from mspc.common.initializer import initializer
from tests.mindspore_api.nn.training import Training, floats


class SoftmaxCrossEntropyExpand(nn.Cell):
    """logit [n, classes], label [n] where `sparse`, else [n, classes]."""

    def __init__(self, sparse: bool = False, cut: Any = None) -> None:
        super().__init__()
        self.exp = ops.Exp()
        self.sum = ops.ReduceSum(keep_dims=True)
        self.onehot = ops.OneHot()
        self.on_value = Tensor(1.0, mstype.float32)
        self.off_value = Tensor(0.0, mstype.float32)
        self.div = ops.Div()
        self.log = ops.Log()
        self.sum_cross_entropy = ops.ReduceSum(keep_dims=False)
        self.mul = ops.Mul()
        self.mul2 = ops.Mul()
        self.mean = ops.ReduceMean(keep_dims=False)
        self.sparse = sparse
        self.max = ops.ReduceMax(keep_dims=True)
        self.sub = ops.Sub()
        if cut is not None:
            rows = cut[0]
            self.max.shard((cut,))
            self.sub.shard((cut, (rows, 1)))
            self.exp.shard((cut,))
            self.sum.shard((cut,))
            self.div.shard((cut, (rows, 1)))
            self.log.shard((cut,))
            self.onehot.shard((cut, (), ()))
            self.mul.shard((cut, cut))
            self.sum_cross_entropy.shard((cut,))

    def construct(self, logit: Any, label: Any) -> Any:
        logit_max = self.max(logit, -1)
        exp = self.exp(self.sub(logit, logit_max))
        exp_sum = self.sum(exp, -1)
        softmax_result = self.div(exp, exp_sum)
        if self.sparse:
            label = self.onehot(label, ops.shape(logit)[1], self.on_value, self.off_value)
        softmax_result_log = self.log(softmax_result)
        loss = self.sum_cross_entropy((self.mul(softmax_result_log, label)), -1)
        loss = self.mul2(ops.scalar_to_array(-1.0), loss)
        loss = self.mean(loss, -1)
        return loss


class Net(nn.Cell):
    """x [n, 12] -> [n, 16], its classes sharded as `classes` says."""

    def __init__(self, cut: Any = None) -> None:
        super().__init__()
        self.w = Parameter(initializer("normal", (12, 24)), "w")
        self.v = Parameter(initializer("normal", (16, 24)), "v")
        self.first = ops.MatMul()
        self.relu = ops.ReLU()
        self.second = ops.MatMul(transpose_b=True)
        if cut is not None:
            self.second.shard(((cut[0], 1), (cut[1], 1)))

    def construct(self, x: Any) -> Any:
        return self.second(self.relu(self.first(x, self.w)), self.v)


class Labelled(nn.Cell):
    """The loss of rows [n, 13] whose last number is the label, or of [n, 28] whose last 16 are."""

    def __init__(self, net: Any, loss: Any) -> None:
        super().__init__(auto_prefix=False)
        self.net = net
        self.loss = loss

    def construct(self, rows: Any) -> Any:
        label = ops.cast(rows[:, 12], ms.int32) if self.loss.sparse else rows[:, 12:]
        return self.loss(self.net(rows[:, :12]), label)


def trained(sparse: bool, ranks: int, cut: Any, mode: str, loss_cut: bool) -> tuple[Any, Any, list[Any]]:
    ms.set_seed(2)
    net = Net(cut)
    step = nn.TrainOneStepCell(
        Labelled(net, SoftmaxCrossEntropyExpand(sparse, cut if loss_cut else None)),
        nn.Momentum(net.trainable_params(), 0.5, 0.9),
    )
    labels = np.random.default_rng(3).integers(0, 16, 8)
    last = labels[:, None] if sparse else np.eye(16)[labels]
    rows = np.concatenate([floats(1, 8, 12, scale=2.0), last], axis=1).astype(np.float32)
    training = Training(step.set_train(), [rows.shape], ranks, mode)
    losses = training.run([[rows]] * 4)
    return losses, training.states[-1], [getattr(node.type, "shape", ()) for node in training.graphs[0].nodes]


@pytest.mark.parametrize("sparse", [True, False])
@pytest.mark.parametrize(
    ("ranks", "cut", "loss_cut", "mode"),
    [
        (8, (2, 4), False, "semi_auto_parallel"),
        (8, (2, 4), True, "semi_auto_parallel"),
        (4, (1, 4), True, "semi_auto_parallel"),
        (8, (1, 8), False, "auto_parallel"),
        (8, None, False, "auto_parallel"),
        (3, None, False, "semi_auto_parallel"),
    ],
)
def test_it_equals_one_device(sparse: bool, ranks: int, cut: Any, loss_cut: bool, mode: str) -> None:
    losses, states, _ = trained(sparse, 1, None, "stand_alone", False)
    cut_losses, cut_states, shapes = trained(sparse, ranks, cut, mode, loss_cut)
    np.testing.assert_allclose(cut_losses, losses, rtol=1e-5)
    assert losses[-1] < losses[0]
    for name in ("w", "v"):
        np.testing.assert_allclose(cut_states[name], states[name], rtol=1e-4, atol=1e-6)
    if loss_cut and sparse:
        assert not [shape for shape in shapes if shape[-1:] == (16,)]  # no rank sees all classes


def test_it_is_the_cross_entropy() -> None:
    losses, _, _ = trained(True, 1, None, "stand_alone", False)
    ms.set_seed(2)
    net = Net()
    rows = floats(1, 8, 12, scale=2.0)
    hidden = np.maximum(rows @ net.w.asnumpy(), 0) @ net.v.asnumpy().T
    odds = hidden - np.log(np.exp(hidden).sum(1, keepdims=True))
    expected = -odds[np.arange(8), np.random.default_rng(3).integers(0, 16, 8)].mean()
    assert float(losses[0]) == pytest.approx(float(expected), rel=1e-5)
