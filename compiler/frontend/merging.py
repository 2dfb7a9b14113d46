"""Makes one value of the two that branches leave: operators `Select`, or results of an `If`.

Tuples, lists and dicts of one structure are merged entry by entry. What no tensor can be stays `Undecided`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mspc.compiler.frontend.condition import negation
from mspc.compiler.frontend.number_types import number_dtype
from mspc.compiler.frontend.operators import is_number
from mspc.compiler.frontend.program_state import emitting_to
from mspc.compiler.frontend.state import INLINE_LIMIT, Tracer
from mspc.compiler.frontend.values import MISSING, POISON, OnlyInLoop, Undecided
from mspc.ir.graph import Constant, Node, Value
from mspc.ir.types import BOOL, DType, TensorType
from mspc.ops.control.regions import If, captured_values, emit_regions, outlined
from mspc.ops.control.structural import Depend, TupleGetItem

Contents = Sequence[Mapping[int, Any]]
"""What lists and dicts of the program, by their identity, hold behind either branch."""


class Selecting:
    """Both branches were computed: every value is chosen by an operator `Select`."""

    within = False
    """Whether what is computed in a branch can be read there alone."""

    def __init__(self, tracer: Tracer, holds: Value, contents: Contents) -> None:
        self.tracer, self.holds, self.contents = tracer, holds, contents

    def operand(self, branch: int, value: Any, like: DType | None) -> Value:
        return value if isinstance(value, Value) else self.tracer.value(value, like)

    def apart(self, left: Any, right: Any) -> Undecided:
        return Undecided(left, right, False, self.holds)

    def pick(self, left: Value, right: Value) -> Value:
        return self.tracer.emit(self.tracer.op("Select"), self.holds, left, right)


class Choosing:
    """One branch alone will run: every value is a result of an `If`, which `emit` appends when all are known.

    nodes: of the branch for a condition that holds, and of the other.
    """

    within = True

    def __init__(
        self, tracer: Tracer, holds: Value, contents: Contents, nodes: tuple[list[Node], list[Node]]
    ) -> None:
        self.tracer, self.holds, self.contents, self.nodes = tracer, holds, contents, nodes
        self.picked: dict[tuple[Value, Value], Node] = {}

    def operand(self, branch: int, value: Any, like: DType | None) -> Value:
        with emitting_to(self.tracer, self.nodes[branch]):
            return value if isinstance(value, Value) else self.tracer.value(value, like)

    def pick(self, left: Value, right: Value) -> Value:
        found = self.picked.get((left, right))
        if found is None:
            b = self.tracer.builder
            found = Node(TupleGetItem(index=len(self.picked)), [], left.type, "", "", b.scope, b.frames, b.phase)
            self.picked[left, right] = found
        return found

    def apart(self, left: Any, right: Any) -> Undecided:
        """Two values that no tensor can be, known behind the branches: tensors of each are zeros in the other one."""
        if not (_is_plain(self.tracer, left) and _is_plain(self.tracer, right)):
            return Undecided(left, right, True, self.holds)
        return Undecided(self._leaving(0, left), self._leaving(1, right), False, self.holds)

    def _leaving(self, way: int, value: Any) -> Any:
        if isinstance(value, list | tuple):
            items = [self._leaving(way, item) for item in value]
            return self.tracer.own(items) if isinstance(value, list) else tuple(items)
        if isinstance(value, dict):
            return self.tracer.own({key: self._leaving(way, item) for key, item in value.items()})
        if not self.tracer.is_tensor(value):
            return value
        pair = [self.operand(way, value, None)] * 2
        with emitting_to(self.tracer, self.nodes[1 - way]):
            pair[1 - way] = zeros(self.tracer, pair[way].tensor_type)
        return self.pick(*pair)

    def emit(self) -> None:
        """Append the `If` and what reads its results, unless nobody reads any and it does nothing else."""
        if not self.picked and not any(node.op.has_side_effect for nodes in self.nodes for node in nodes):
            return
        self.tracer.regions += 1
        name = f"if_{self.tracer.regions}"
        results = [[pair[branch] for pair in self.picked] for branch in (0, 1)]
        sides = list(zip(self.nodes, results, strict=True))
        captured = list(dict.fromkeys(value for side in sides for value in captured_values(*side)))
        words = If.region_names
        regions = [
            outlined(f"{name}_{word}", *side, captured=captured)[0] for word, side in zip(words, sides, strict=True)
        ]
        b = self.tracer.builder
        made = emit_regions(b, If(), [self.holds, *captured], regions)
        for item in self.picked.values():
            item.inputs = [made]
            b.nodes.append(item)


Join = Selecting | Choosing


def merged(join: Join, left: Any, right: Any) -> Any:
    """What is `left` where the condition holds and `right` elsewhere; `Undecided` where no tensor can be both."""
    if left is MISSING or right is MISSING:
        return MISSING
    for value in (left, right):
        if value is POISON or isinstance(value, OnlyInLoop):
            return value
    if left is right or behind_orderings(left) is behind_orderings(right):
        return behind_orderings(left) if join.within else left
    if isinstance(left, Undecided) or isinstance(right, Undecided):
        sides = [_behind(side) if join.within else side for side in (left, right)]
        return Undecided(*sides, join.within, join.holds)
    left, right = (join.contents[way].get(id(value), value) for way, value in enumerate((left, right)))
    if isinstance(left, tuple | list) and isinstance(right, tuple | list) and len(left) == len(right):
        items = [merged(join, a, b) for a, b in zip(left, right, strict=True)]
        return join.tracer.own(items) if isinstance(left, list) else tuple(items)
    if isinstance(left, dict) and isinstance(right, dict) and left.keys() == right.keys():
        return join.tracer.own({key: merged(join, left[key], right[key]) for key in left})
    return _selected(join, left, right)


def merged_flag(join: Join, left: Any, right: Any) -> Any:
    """The same for two of True, False and Bool tensors."""
    if left is True and right is False:
        return join.holds
    if left is False and right is True:
        return negation(join.tracer, join.holds)
    return merged(join, left, right)


def _selected(join: Join, left: Any, right: Any) -> Any:
    tracer = join.tracer
    tensors = [tracer.is_tensor(value) for value in (left, right)]
    numbers = [isinstance(value, bool | int | float | np.generic) for value in (left, right)]
    if all(numbers) and type(left) is type(right):
        if left == right:
            return left
    elif not all(tensors) and not (any(tensors) and any(numbers)):
        same = not any(tensors) and type(left) is type(right) and left == right
        return left if same else join.apart(left, right)
    like = next((tracer.value(v).tensor_type.dtype for v, t in zip((left, right), tensors, strict=True) if t), None)
    one, other = (join.operand(branch, v, like) for branch, v in enumerate((left, right)))
    if one.type != other.type or (any(tensors) and any(numbers) and not _fits(left if numbers[0] else right, like)):
        return join.apart(left, right)
    found = join.pick(one, other)
    if tracer.weak and is_number(tracer, left) and is_number(tracer, right):
        tracer.weak.add(found)
    return found


def _is_plain(tracer: Tracer, value: Any) -> bool:
    """Whether a value is made of tensors and numbers, and no name."""
    if isinstance(value, list | tuple):
        return all(_is_plain(tracer, item) for item in value) and not hasattr(value, "_fields")
    if isinstance(value, dict):
        return all(_is_plain(tracer, item) for item in value.values())
    return tracer.is_tensor(value) or value is None or isinstance(value, bool | int | float | str | np.generic)


def _behind(value: Any) -> Any:
    """A value behind the branch in which what chose it is known."""
    return Undecided(_behind(value.left), _behind(value.right), True) if isinstance(value, Undecided) else value


def _fits(number: Any, like: DType | None) -> bool:
    return isinstance(number, bool | np.bool_) == (like == BOOL) and number_dtype(number, like) == like


def behind_orderings(value: Any) -> Any:
    """A value behind orderings: an update of one branch does not make it another."""
    while isinstance(value, Node) and isinstance(value.op, Depend):
        value = value.inputs[0]
    return value


def zeros(tracer: Tracer, type: TensorType) -> Value:
    """A tensor of zeros."""
    if type.size <= INLINE_LIMIT:
        return Constant(np.zeros(type.shape, type.dtype.numpy), type.dtype)
    return tracer.emit(tracer.op("Zeros", shape=type.shape, dtype=type.dtype))
