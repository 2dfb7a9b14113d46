"""Every function here is read by the front end and run as a graph, and called by Python on eager
tensors: both must agree."""

import functools
import math
from collections import namedtuple
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from interpret import run_global

from mspc import ops
from mspc.compiler.frontend.trace import trace
from mspc.ir.types import FLOAT32, INT32
from mspc.mindspore_api.common.tensor import Tensor

SCALE = 3
TABLE = {"a": 2.0, "b": 0.5}
Pair = namedtuple("Pair", ["first", "second"])


@dataclass(frozen=True)
class Settings:
    rate: float = 0.5
    steps: int = 2


SETTINGS = Settings()
CASES: dict[str, Callable[..., Any]] = {}


def case(function: Callable[..., Any]) -> Callable[..., Any]:
    CASES[function.__name__] = function
    return function


def double(x, factor=2.0, *, shift=0.0):
    """A helper that the cases call."""
    return x * factor + shift


def sum_all(*tensors, **named):
    total = named.get("start", 0.0)
    for tensor in tensors:
        total = total + tensor
    return total


class Scaler:
    """A helper object, not a cell."""

    def __init__(self, factor):
        self.factor = factor

    def apply(self, x):
        return x * self.factor

    def __call__(self, x):
        return self.apply(x) + 1.0


SCALER = Scaler(4.0)
CASES |= {
    "arithmetic": lambda x, y: x + y - x * y / (y + 3.0) + x // 2 - x % 3 + x**2 + -x + +y,
    "python_numbers": lambda x, y: (2 * x + 1, 0.5 - x, 3 / (y + 4), 2**x, True * x),
    "comparisons": lambda x, y: (x < y, x <= y, x > 0, x >= 0.5, x == y, x != y, 1 < x),
    "logic_on_tensors": lambda x, y: ((x > 0) & (y > 0), (x > 0) | (y > 0), ~(x > 0), (x > 0) ^ (y > 0)),
    "matrix_products": lambda x, y: (x @ y.T, x[0] @ y[1], x @ y[0], x[0] @ y.T, (x.reshape(1, 2, 4) @ y.T.reshape(1,
        4, 2))),
    "builtins_on_tensors": lambda x, y: (max(x.sum(), y.sum()), min(x[0, 0], 0.5), abs(x), sum([x, y, x]), pow(x, 2),
        len(x) * x),
    "chained": lambda x, y: x if 0 < x.ndim <= 2 < 3 else y,
    "logic_on_constants": lambda x, y: ((None or x), (SCALE and y), (x if not () else y)),
    "walrus": lambda x, y: (z := x + y) * 2 + z,
    "strided_slices": lambda x, y: (x[:, 0:4:3], x[:, 1::2], x[:, :100], x[:, -100:2]),
    "rows_by_index": lambda x, y: (x[[1, 0, 1]], x[Tensor(np.array([1, 1]), INT32)]),
    "attributes": lambda x, y: (x * x.ndim, x * x.size, x.T, x * x.shape[1], x * x.itemsize,
        x if x.dtype == FLOAT32 else y),
    "primitives_made_inside": lambda x, y: (ops.MatMul(transpose_b=True)(x, y), ops.ReduceSum(keep_dims=True)(x, 1),
        ops.Transpose()(x, (1, 0))),
    "constant_results": lambda x, y: (x, 3, None, "text", (1.5, True)),
}  # fmt: skip


@case
def integers_become_floats(x, y):
    index = ops.cast(x, INT32)
    return index + 1.5, index / 2, index * 2, index // 2, index + x


@case
def assignments(x, y):
    a = b = x + 1
    (c, d), e = (a, b), y
    first, *middle, last = [a, c, d, e]
    a += y
    e: Any = e * 2
    total = middle[0] + middle[1]
    return a, b, first, last, total, e


@case
def augmented_element(x, y):
    parts = [x, y]
    parts[0] += 1
    parts += [x]
    parts.append(y)
    names = {}
    names["k"] = x
    names.update(m=y)
    return parts[0], len(parts) * x, names["k"] + names["m"]


@case
def branches(x, y):
    if x.shape[0] > 1 and not y.shape[1] == 3:
        out = x
    elif SCALE:
        out = y
    else:
        out = undefined_name  # noqa: F821 - never reached
    return out if x.ndim == 2 else y


@case
def early_return(x, y):
    if SCALE == 3:
        return x + 1
    return y + undefined_name  # noqa: F821 - never reached


@case
def loops(x, y):
    total = x
    for i in range(1, 4):
        if i == 2:
            continue
        total = total + i * y
    else:
        total = total * 2
    for i, (name, value) in enumerate(TABLE.items()):
        total = total * value + i + len(name)
    n = 3
    while n > 0:
        n -= 1
        if n == 1:
            break
        total = total + n
    return total


@case
def rows_of_a_tensor(x, y):
    total = 0.0
    for i, (row, other) in enumerate(zip(x, y, strict=True)):
        total = total + row * other * i
    first, second = x
    return total, [row.sum() for row in y], ops.ReduceSum(True)(x, axis=-1) + first[0] * second[1]


@case
def nested_return_from_loop(x, y):
    for i in range(5):
        if i == 2:
            return x * i
    return y


@case
def comprehensions(x, y):
    parts = [x * i for i in range(4) if i % 2]
    pairs = {name: value * x for name, value in TABLE.items()}
    grid = [a * b for a in (1, 2) for b in (3, 4)]
    lazy = sum(i for i in range(3))
    return parts[0] + parts[1], pairs["a"] - pairs["b"], x * grid[3] + lazy


@case
def calls(x, y):
    values = (x, y)
    named = {"shift": 2.0}
    return (
        double(x),
        double(x, 3.0),
        double(y, shift=1.0),
        double(*values[:1], **named),
        sum_all(x, y, start=1.0),
    )


@case
def closures(x, y):
    scale = 2.0

    def inner(a, b=scale):
        def innermost(c):
            return c * scale + b

        return innermost(a) + x

    scale = 3.0
    adder = lambda a, n=1: a + n  # noqa: E731 - the syntax is the subject
    return inner(y), adder(x), adder(x, n=2), (lambda a: a - scale)(y)


@case
def partial_and_map(x, y):
    triple = functools.partial(double, factor=3.0)
    return triple(x), list(map(double, [x, y]))[1], sum(map(lambda a: a * 2, (x, y)))


@case
def recursion(x, y):
    def power(a, n):
        return a if n == 1 else a * power(a, n - 1)

    return power(x, 3)


@case
def objects(x, y):
    pair = Pair(x, y)
    return SCALER(x), SCALER.apply(y), pair.first + pair.second, x * SETTINGS.rate + SETTINGS.steps


@case
def constants(x, y):
    return x * math.sqrt(16) + np.prod((2, 3)) - math.pi + float("1.5") + int(2.7) + len(x.shape) + SCALE // 2


@case
def builtins_on_constants(x, y):
    ranked = sorted((3, 1, 2), key=lambda n: -n)
    zipped = [a * b for a, b in zip((1, 2), (3, 4), strict=True)]
    kinds = (
        isinstance(x, Tensor),
        isinstance(SCALE, int),
        callable(double),
        hasattr(x, "shape"),
        hasattr(SCALER, "no"),
    )
    number = max(1, 5, 3) + min([4, 2]) + abs(-3) + round(2.6) + sum(zipped) + ranked[0] + kinds.count(True)
    return x * number + any([0, 1]) + all((1, 0)) + bool(2) + getattr(SCALER, "missing", 7) + pow(2, 3)


@case
def identity_and_membership(x, y):
    out = x
    if y is not None and None is None and 2 in (1, 2) and "a" in TABLE and x is out and 5 not in [1]:
        out = out + 1
    return out


@case
def strings(x, y):
    name = f"{SCALE:>3}-{'b'!r}-{x.shape}"
    return x * len(name) if name.startswith("  3") and name.endswith(str((2, 4))) else y


@case
def docstring_pass_and_assert(x, y):
    """Ignored."""
    pass
    assert x.shape == y.shape, f"shapes {x.shape} and {y.shape} differ"
    ...
    return x


@case
def slices(x, y):
    return (
        x[0],
        x[-1],
        x[:, 1],
        x[0:1],
        x[:, ::2],
        x[..., 1:3],
        x[:, -2:],
        x[None],
        x[:, None, 1],
        x[0, 1],
        x[:],
        x[1, ...],
    )


@case
def tuples_and_strings_by_index(x, y):
    values = (x, y, 3)
    return values[0] + values[-1], values[1:][0], TABLE["a"] * x, x * int("42"[0])


@case
def several_results(x, y):
    a, b = ops.Split(1, 2)(x)
    return {"sum": a + b, "parts": (a, [b, 3])}


@case
def several_lines(x, y):
    return (
        x
        + y
        * 2.0
    )  # fmt: skip


def plain(value: Any) -> Any:
    """Tensors and arrays as arrays, sequences as tuples."""
    if isinstance(value, Tensor):
        return value.asnumpy()
    if isinstance(value, tuple | list):
        return tuple(map(plain, value))
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return value


def same(left: Any, right: Any, path: str = "result") -> None:
    if isinstance(left, tuple):
        assert isinstance(right, tuple), path
        assert len(left) == len(right), path
        for i, (a, b) in enumerate(zip(left, right, strict=True)):
            same(a, b, f"{path}[{i}]")
    elif isinstance(left, dict):
        assert list(left) == list(right), path
        for key in left:
            same(left[key], right[key], f"{path}[{key!r}]")
    elif isinstance(left, np.ndarray):
        assert isinstance(right, np.ndarray | np.generic), path
        assert left.dtype == right.dtype, f"{path}: {left.dtype} and {right.dtype}"
        assert left.shape == right.shape, path
        np.testing.assert_allclose(left, right, rtol=1e-5, atol=1e-6, err_msg=path)
    else:
        assert left == right, path


@pytest.mark.parametrize("function", CASES.values(), ids=CASES)
def test_function_computes_what_python_does(function: Callable[..., Any]) -> None:
    generator = np.random.default_rng(1)
    x, y = (generator.random((2, 4), np.float32) - 0.3 for _ in range(2))
    traced = trace(function, [Tensor(x), Tensor(y)])
    traced.graph.verify()
    feeds = {"x": x, "y": y} | traced.constants
    found = run_global(traced.graph, feeds)
    same(plain(function(Tensor(x), Tensor(y))), plain(traced.rebuild(found)))
