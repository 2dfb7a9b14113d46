"""Classes of MindSpore's operators that are functions here, in one network, against NumPy."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import mspc
from mspc import Tensor, nn, ops
from mspc.ops import operations as P

DRAWS = np.random.default_rng(6)
X = DRAWS.standard_normal((3, 4)).astype(np.float32)
Y = DRAWS.standard_normal((3, 4)).astype(np.float32)
V = DRAWS.standard_normal((3, 3)).astype(np.float32)
IMAGES = DRAWS.standard_normal((4, 1, 2, 2)).astype(np.float32)
COUNTS = np.array([3, 1, 4, 1], np.int32)
RISING = np.sort(DRAWS.standard_normal((3, 6)), 1).astype(np.float32)
HALF = np.fft.rfft(X[:, :3]).astype(np.complex64)

CASES: dict[str, tuple[Any, tuple[Any, ...], Any]] = {
    "Cross": (P.Cross(1), (V, V[::-1].copy()), np.cross(V, V[::-1])),
    "Dense": (P.Dense(), (X, Y), X @ Y.T),
    "GLU": (P.GLU(1), (X,), X[:, :2] / (1 + np.exp(-X[:, 2:]))),
    "LogSigmoid": (ops.auto_generate.LogSigmoid(), (X,), -np.log1p(np.exp(-X))),
    "SearchSorted": (P.SearchSorted(right=True), (RISING, RISING), np.tile(np.arange(1, 7), (3, 1))),
    "MatrixBandPart": (P.MatrixBandPart(), (V, 0, 1), np.triu(V) - np.triu(V, 2)),
    "ReduceStd": (P.ReduceStd(1), (X,), (X.std(1, ddof=1), X.mean(1))),
    "ResizeNearestNeighborV2": (P.ResizeNearestNeighborV2(), (IMAGES, (4, 4)), IMAGES.repeat(2, 2).repeat(2, 3)),
    "Roll": (P.Roll(1, 0), (X,), np.roll(X, 1, 0)),
    "TensorScatterElements": (P.TensorScatterElements(1), (X, np.array([[1], [0], [3]]), Y[:, :1]),
                              np.where(np.arange(4) == [[1], [0], [3]], Y[:, :1], X)),
    "TensorShape": (P.TensorShape(), (X,), [3, 4]),
}  # fmt: skip


def test_operators_of_a_network() -> None:
    class Net(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.operators = [operator for operator, _, _ in CASES.values()]
            self.operands = [tensors(operands) for _, operands, _ in CASES.values()]

        def construct(self, x):
            return [operator(*given) for operator, given in zip(self.operators, self.operands, strict=True)]

    results = Net()(Tensor(X))
    for (name, (operator, operands, wanted)), found in zip(CASES.items(), results, strict=True):
        for result in (found, operator(*tensors(operands))):
            many = result if isinstance(result, tuple | list) else (result,)
            for one, other in zip(many, wanted if isinstance(result, tuple) else (wanted,), strict=True):
                np.testing.assert_allclose(one.asnumpy(), other, rtol=2e-5, atol=2e-6, err_msg=name)


def tensors(value: Any) -> Any:
    if isinstance(value, tuple):
        return tuple(map(tensors, value)) if any(isinstance(v, np.ndarray | np.generic) for v in value) else value
    return Tensor(value) if isinstance(value, np.ndarray | np.generic) else value


def test_drawn() -> None:
    ones = P.Bernoulli(seed=3)(Tensor(np.zeros(4000, np.float32)), 0.25).asnumpy()
    assert abs(ones.mean() - 0.25) < 0.03
    assert sorted(P.RandomShuffle(1)(Tensor(np.arange(9))).asnumpy()) == list(range(9))
    assert sorted(P.RandpermV2()(6).asnumpy()) == list(range(6))
    assert P.Multinomial(1)(Tensor([0.0, 3.0, 1.0]), 50).asnumpy().min() == 1


def test_changes_of_parameters() -> None:
    held = mspc.Parameter(Tensor(X), name="held")
    ops.scatter_nd_max(held, Tensor([[0], [2]]), Tensor(np.zeros((2, 4), np.float32)))
    wanted = np.stack([np.maximum(X[0], 0), X[1], np.maximum(X[2], 0)])
    np.testing.assert_array_equal(held.asnumpy(), wanted)
    P.IndexAdd(1)(held, Tensor(np.array([3], np.int32)), Tensor(Y[:, :1]))
    np.testing.assert_allclose(held.asnumpy()[:, 3], wanted[:, 3] + Y[:, 0], rtol=1e-6)


def test_names_of_the_files_of_functions() -> None:
    from mspc.ops.auto_generate import expand_dims
    from mspc.ops.function.array_func import chunk_view, max_ext

    assert float(max_ext(Tensor(X)).asnumpy()) == X.max()
    assert [part.shape for part in chunk_view(Tensor(X), 2, 1)] == [(3, 2), (3, 2)]
    assert expand_dims(Tensor(X), 0).shape == (1, 3, 4)
    with pytest.raises(AttributeError):
        _ = ops.function.array_func.none_ext
    assert not hasattr(ops, "max_ext")
