"""Judges a program as plain Python: its text runs as it stands, on arrays of NumPy in Float64.

Comparisons of floats note how near they come to a tie, where another rounding would take another way.
"""

from __future__ import annotations

import linecache
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.control.cells import Cell, names
from tests.control.program import ControlProgram

Arrays = dict[str, np.ndarray]


class Margins:
    """How near the comparisons of floats came to a tie, and how many conditions were asked for."""

    def __init__(self) -> None:
        self.least, self.asked = float("inf"), 0

    def note(self, left: np.ndarray, right: np.ndarray) -> None:
        if left.dtype.kind == "f" or right.dtype.kind == "f":
            self.least = min(self.least, float(np.min(np.abs(left - right), initial=np.inf)))


def _arithmetic(apply: Callable[..., Any], turned: bool = False) -> Callable[[Array, Any], Array]:
    def method(self: Array, other: Any) -> Array:
        second = other.value if isinstance(other, Array) else other
        return Array(apply(second, self.value) if turned else apply(self.value, second), self.margins)

    return method


def _comparison(apply: Callable[..., Any]) -> Callable[[Array, Any], Any]:
    def method(self: Array, other: Any) -> Array:
        second = other.value if isinstance(other, Array) else other
        self.margins.note(self.value, np.asarray(second))
        return Array(apply(self.value, second), self.margins)

    return method


class Array:
    """A tensor of a script: what its programs do to tensors, and nothing else."""

    def __init__(self, value: Any, margins: Margins) -> None:
        self.value, self.margins = np.asarray(value), margins

    __add__, __radd__ = _arithmetic(np.add), _arithmetic(np.add, turned=True)
    __sub__, __rsub__ = _arithmetic(np.subtract), _arithmetic(np.subtract, turned=True)
    __mul__, __rmul__ = _arithmetic(np.multiply), _arithmetic(np.multiply, turned=True)
    __mod__ = _arithmetic(np.remainder)
    __lt__, __le__ = _comparison(np.less), _comparison(np.less_equal)
    __gt__, __ge__ = _comparison(np.greater), _comparison(np.greater_equal)
    __eq__, __ne__ = _comparison(np.equal), _comparison(np.not_equal)
    __hash__ = object.__hash__

    def __neg__(self) -> Array:
        return Array(-self.value, self.margins)

    def __bool__(self) -> bool:
        self.margins.asked += 1
        assert self.value.shape == ()
        return bool(self.value)

    def __index__(self) -> int:
        assert self.value.dtype.kind == "i"
        return int(self.value)

    def __getitem__(self, index: Any) -> Array:
        parts = index if isinstance(index, tuple) else (index,)
        return Array(self.value[tuple(int(p) if isinstance(p, Array) else p for p in parts)], self.margins)

    def __int__(self) -> int:
        return int(self.value)

    def sum(self, axis: int | None = None) -> Array:
        return Array(self.value.sum(axis), self.margins)

    def mean(self, axis: int | None = None) -> Array:
        return Array(self.value.mean(axis), self.margins)


class Plain:
    """A program as plain Python runs it. namespace: what its text defines. margins: of its conditions."""

    def __init__(self, program: ControlProgram) -> None:
        self.margins = Margins()
        self.namespace = executed(program.text, program.seed, names(self._tensor, self._ops(), _TYPES))
        self.states = list(program.states)

    def values(self, moved: float = 0.0) -> Arrays:
        """The results, and the states behind them. moved: how far the arguments are moved, relative to themselves."""
        generator = np.random.default_rng(0)
        for argument in self.namespace["arguments"]:
            if argument.value.dtype.kind == "f":
                signs = generator.choice((-1.0, 1.0), argument.value.shape)
                argument.value = np.asarray(argument.value * (1 + signs * moved))
        net = self.namespace["net"]
        found = net(*self.namespace["arguments"])
        found = found if isinstance(found, tuple) else (found,)
        arrays = {f"result {i}": result.value for i, result in enumerate(found)}
        if isinstance(net, Cell):
            arrays |= {f"{name} behind it": net.parameters[name].value.value for name in self.states}
        return arrays

    def _tensor(self, value: Any, kind: str) -> Array:
        return Array(np.asarray(value, kind), self.margins)

    def _ops(self) -> dict[str, Any]:
        def of_one(apply: Callable[..., Any]) -> Callable[..., Array]:
            return lambda x, *rest: Array(apply(x.value, *rest), self.margins)

        def of_two(apply: Callable[..., Any]) -> Callable[..., Array]:
            return lambda x, y: Array(apply(x.value, y.value), self.margins)

        single = ("tanh", "sin", "cos", "exp", "logical_not", "expand_dims")
        found = {name: of_one(getattr(np, name)) for name in single}
        found["stop_gradient"] = of_one(np.copy)
        both = {"add": np.add, "sub": np.subtract, "mul": np.multiply, "matmul": np.matmul,
                "logical_and": np.logical_and, "logical_or": np.logical_or}  # fmt: skip
        return found | {name: of_two(apply) for name, apply in both.items()}


_TYPES = {"float64": "float64", "int32": "int32", "int64": "int64"}


def executed(text: str, seed: int, known: dict[str, Any], code: Any = None) -> dict[str, Any]:
    """The names that a text defines. Messages know its lines. code: of it, where that is not as it stands."""
    name = f"<program {seed}>"
    linecache.cache[name] = (len(text), None, text.splitlines(keepends=True), name)
    space: dict[str, Any] = {"np": np, **known}
    exec(code or compile(text, name, "exec"), space)
    return space
