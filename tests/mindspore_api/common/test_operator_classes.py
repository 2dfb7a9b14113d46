"""Classes of MindSpore's operators that are functions here, in one network, against NumPy."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mspc
from mspc import COOTensor, CSRTensor, Tensor, nn, ops
from mspc.mindspore_api.errors import ApiTypeError, ApiValueError
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
    "AddV2": (P.AddV2(), (X, Y), X + Y),
    "Addcdiv": (P.Addcdiv(), (X, Y, 1 + X * X, 2.0), X + 2 * Y / (1 + X * X)),
    "Addcmul": (P.Addcmul(), (X, Y, X, 2.0), X + 2 * Y * X),
    "BlackmanWindow": (P.BlackmanWindow(False), (7,), np.blackman(7)),
    "CeLU": (P.CeLU(2.0), (X,), np.where(X > 0, X, 2 * np.expm1(X / 2))),
    "ChannelShuffle": (P.ChannelShuffle(2), (IMAGES.reshape(1, 4, 2, 2),), IMAGES.reshape(1, 4, 2, 2)[:, [0, 2, 1, 3]]),
    "Cross": (P.Cross(1), (V, V[::-1].copy()), np.cross(V, V[::-1])),
    "Dense": (P.Dense(), (X, Y), X @ Y.T),
    "Fmax": (P.Fmax(), (X, Y), np.fmax(X, Y)),
    "GLU": (P.GLU(1), (X,), X[:, :2] / (1 + np.exp(-X[:, 2:]))),
    "Ger": (P.Ger(), (X[0], V[0]), np.outer(X[0], V[0])),
    "Heaviside": (P.Heaviside(), (X, Y), np.heaviside(X, Y)),
    "InTopK": (P.InTopK(1), (X, X.argmax(1).astype(np.int32)), [True] * 3),
    "IndexFill": (P.IndexFill(), (X, 1, np.array([0, 2]), 5.0), np.where(np.array([1, 0, 1, 0]) > 0, 5, X)),
    "Lcm": (P.Lcm(), (COUNTS, np.array([2, 3, 6, 5], np.int32)), np.lcm(COUNTS, [2, 3, 6, 5])),
    "LogSigmoid": (ops.auto_generate.LogSigmoid(), (X,), -np.log1p(np.exp(-X))),
    "SearchSorted": (P.SearchSorted(right=True), (RISING, RISING), np.tile(np.arange(1, 7), (3, 1))),
    "MatrixBandPart": (P.MatrixBandPart(), (V, 0, 1), np.triu(V) - np.triu(V, 2)),
    "MatrixPower": (P.MatrixPower(2), (V,), V @ V),
    "Padding": (P.Padding(3), (X[:, :1],), np.pad(X[:, :1], ((0, 0), (0, 2)))),
    "Pdist": (P.Pdist(1.0), (X,), [np.abs(X[i] - X[j]).sum() for i, j in ((0, 1), (0, 2), (1, 2))]),
    "ReduceStd": (P.ReduceStd(1), (X,), (X.std(1, ddof=1), X.mean(1))),
    "Renorm": (P.Renorm(1, 0, 0.1), (X,), X / np.abs(X).sum(1, keepdims=True) / 10),
    "ResizeNearestNeighborV2": (P.ResizeNearestNeighborV2(), (IMAGES, (4, 4)), IMAGES.repeat(2, 2).repeat(2, 3)),
    "Roll": (P.Roll(1, 0), (X,), np.roll(X, 1, 0)),
    "Sinc": (P.Sinc(), (X,), np.sinc(X)),
    "SoftMarginLoss": (P.SoftMarginLoss("sum"), (X, np.sign(Y)), np.log1p(np.exp(-np.sign(Y) * X)).sum()),
    "TensorScatterElements": (P.TensorScatterElements(1), (X, np.array([[1], [0], [3]]), Y[:, :1]),
                              np.where(np.arange(4) == [[1], [0], [3]], Y[:, :1], X)),
    "TensorShape": (P.TensorShape(), (X,), [3, 4]),
    "Trace": (P.Trace(), (V,), np.trace(V)),
    "TrilIndices": (P.TrilIndices(3, 4), (), np.tril_indices(3, 0, 4)),
    "UniqueConsecutive": (P.UniqueConsecutive(), (np.array([1, 1, 2, 1]),), [1, 2, 1]),
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
    P.ScatterNdMax()(held, Tensor([[0], [2]]), Tensor(np.zeros((2, 4), np.float32)))
    wanted = np.stack([np.maximum(X[0], 0), X[1], np.maximum(X[2], 0)])
    np.testing.assert_array_equal(held.asnumpy(), wanted)
    P.IndexAdd(1)(held, Tensor(np.array([3], np.int32)), Tensor(Y[:, :1]))
    np.testing.assert_allclose(held.asnumpy()[:, 3], wanted[:, 3] + Y[:, 0], rtol=1e-6)


PLACES = np.array([[0, 1], [1, 3], [2, 0]], np.int32)
HELD = np.array([0.5, 0.25, -0.75], np.float32)


@pytest.mark.parametrize("name", ["abs", "asin", "atanh", "expm1", "inv", "isnan", "neg", "relu", "sigmoid", "tanh"])
def test_functions_of_sparse_values(name: str) -> None:
    class Net(nn.Cell):
        def construct(self, indices, indptr, values):
            by_place = getattr(ops, f"coo_{name}")(COOTensor(indices, values, (3, 4)))
            by_row = getattr(ops, f"csr_{name}")(CSRTensor(indptr, indices[:, 1], values, (3, 4)))
            return by_place.values, by_row.values, by_row.indptr

    found = Net()(Tensor(PLACES), Tensor(np.arange(4, dtype=np.int32)), Tensor(HELD))
    wanted = getattr(ops, name)(Tensor(HELD)).asnumpy()
    for values in found[:2]:
        np.testing.assert_array_equal(values.asnumpy(), wanted)
    assert found[2].asnumpy().tolist() == [0, 1, 2, 3]


def test_sparse_tensors_of_dense_ones() -> None:
    whole = np.array([[0, 2, 0], [3, 0, 4]], np.float32)
    by_place, by_row = Tensor(whole).to_coo(), ops.dense_to_sparse_csr(Tensor(whole))
    assert by_place.indices.asnumpy().tolist() == [[0, 1], [1, 0], [1, 2]]
    assert by_row.indptr.asnumpy().tolist() == [0, 1, 3]
    for tensor in (by_place, by_row):
        np.testing.assert_array_equal(tensor.to_dense().asnumpy(), whole)
    beside = ops.coo_concat((by_place, by_place), 1)
    assert beside.indices.asnumpy().tolist() == [[0, 1], [0, 4], [1, 0], [1, 2], [1, 3], [1, 5]]
    np.testing.assert_array_equal(beside.to_dense().asnumpy(), np.hstack((whole, whole)))
    shares = ops.csr_softmax(by_row, mspc.float32)
    np.testing.assert_allclose(shares.values.asnumpy(), [1, *np.exp([3, 4]) / np.exp([3, 4]).sum()], rtol=1e-6)


def test_names_of_the_files_of_functions() -> None:
    from mspc.ops.auto_generate import expand_dims
    from mspc.ops.function.array_func import chunk_view, max_ext

    assert float(max_ext(Tensor(X)).asnumpy()) == X.max()
    assert [part.shape for part in chunk_view(Tensor(X), 2, 1)] == [(3, 2), (3, 2)]
    assert expand_dims(Tensor(X), 0).shape == (1, 3, 4)
    with pytest.raises(AttributeError):
        _ = ops.function.array_func.none_ext
    assert not hasattr(ops, "max_ext")


MISTAKES = [
    (lambda: P.Cross(1, 2), "Cross: too many positional arguments"),
    (lambda: P.GLU(dim=1), "GLU: got an unexpected keyword argument 'dim'"),
    (lambda: P.ChannelShuffle(), "ChannelShuffle: missing a required argument: 'group'"),
    (lambda: P.SearchSorted(mspc.float32), "SearchSorted: dtype must be int32 or int64, not DType"),
    (lambda: P.ResizeNearestNeighborV2(half_pixel_centers=True),
     "ResizeNearestNeighborV2: half_pixel_centers=True is not supported"),
    (lambda: ops.eps(Tensor([1])), "eps(): x must be a tensor of floats, not of Int64"),
    (lambda: ops.is_nonzero(Tensor([1, 2])), "is_nonzero(): input must have one element, not 2"),
    (lambda: ops.csr_relu(3), "csr_relu(): x must be a CSRTensor, not 3"),
    (lambda: ops.coo_abs(Tensor(X)), "coo_abs(): x must be a COOTensor, not Tensor"),
    (lambda: ops.dense_to_sparse_csr(Tensor(X[0])),
     "dense_to_sparse_csr(): tensor must be a matrix, not of shape (4,)"),
    (lambda: ops.coo_concat((Tensor(X).to_coo(), Tensor(V).to_coo())),
     "coo_concat(): tensors of shapes [(3, 4), (3, 3)] differ in another dimension than 0"),
]  # fmt: skip


@pytest.mark.parametrize(("wrong", "message"), MISTAKES, ids=range(len(MISTAKES)))
def test_mistakes_are_named(wrong: Callable[[], Any], message: str) -> None:
    with pytest.raises((ApiTypeError, ApiValueError)) as caught:
        wrong()
    assert caught.value.message == message
