"""The script gives the function of these operators, and may give their gradients."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import ExecutionError, MspcError
from mspc.ir.graph import Node, Value
from mspc.ir.types import TensorType, TupleType, Type
from mspc.ops.op import Gradients, NotDifferentiable, Op, RankPlacement
from mspc.sharding.rules import Rule

TENSOR = "tensor"
"""Placeholder in `Custom.given` for the next operand."""


class ScriptFunction(str):
    """The name of a function, as graphs are written, with the function itself; read from a file it is only a name."""

    call: Callable[..., Any]

    @staticmethod
    def of(name: str, call: Callable[..., Any]) -> ScriptFunction:
        found = ScriptFunction(name)
        found.call = call
        return found

    def __eq__(self, other: object) -> bool:
        if isinstance(other, ScriptFunction):
            return str(self) == str(other) and self.call is other.call
        return str(self) == other

    def __ne__(self, other: object) -> bool:
        return not self == other

    def __hash__(self) -> int:
        return hash(str(self))

    def __reduce__(self) -> tuple[Any, ...]:
        return str, (str(self),)


class Custom(Op):
    """An operator with a function of the script: it computes on NumPy arrays, at every step.

    called: its name, and in the process of the script itself. given: its arguments, nested as in the call, with
    `TENSOR` in the places of the operands. results: types of the tensors that it returns. several: it returns a tuple.
    cuts: its rule, which says along which dimensions the script accepts slices; "" for none.
    """

    called: str = ""
    given: tuple[Any, ...] = ()
    results: tuple[Any, ...] = ()
    several: bool = False
    cuts: str = ""
    has_side_effect = True
    takes_complex = True
    widens = False
    runs_on_host = True
    may_alias = True
    bprop = NotDifferentiable("its function is the script's; give Custom a bprop")

    def rule(self, *types: TensorType) -> str | Rule:
        return self.cuts or replicated_rule([t.shape for t in types], [t.shape for t in self.results])

    def infer(self, *types: Any) -> Type:
        self.parsed_rule(*types)
        return TupleType(self.results) if self.several else self.results[0]

    def localize(self, placement: RankPlacement) -> Op:
        types = zip(placement.out_types, placement.out_layouts, strict=True)
        return replace(self, results=tuple(TensorType(t.dtype, layout.local_shape(t.shape)) for t, layout in types))

    def compute(self, xp: Any, *inputs: Any) -> Any:
        call = getattr(self.called, "call", None)
        if call is None:
            raise ExecutionError(f"Custom: {self.called} is a function of the script; run the script, not its files")
        returned: Any = call(*_filled(self.given, iter(inputs)))
        count = len(cast(Any, returned)) if isinstance(returned, (tuple, list)) else 1
        if self.several and count != len(self.results):
            raise ExecutionError(f"Custom: {self.called} must return {len(self.results)} arrays")
        arrays: list[Any] = list(cast(Any, returned)) if self.several else [returned]
        found: list[Any] = [np.asarray(array) for array in arrays]
        for array, type in zip(found, self.results, strict=True):
            if array.shape != type.shape:
                raise ExecutionError(
                    f"Custom: {self.called} returned an array of shape {array.shape}, not {type.shape} as its "
                    "out_shape says of these slices"
                )
        typed = [array.astype(t.dtype.numpy, "C", copy=False) for array, t in zip(found, self.results, strict=True)]
        return tuple(typed) if self.several else typed[0]


def _filled(given: Any, arrays: Iterator[Any]) -> Any:
    if isinstance(given, tuple):
        return tuple(_filled(each, arrays) for each in cast("tuple[Any, ...]", given))
    return next(arrays) if given == TENSOR else given


def replicated_rule(inputs: Sequence[Sequence[int]], results: Sequence[Sequence[int]]) -> str:
    """Return the rule of an operator no dimension of which can be sharded."""
    return rule_of(inputs, results, [[""] * len(shape) for shape in (*inputs, *results)])


def rule_of(inputs: Sequence[Sequence[int]], results: Sequence[Sequence[int]], labels: Sequence[Sequence[str]]) -> str:
    """Return the rule of an operator whose dimensions of one label are sharded together; those without are not sharded.

    Raises:
        MspcError: dimensions of one label have different sizes, or an operand is sharded and no result is with it.
    """
    shapes, count, texts = [*inputs, *results], len(inputs), list[str]()
    sizes: dict[str, int] = {}
    shared = {name for row in labels[:count] for name in row} & {name for row in labels[count:] for name in row}
    for place, (shape, row) in enumerate(zip(shapes, labels, strict=True)):
        own, other = (f"input {place}", "a result") if place < count else (f"result {place - count}", "an input")
        names: list[str] = []
        for dimension, (size, label) in enumerate(zip(shape, row, strict=True)):
            if label and sizes.setdefault(label, size) != size:
                raise MspcError(f"Custom: one axis shards dimensions of sizes {sizes[label]} and {size}")
            if label and label not in shared:
                raise MspcError(
                    f"Custom: dimension {dimension} of {own} is sharded, and no dimension of {other} with it",
                    notes=["say with out_strategy how the results are sharded"],
                )
            names.append(label or f"t{place}d{dimension}{f'={size}' if place >= count else ''}!")
        texts.append(" ".join(names))
    return f"{', '.join(texts[:count])} -> {', '.join(texts[count:])}"


class GradientPlaceholder(Op):
    """A placeholder for the gradient of a result while the operators that compute the script's own gradient are
    read."""

    type: Any = None
    takes_complex = True
    bprop = NotDifferentiable("it is gone before gradients are taken")

    def infer(self, *types: Any) -> Type:
        return self.type


class OwnGradient(Op):
    """The first `results` operands, whose gradient the script gives. After them come the values that they were computed
    from, a placeholder for each result's gradient, and the gradients that the script computes from these, one for each
    of those values. The pass `grad` puts the operators in place and removes this one.

    inner: the number of (placeholder, gradient) pairs after these, all placeholders first. The placeholders are those
        of an OwnGradient that comes earlier in the graph, whose gradients are replaced: they may then depend on the
        gradients of both, as those of a backward hook of a cell do.
    """

    results: int = 1
    sources: int = 1
    inner: int = 0
    takes_complex = True

    def infer(self, *types: Any) -> Type:
        return TupleType(types[: self.results])

    def bprop(self, b: Builder, *values: Any) -> Gradients:
        *inputs, _, douts = values
        first = self.results + self.sources
        placeholders, written = inputs[first : first + self.results], inputs[first + self.results :]
        own, pairs = written[: self.sources], written[self.sources :]
        stands_for: dict[Value, Value] = {}
        if placeholders[0] in b.inner_gradients:
            by_placeholder, outer = b.inner_gradients.pop(placeholders[0])
            own = [by_placeholder[value] for value in own]
            stands_for.update(outer)
        for placeholder, result, dout in zip(placeholders, inputs, douts, strict=False):
            if dout is None:
                type = result.tensor_type
                dout = b.constant(np.zeros(type.shape, type.dtype.numpy), type.dtype)
            stands_for[placeholder] = dout
        grads = [_copied(b, value, stands_for) for value in own]
        if self.inner:
            by_placeholder = dict(zip(pairs[: self.inner], pairs[self.inner :], strict=True))
            b.inner_gradients[pairs[0]] = by_placeholder, stands_for
        return (*[None] * self.results, *grads, *[None] * (self.results + self.sources + 2 * self.inner))


def _copied(b: Builder, value: Value, stands_for: dict[Value, Value]) -> Value:
    """Return `value` recomputed with placeholders replaced; values that do not depend on placeholders are not
    copied."""
    order: list[Node] = []
    depends: dict[Value, bool] = dict.fromkeys(stands_for, True)
    waiting = [value]
    while waiting:
        node = waiting[-1]
        if node in depends or not isinstance(node, Node):
            depends.setdefault(node, False)
            waiting.pop()
            continue
        unknown = [operand for operand in node.inputs if operand not in depends]
        if unknown:
            waiting += unknown
            continue
        depends[node] = any(depends[operand] for operand in node.inputs)
        if depends[node]:
            order.append(node)
    for node in order:
        inputs = [stands_for.get(operand, operand) for operand in node.inputs]
        if node.regions:
            from mspc.ops.control.regions import RegionOp, emit_regions  # late: few networks have regions

            copy = emit_regions(b, cast(RegionOp, node.op), inputs, node.regions, node.name)
        else:
            copy = b.emit(cast(Op, node.op), *inputs, name=node.name, instance=node.instance)
        copy.in_strategy, copy.out_strategy, copy.attrs = node.in_strategy, node.out_strategy, dict(node.attrs)
        stands_for[node] = copy
    return stands_for.get(value, value)
