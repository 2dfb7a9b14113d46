"""Small names that public code imports, against what MindSpore 2.10 gives on a CPU."""

from __future__ import annotations

import numpy as np
import pytest

import mspc as ms
from mspc import Tensor, nn, ops
from mspc.ir.diagnostics import MspcError

X = Tensor(np.array([[3.0, 4.0], [0.0, 0.0]], np.float32))


def near(found: Tensor, expected: object) -> None:
    np.testing.assert_allclose(found.asnumpy(), np.asarray(expected, np.float32), rtol=1e-5, atol=1e-6)


def test_norms_are_cut() -> None:
    near(ops.clip_by_norm(X, 2.0), [[1.2, 1.6], [0, 0]])
    near(ops.clip_by_norm(X, 10.0), X.asnumpy())
    near(ops.clip_by_norm(X, 2.0, 1.0), [[6 / 7, 8 / 7], [0, 0]])
    near(ops.clip_by_norm([X, X], 2.0, float("inf"))[1], [[1.5, 2.0], [0, 0]])
    with pytest.raises(MspcError, match="error_if_nonfinite=True: contents are not known"):
        ops.clip_by_norm(X, 2.0, error_if_nonfinite=True)
    for axis in (None, 1):
        near(nn.ClipByNorm(axis)(X, Tensor([2.0], ms.float32)), [[1.2, 1.6], [0, 0]])
    gradient = ms.grad(lambda x: nn.ClipByNorm()(x, Tensor([2.0], ms.float32)).sum())
    near(gradient(X * 0), np.ones((2, 2)))


def test_cells_of_arrays() -> None:
    mean, variance = nn.Moments(0)(X)
    near(mean, [1.5, 2.0])
    near(variance, [2.25, 4.0])
    assert nn.Moments(0, True)(X)[0].shape == (1, 2)
    near(nn.OneHot(depth=3)(Tensor([0, 2], ms.int32)), [[1, 0, 0], [0, 0, 1]])
    assert nn.Range(1, 8, 2)().asnumpy().tolist() == [1, 3, 5, 7]
    assert nn.Dense(2, 3, has_bias=False).bias is None


@pytest.mark.parametrize("axes", [0, 1, 2, (1, 0), ([0, 1], [1, 0])])
def test_tensor_dot_is_that_of_numpy(axes: object) -> None:
    near(ops.tensor_dot(X, X + 1, axes), np.tensordot(X.asnumpy(), X.asnumpy() + 1, axes))


@pytest.mark.parametrize(
    ("axes", "message"),
    [
        (3, "tensor_dot(): axes 3 is not from 0 to 2"),
        ("a", "tensor_dot(): axes must be a number or a pair of lists, not 'a'"),
        ((0, 2), "tensor_dot: axis 2 is out of range for 2 dimensions"),
        (([0, 1], [0]), "tensor_dot(): dimensions (0, 1) of (2, 2) do not fit dimensions (0,) of (2, 2)"),
    ],
)
def test_tensor_dot_refuses(axes: object, message: str) -> None:
    with pytest.raises(MspcError) as refused:
        ops.tensor_dot(X, X, axes)
    assert refused.value.message == message


def test_words_of_overflow() -> None:
    near(ops.FloatStatus()(X), [0.0])
    near(ops.FloatStatus()(Tensor([1.0, float("nan")], ms.float32)), [1.0])


def test_operators_of_mint() -> None:
    assert ops.StackExt(dim=1)((X, X)).shape == (2, 2, 2)
    assert ops.ZerosLikeExt()(X, ms.int32).dtype == ms.int32
    assert ops.OnesLikeExt()(X).dtype == ms.float32
    assert ops.MatMulExt()(X[None], X).shape == (1, 2, 2)
    out, mask = ops.DropoutExt()(X, 0.0)
    near(out, X.asnumpy())
    assert mask.shape == X.shape


def test_statements() -> None:
    assert ops.make_range(3) == (0, 1, 2)
    assert ops.make_range(1, 6, 2) == (1, 3, 5)
    assert ops.identity(X) is X
    cell = ops.add_flags(nn.ReLU(), has_effect=True)
    assert cell.get_flags() == {"has_effect": True}
    with pytest.raises(MspcError, match="add_flags takes a Cell or a function, not 1"):
        ops.add_flags(1)


def test_modules_of_training_steps() -> None:
    from mspc.nn.wrap import DistributedGradReducer, TrainOneStepWithLossScaleCell, cell_wrapper, grad_reducer
    from mspc.nn.wrap.loss_scale import _grad_overflow, _grad_scale

    assert grad_reducer.DistributedGradReducer is DistributedGradReducer is nn.DistributedGradReducer
    assert cell_wrapper.TrainOneStepCell is nn.TrainOneStepCell
    assert TrainOneStepWithLossScaleCell is nn.TrainOneStepWithLossScaleCell
    near(ops.HyperMap(ops.partial(_grad_scale, Tensor(2.0, ms.float32)))((X,))[0], X.asnumpy() / 2)
    near(ops.HyperMap(_grad_overflow)((X,))[0], [0.0])
