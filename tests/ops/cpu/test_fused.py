"""Kernels that work block by block: equal to the plain formula for every size, place of the result and thread count."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pytest

from mspc.ops.collective.one_rank import OneRank
from mspc.ops.cpu import blocks as fused
from mspc.ops.math.arithmetic import Add, AddN
from mspc.ops.math.elementwise import Exp
from mspc.ops.nn.activation import GeLU, GeLUGrad
from mspc.ops.nn.norm import LayerNorm, LayerNormGrad
from mspc.ops.nn.softmax import Softmax, SoftmaxBackward
from mspc.ops.op import Op
from mspc.runtime.backend import NumPyBackend

BACKEND = NumPyBackend(OneRank())
C, CUBE = np.sqrt(2 / np.pi), 0.044715


def gelu(x: Any) -> Any:
    return 0.5 * x * (1 + np.tanh(C * (x + CUBE * x**3)))


def gelu_grad(dy: Any, x: Any, _: Any) -> Any:
    t = np.tanh(C * (x + CUBE * x**3))
    return dy * (0.5 * (1 + t) + 0.5 * x * (1 - t * t) * C * (1 + 3 * CUBE * x**2))


def softmax(x: Any) -> Any:
    power = np.exp(x - x.max(-1, keepdims=True))
    return power / power.sum(-1, keepdims=True)


def softmax_backward(dout: Any, out: Any) -> Any:
    return (dout - (dout * out).sum(-1, keepdims=True)) * out


def layer_norm_grad(dout: Any, x: Any, mean: Any, variance: Any, gamma: Any) -> Any:
    inverse = 1 / np.sqrt(variance + 1e-7)
    g, y = dout * gamma, (x - mean) * inverse
    return (g - g.mean(-1, keepdims=True) - y * (g * y).mean(-1, keepdims=True)) * inverse


def layer_norm(x: Any, gamma: Any, beta: Any) -> Any:
    mean, variance = x.mean(-1, keepdims=True), x.var(-1, keepdims=True)
    return (x - mean) / np.sqrt(variance + 1e-7) * gamma + beta, mean, variance


FORMULAS: list[tuple[Op, Any, str]] = [
    (GeLU(), gelu, "x"),
    (GeLUGrad(), gelu_grad, "xxx"),
    (Softmax(), softmax, "x"),
    (SoftmaxBackward(), softmax_backward, "xx"),
    (LayerNorm(begin_norm_axis=-1, begin_params_axis=-1), layer_norm, "xcc"),
    (LayerNormGrad(begin_norm_axis=-1), layer_norm_grad, "xxrrc"),
    (AddN(), lambda *inputs: sum(inputs), "xxx"),
    (AddN(), lambda x: x, "x"),
    (Add(), np.add, "xx"),
    (Exp(), np.exp, "x"),
]
CASES = pytest.mark.parametrize(("op", "formula", "roles"), FORMULAS, ids=lambda value: getattr(value, "name", ""))


@pytest.fixture(params=[1, 3])
def threads(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    """Small blocks, so that small arrays have many of them; the last one is not full."""
    monkeypatch.setattr(fused, "BLOCK", 64)
    monkeypatch.setattr(fused, "SHARED", 256)
    monkeypatch.setattr(fused, "thread_count", lambda: request.param)
    return request.param


def operands(roles: str, rows: int, columns: int) -> list[Any]:
    """x: a matrix; c: one number per column; r: one positive number per row."""
    rng = np.random.default_rng(0)
    shapes = {"x": (rows, columns), "c": (columns,), "r": (rows, 1)}
    arrays = [rng.uniform(0.1, 2, shapes[role]) for role in roles]
    return [array - 1 if role == "x" else array for array, role in zip(arrays, roles, strict=True)]


def results(value: Any) -> list[Any]:
    return list(value) if isinstance(value, tuple) else [value]


@CASES
@pytest.mark.parametrize("shape", [(1, 5), (37, 10), (3, 300)])
def test_blocks_equal_the_formula(op: Op, formula: Any, roles: str, shape: tuple[int, int], threads: int) -> None:
    inputs = operands(roles, *shape)
    kept = [array.copy() for array in inputs]
    expected = results(formula(*inputs))
    function = op.kernel_into(BACKEND)
    assert function is not None
    out = [np.full(array.shape, np.nan) for array in expected]
    returned = results(function(*inputs, out=tuple(out) if len(out) > 1 else out[0]))
    assert all(a is b for a, b in zip(returned, out, strict=True))
    for found in (out, results(op.kernel(BACKEND)(*inputs))):
        for array, wanted in zip(found, expected, strict=True):
            np.testing.assert_allclose(array, wanted, rtol=1e-12, atol=1e-14)
    assert all(np.array_equal(a, b) for a, b in zip(inputs, kept, strict=True))


@CASES
def test_every_operand_may_hold_the_result(op: Op, formula: Any, roles: str, threads: int) -> None:
    if not op.in_place:
        return
    for index in [i for i, role in enumerate(roles) if role == "x"]:
        inputs = operands(roles, 37, 10)
        expected = formula(*[array.copy() for array in inputs])
        function = op.kernel_into(BACKEND)
        assert function is not None
        function(*inputs, out=inputs[index])
        np.testing.assert_allclose(inputs[index], expected, rtol=1e-12, atol=1e-14)


@CASES
def test_operands_may_be_views_in_another_order(op: Op, formula: Any, roles: str, threads: int) -> None:
    inputs = operands(roles, 37, 10)
    turned = [np.asfortranarray(array) for array in inputs]
    for found, wanted in zip(results(op.kernel(BACKEND)(*turned)), results(formula(*inputs)), strict=True):
        np.testing.assert_allclose(found, wanted, rtol=1e-12, atol=1e-14)


@CASES
def test_threads_change_no_bit(op: Op, formula: Any, roles: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fused, "SHARED", 256)
    inputs = [array.astype(np.float32) for array in operands(roles, 300, 500)]
    found: list[list[bytes]] = []
    for count in (1, 2, 5):
        monkeypatch.setattr(fused, "thread_count", lambda count=count: count)
        found.append([array.tobytes() for array in results(op.kernel(BACKEND)(*inputs))])
    assert found[0] == found[1] == found[2]
    assert all(array.dtype == np.float32 for array in results(op.kernel(BACKEND)(*inputs)))


def test_softmax_along_other_axes() -> None:
    x = np.random.default_rng(0).standard_normal((3, 4, 5))
    for axis in (0, 1, -1, (0, 2), (1, 2)):
        power = np.exp(x - x.max(axis, keepdims=True))
        expected = power / power.sum(axis, keepdims=True)
        found = Softmax(axis).kernel(BACKEND)(x)
        np.testing.assert_allclose(found, expected, rtol=1e-12)
        out = np.empty_like(x)
        function = Softmax(axis).kernel_into(BACKEND)
        assert function is not None
        assert function(x, out=out) is out
        assert np.array_equal(out, found)


def test_empty_tensors() -> None:
    for shape in ((0, 4), (4, 0)):
        assert Softmax().kernel(BACKEND)(np.zeros((4, 0))).shape == (4, 0)
        assert GeLU().kernel(BACKEND)(np.zeros(shape)).shape == shape


def test_threads_obey_the_callers_errstate(threads: int) -> None:
    x = np.full((64, 64), 1e5)
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("error")
        function = Exp().kernel_into(BACKEND)
        assert function is not None
        assert np.isinf(function(x, out=np.empty_like(x))).all()


def test_errors_of_a_thread_reach_the_caller(threads: int) -> None:
    def work(out: Any, _: Any) -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        fused.in_rows(np, work, (np.zeros((64, 64)),), ())


@pytest.mark.parametrize(("variable", "count"), [("OPENBLAS_NUM_THREADS", 3), ("OMP_NUM_THREADS", 1)])
def test_threads_are_those_of_blas(variable: str, count: int, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv(variable, str(count))
    assert fused.thread_count.__wrapped__() == count
