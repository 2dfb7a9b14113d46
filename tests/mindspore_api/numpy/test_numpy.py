"""`mindspore.numpy` against NumPy, outside of a network and compiled, and its element types against MindSpore 2.10."""

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from interpret import run_global

import mspc as ms
import mspc.numpy as mnp
from mspc.compiler.frontend.trace import trace
from mspc.mindspore_api.common.tensor import Tensor

DRAWN = np.random.default_rng(4)
A = DRAWN.uniform(0.1, 0.9, (3, 4)).astype(np.float32)
B = DRAWN.uniform(1.1, 2.9, (3, 4)).astype(np.float32)
S = DRAWN.standard_normal((4, 4)).astype(np.float32)
V = np.array([1.0, 2.5, 3.0, 7.0], np.float32)
W = np.array([2.0, -1.0, 0.5, 3.0], np.float32)
I = np.array([[5, -3, 0, 2], [7, 1, -8, 4]], np.int32)  # noqa: E741
M = A > 0.5
INF = np.array([1.0, np.inf, -np.inf, np.nan], np.float32)
THREE = DRAWN.standard_normal((2, 3, 3)).astype(np.float32)

ONE = """absolute abs fabs sin cos tan arcsin arccos arctan sinh cosh tanh arcsinh arctanh exp expm1 exp2 log log1p log2
log10 sqrt square deg2rad rad2deg radians ceil floor trunc fix rint sign negative positive""".split()
TWO = """add subtract multiply divide true_divide floor_divide remainder mod power maximum minimum arctan2 equal
not_equal less less_equal greater greater_equal logical_and logical_or logical_xor isclose outer""".split()
CASES: dict[str, list[tuple[Any, ...]]] = {
    **{name: [(A,)] for name in ONE},
    "arccosh": [(B,)], "invert": [(I,)], "bitwise_not": [(I,)],
    **{name: [(A, B), (B, A[0])] for name in TWO},
    **{key: [(I, I + 1)] for key in "bitwise_and bitwise_or bitwise_xor".split()},
    **{key: [(INF,)] for key in "isfinite isinf isnan".split()},
    "logical_not": [(I,)], "clip": [(A, 0.3, 0.6), (A, None, 0.6)],
    "matmul": [(A, B.T), (THREE, THREE), (A, V)], "dot": [(A, V), (A, B.T), (V, W), (THREE, S[:3, :2])],
    "inner": [(A, B), (V, W), (A, V)],
    "tensordot": [(THREE, THREE, 0), (THREE, S[:3, :3], 1), (A, B)],
    "array": [([1.0, 2.0],), (3.5,), (A, None, True)], "asarray": [([True, False],)],
    "copy": [(A,)], "zeros": [((2, 3),), (4,)], "ones": [((2, 3),)], "full": [((2, 3), 2.5)],
    "zeros_like": [(A,)], "ones_like": [(I,)], "full_like": [(A, 3.0)], "empty_like": [], "empty": [],
    "arange": [(5,), (1, 9, 3), (0.5, 3.0, 0.5)], "linspace": [(0, 1, 5), (0.0, 1.0, 4, False), (0, 4, 5, True, True)],
    "logspace": [(0, 2, 5)], "eye": [(3,), (2, 4, 1)], "identity": [(3,)],
    "tril": [(S,), (S, 1)], "triu": [(S,), (S, -1)],
    "meshgrid": [(V, W[:2])],
    "rand": [], "randn": [],
    "reshape": [(A, (4, 3)), (A, -1)], "ravel": [(A,)], "transpose": [(A,), (THREE, (2, 0, 1))],
    "moveaxis": [(THREE, 0, -1), (THREE, [0, 1], [2, 0])],
    "swapaxes": [(THREE, 0, 2)], "expand_dims": [(A, 1), (A, (0, 3))], "squeeze": [(A[None],), (A[:, None], 1)],
    "concatenate": [((A, B),), ((A, B), 1), ((A, V), None)], "append": [(A, B, 0), (A, V)], "stack": [((A, B), 1)],
    "vstack": [((V, W),)], "dstack": [((A, B),)], "column_stack": [((V, W),)],
    "split": [(V, 2), (A, [1, 3], 1)], "hsplit": [(A, 2)], "vsplit": [(A, 3)],
    "broadcast_to": [(V, (3, 4))],
    "tile": [(V, 2), (V, (2, 1)), (A, 2)], "repeat": [(A, 2), (A, 2, 0)], "roll": [(A, 2), (A, 1, 1)],
    "flip": [(A,), (A, 1)], "fliplr": [(A,)], "flipud": [(A,)], "rot90": [(A,), (A, 2)],
    "diag": [(V,), (V, -1), (A, 1)], "diagonal": [(A,), (THREE, 1, 1, 2)],
    "take_along_axis": [(A, np.array([[0], [1], [3]]), 1)], "where": [(M, A, B), (M, A, 1.5)],
    "size": [(A,), (A, 1)], "shape": [(A,)], "ndim": [(A,)], "argsort": [(A,), (A, 0), (A, None)],
    "sort": [(A,), (A, None)], "isin": [(I, [1, 7])],
    "any": [(M,), (M, 1)], "all": [(M,), (M, 0)],
    **{key: [(A,), (A, 1), (THREE, (0, 2))] for key in "sum prod mean var std max min amax amin".split()},
    **{key: [(A,), (A, 1)] for key in "argmax argmin".split()},
    **{key: [(A, 1), (A,)] for key in "cumsum cumprod".split()},
    "trace": [(A,), (THREE, 1, 1, 2)],
    "norm": [(A,), (A, 3, 1), (A, np.inf, 0), (A, 1, 0)],
}  # fmt: skip
"""Arguments of every function, which are tensors where they are arrays."""
OTHERS: dict[str, Callable[..., Any]] = {
    "norm": lambda x, o=None, axis=None: _norm(x, o, axis),
    "array": lambda obj, *_: np.array(obj),
    "fix": np.trunc,
}  # fmt: skip
"""Functions that NumPy has under another name, or with other arguments."""
TYPES = """bool_ int8 int16 int32 int64 uint8 uint16 uint32 uint64 float16 float32 float64 int_ float_ uint pi e inf nan
newaxis""".split()


def _norm(x: np.ndarray, order: Any, axis: Any) -> Any:
    return np.linalg.norm(x if axis is not None else x.ravel(), order, axis)


def as_tensors(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return type(value)(map(as_tensors, value))
    return Tensor(value) if isinstance(value, np.ndarray) else value


def plain(value: Any) -> Any:
    if isinstance(value, (tuple, list)):
        return [plain(item) for item in value]
    return value.asnumpy() if isinstance(value, Tensor) else np.asarray(value)


def near(found: Any, expected: Any) -> None:
    if isinstance(expected, (tuple, list)) and not isinstance(found, np.ndarray):
        assert len(found) == len(expected)
        for mine, theirs in zip(found, expected, strict=True):
            near(mine, theirs)
        return
    expected = np.asarray(expected)
    assert np.shape(found) == expected.shape
    np.testing.assert_allclose(found, expected, rtol=2e-5, atol=2e-6)


def test_every_name_has_a_case() -> None:
    assert sorted({*dir(mnp)} - {*CASES, *TYPES}) == []
    assert sorted({*CASES, *TYPES} - {*dir(mnp)}) == []
    assert mnp.int_ == ms.int32
    assert (mnp.pi, mnp.newaxis) == (math.pi, None)


@pytest.mark.filterwarnings("ignore:Arrays of 2-dimensional vectors")
@pytest.mark.parametrize("name", [name for name, cases in CASES.items() if cases])
def test_a_function_is_that_of_numpy(name: str) -> None:
    """Also in a network, where a tensor is its input and the other arguments are known."""
    function, judge = getattr(mnp, name), OTHERS.get(name) or getattr(np, name)
    for given in CASES[name]:
        with np.errstate(all="ignore"):
            expected = judge(*given)
            tensors = as_tensors(given)
            found = function(*tensors)
            near(plain(found), expected)
            places = [i for i, value in enumerate(given) if isinstance(value, np.ndarray)]
            if not places or name in ("size", "ndim", "shape"):
                continue

            def call(x: Any, given: Any = tensors, place: int = places[0]) -> Any:
                return function(*given[:place], x, *given[place + 1 :])  # called at once

            near(compiled(call, tensors[places[0]]), plain(found))


def compiled(function: Callable[..., Any], x: Tensor) -> Any:
    traced = trace(function, [x])
    feeds = {p.name: x.asnumpy() for p in traced.graph.parameters if p.kind == "input"} | traced.constants
    return plain(traced.rebuild(run_global(traced.graph, feeds)))


MINDSPORE = {
    "sum": "int64 int64 float16 float32", "mean": "int32 uint8 float16 float32",
    "var": "float32 float32 float16 float32",
    "sqrt": "float32 float32 float16 float32", "square": "int32 uint8 float16 float32",
    "sign": "float32 float32 float16 float32", "deg2rad": "float32 float32 float16 float32",
    "cumsum": "int32 int32 float16 float32", "cumprod": "int32 uint32 float16 float32",
    "argmax": "int64 int64 int64 int64", "argmin": "int32 int32 int32 int32", "trace": "int64 int64 float16 float32",
    "absolute": "int32 uint8 float16 float32", "trunc": "float32 float32 float16 float32",
}  # fmt: skip
"""Element types of results for Int32, UInt8, Float16 and Float32, as MindSpore 2.10 gives them on a CPU."""
PAIRS = {
    ("int32", "uint8"): "int32", ("uint8", "float16"): "float16", ("int64", "float32"): "float32",
    ("float16", "float32"): "float32", ("int32", 2): "int32", ("int32", 2.5): "float32", ("uint8", 2): "int32",
    ("float16", 2): "float16", ("float16", 2.5): "float32", ("int64", 2): "int64",
}  # fmt: skip
"""Functions of two operands."""


@pytest.mark.parametrize("name", MINDSPORE)
def test_element_types_are_those_of_mindspore(name: str) -> None:
    for dtype, expected in zip("int32 uint8 float16 float32".split(), MINDSPORE[name].split(), strict=True):
        found = getattr(mnp, name)(Tensor(np.array([[1, 2], [3, 4]], dtype)))
        assert found.dtype == getattr(ms, expected), (name, dtype)


@pytest.mark.parametrize("operands", PAIRS)
def test_element_types_of_two_are_those_of_mindspore(operands: Any) -> None:
    given = [Tensor(np.ones(2, x)) if isinstance(x, str) else x for x in operands]
    expected = getattr(ms, PAIRS[operands])
    for function in (mnp.add, mnp.subtract, mnp.power, mnp.floor_divide):
        assert function(*given).dtype == expected
    assert mnp.where(Tensor([True, False]), *given).dtype == expected
    assert mnp.divide(*given).dtype == (expected if expected.is_float else ms.float32)
    assert mnp.equal(*given).dtype == ms.bool_
    if not isinstance(operands[1], str):
        assert mnp.maximum(*given).dtype == given[0].dtype


def test_numbers_become_tensors_of_32_bits() -> None:
    assert [mnp.array(value).dtype for value in (3, 3.0, True, [1, 2], [1.0])] == [
        ms.int32, ms.float32, ms.bool_, ms.int32, ms.float32,
    ]  # fmt: skip
    assert mnp.arange(3).dtype == mnp.full((2,), 3).dtype == ms.int32
    assert mnp.linspace(0, 1, 3).dtype == mnp.eye(2).dtype == mnp.rand(2).dtype == mnp.randn(2, 3).dtype == ms.float32
    assert mnp.empty((2, 3)).shape == mnp.empty_like(Tensor(A[:2, :3])).shape
    assert mnp.add(Tensor(I), 2, dtype=mnp.float16).dtype == ms.float16


class Scaled(ms.nn.Cell):
    """A network of these functions."""

    def construct(self, x: Any) -> Any:
        x = mnp.where(x > 0, x, mnp.zeros_like(x)) + mnp.ones((4,), mnp.float32)
        return mnp.sum(mnp.sqrt(x) * mnp.arange(4)) / mnp.pi


def test_gradients_flow_through_them() -> None:
    found = ms.grad(Scaled())(Tensor(V)).asnumpy()
    np.testing.assert_allclose(found, np.arange(4) * 0.5 / np.sqrt(V + 1) / math.pi, rtol=1e-5)
