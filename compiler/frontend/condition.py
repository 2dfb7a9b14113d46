"""Compiles conditions on the contents of a tensor: the graph computes what either branch leads to, and chooses.

`if` runs both branches; what a name then refers to is one operator `Select`, and updates of the branch that is not
taken change nothing. Where one branch returns, what follows belongs to the other, up to the end of the function. A
branch that ends in `raise` is a check of contents, which no compile can make: it is left out, with a warning.
"""

from __future__ import annotations

import ast
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np

from mspc.api.common.parameter import Parameter
from mspc.compiler.frontend.operators import reshape
from mspc.compiler.frontend.state import Tracer, number_dtype
from mspc.compiler.frontend.values import MISSING, POISON, Frame, Returned, Undecided
from mspc.ir.graph import Node, Value
from mspc.ir.types import BOOL, DType, TensorType
from mspc.ops.control.structural import Depend

Block = Callable[[Tracer, Frame, list[ast.stmt]], Any]

_LEAVES_LOOP = "'break' and 'continue' cannot depend on the contents of a tensor"
_RETURNS_IN_LOOP = "'return' inside of a loop or 'with' cannot depend on the contents of a tensor"


def condition_of(tracer: Tracer, value: Any, only_bool: bool = False) -> Value | None:
    """`value` as a Bool of shape () that only the run knows; None where it is no tensor of one element, or, with
    `only_bool`, no Bool."""
    if not isinstance(value, Value | Parameter):
        return None
    tensor = tracer.value(value)
    if not isinstance(tensor.type, TensorType) or tensor.type.size != 1:
        return None
    if tensor.type.dtype != BOOL:
        if only_bool:
            return None
        tensor = tracer.emit(tracer.op("NotEqual"), tensor, 0)
    return reshape(tracer, tensor, ())


def negation(tracer: Tracer, condition: Value) -> Value:
    """`not condition`."""
    return tracer.emit(tracer.op("LogicalNot"), condition)


@contextmanager
def _guarded(tracer: Tracer, condition: Value) -> Iterator[None]:
    """Updates change nothing where `condition` does not hold."""
    outer = tracer.guard
    tracer.guard = condition if outer is None else tracer.emit(tracer.op("LogicalAnd"), outer, condition)
    try:
        yield
    finally:
        tracer.guard = outer


def branch(tracer: Tracer, frame: Frame, node: ast.If, holds: Value, rest: list[ast.stmt], block: Block) -> Any:
    """Run both branches of an `if`; what follows it in its block is `rest`.

    Returns:
        None, or `Returned` where a branch returns; `rest` and what follows behind it have then been run, too.

    Raises:
        MspcError: a branch leaves a loop.
    """
    bodies = (node.body, node.orelse)
    for body, other in (bodies, bodies[::-1]):
        if body and isinstance(body[-1], ast.Raise):
            tracer.at(frame, node.test)
            tracer.warn("this check depends on the contents of a tensor, and is left out")
            with frame.followed_by(rest):
                return block(tracer, frame, other)
    tracer.at(frame, node.test)
    conditions = (holds, negation(tracer, holds))
    paths = _Paths(tracer, frame)
    signals: list[Any] = [None, None]
    for branch in (0, 1):
        with frame.followed_by(rest), paths.along(branch, conditions[branch], node):
            signals[branch] = block(tracer, frame, bodies[branch])
        if signals[branch] is not None and not isinstance(signals[branch], Returned):
            raise frame.error(node, _LEAVES_LOOP)
    returns = [isinstance(signal, Returned) for signal in signals]
    if any(returns):
        if any(following is None for following in frame.following):
            raise frame.error(node, _RETURNS_IN_LOOP)
        for branch in (0, 1):
            if not returns[branch]:
                with paths.along(branch, conditions[branch], node):
                    signals[branch] = _remainder(tracer, frame, rest, block)
    tracer.at(frame, node)
    paths.join(holds)
    if not any(returns):
        return None
    return Returned(merged(tracer, holds, signals[0].value, signals[1].value))


def _remainder(tracer: Tracer, frame: Frame, rest: list[ast.stmt], block: Block) -> Returned:
    """What follows in this block, and then in those around it."""
    outer = frame.following
    signal = block(tracer, frame, rest)
    try:
        for depth in range(len(outer) - 1, -1, -1):
            if signal is not None:
                break
            frame.following = outer[:depth]
            signal = block(tracer, frame, outer[depth] or [])
    finally:
        frame.following = outer
    return Returned(None) if signal is None else signal


class _Paths:
    """The two branches: each begins with the names, lists and dicts that there were before them."""

    def __init__(self, tracer: Tracer, frame: Frame) -> None:
        self.tracer, self.frame = tracer, frame
        self.runs = dict(tracer.runs)
        names, contents = dict(frame.locals), self._contents()
        self.ends = [(names, contents), (names, contents)]

    def _contents(self) -> dict[int, Any]:
        return {key: held.copy() for key, held in self.tracer.owned.items() if isinstance(held, list | dict | set)}

    def _restore(self, names: dict[str, Any], contents: dict[int, Any]) -> None:
        self.frame.locals.clear()
        self.frame.locals.update(names)
        for key, held in contents.items():
            _fill(self.tracer.owned[key], held)

    @contextmanager
    def along(self, branch: int, condition: Value, node: ast.If) -> Iterator[None]:
        self._restore(*self.ends[branch])
        self.tracer.at(self.frame, node.test)
        with _guarded(self.tracer, condition):
            yield
        self.ends[branch] = dict(self.frame.locals), self._contents()
        self.tracer.runs = dict(self.runs)

    def join(self, holds: Value) -> None:
        """Every name, and every element of a list or dict, refers to what either branch left there."""
        (left, one), (right, other) = self.ends
        self.frame.locals.clear()
        for name in {**left, **right}:
            value = merged(self.tracer, holds, left.get(name, MISSING), right.get(name, MISSING))
            if value is not MISSING:
                self.frame.locals[name] = value
        for key in one.keys() & other.keys():
            _fill(self.tracer.owned[key], self._joined(holds, one[key], other[key]))

    def _joined(self, holds: Value, left: Any, right: Any) -> Any:
        if isinstance(left, list) and len(left) == len(right):
            return [merged(self.tracer, holds, a, b) for a, b in zip(left, right, strict=True)]
        if isinstance(left, dict) and left.keys() == right.keys():
            return {key: merged(self.tracer, holds, left[key], right[key]) for key in left}
        if isinstance(left, set) and left == right:
            return left
        raise self.tracer.error(f"a {type(left).__name__} has other elements, depending on the contents of a tensor")


def _fill(held: Any, contents: Any) -> None:
    if isinstance(held, list):
        held[:] = contents
        return
    held.clear()
    held.update(contents)


def merged(tracer: Tracer, holds: Value, left: Any, right: Any) -> Any:
    """What is `left` where the condition holds and `right` elsewhere; `Undecided` where no tensor can be both."""
    if left is MISSING or right is MISSING:
        return MISSING
    if left is POISON or right is POISON:
        return POISON
    if left is right or _ordered(left) is _ordered(right):
        return left
    if isinstance(left, Undecided) or isinstance(right, Undecided):
        return Undecided(left, right)
    if isinstance(left, tuple | list) and isinstance(right, tuple | list) and len(left) == len(right):
        items = [merged(tracer, holds, a, b) for a, b in zip(left, right, strict=True)]
        return tracer.own(items) if isinstance(left, list) else tuple(items)
    if isinstance(left, dict) and isinstance(right, dict) and left.keys() == right.keys():
        return tracer.own({key: merged(tracer, holds, left[key], right[key]) for key in left})
    return _selected(tracer, holds, left, right)


def _selected(tracer: Tracer, holds: Value, left: Any, right: Any) -> Any:
    tensors = [tracer.is_tensor(value) for value in (left, right)]
    numbers = [isinstance(value, bool | int | float | np.generic) for value in (left, right)]
    if all(numbers) and type(left) is type(right):
        if left == right:
            return left
    elif not all(tensors) and not (any(tensors) and any(numbers)):
        same = not any(tensors) and type(left) is type(right) and left == right
        return left if same else Undecided(left, right)
    like = next((tracer.value(v).tensor_type.dtype for v, t in zip((left, right), tensors, strict=True) if t), None)
    one, other = (v if isinstance(v, Value) else tracer.value(v, like) for v in (left, right))
    if one.type != other.type or (any(tensors) and any(numbers) and not _fits(left if numbers[0] else right, like)):
        return Undecided(left, right)
    return tracer.emit(tracer.op("Select"), holds, one, other)


def _fits(number: Any, like: DType | None) -> bool:
    return isinstance(number, bool | np.bool_) == (like == BOOL) and number_dtype(number, like) == like


def _ordered(value: Any) -> Any:
    """A value behind orderings: an update of one branch does not make it another."""
    while isinstance(value, Node) and isinstance(value.op, Depend):
        value = value.inputs[0]
    return value
