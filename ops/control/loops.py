"""Operators that run a graph again and again: while a condition holds, so many times, or along a dimension.

A turn's results are first the values that the loop carries to the next turn, then those of which every turn's is kept:
stacked along a new first dimension where the number of turns is known when the graph is compiled, else in a stack
(`StackType`), as stacks themselves are. Operands come in this order: the number of turns (of a `For` that an operand
counts), what is carried, what is scanned, one entry a turn along the first dimension or of a stack, and what every turn
reads as it is.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, TypeGuard

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Graph, Node, Parameter, Value
from mspc.ir.types import INT64, StackType, TensorType, TupleType, Type
from mspc.ops.control.regions import RegionOp, check_condition, check_count, check_parameters, result_types
from mspc.ops.op import ArrayBackend, NotDifferentiable, Op

COUNT = TensorType(INT64, ())
"""The type of a number of turns, and of the number of a turn."""


class Loop(RegionOp, abstract=True):
    """A loop. Its body is the last region.

    carried: values that go from turn to turn. scanned: operands of which every turn gets one entry, from the last on
    with `reverse`. stacked: results of the body of which every turn's is kept, in the places of the entries.
    """

    carried: int = 0
    scanned: int = 0
    stacked: int = 0
    reverse: bool = False
    leading: ClassVar[int] = 0
    """Parameters of the body ahead of those for operands: the number of the turn."""

    @property
    def first(self) -> int:
        """Operands ahead of what is carried."""
        return 0

    @property
    def carried_operands(self) -> range:
        return range(self.first, self.first + self.carried)

    @property
    def scanned_operands(self) -> range:
        return range(self.first + self.carried, self.first + self.carried + self.scanned)

    @property
    def passed_operands(self) -> range:
        return self.carried_operands

    def known_turns(self, types: Sequence[Type]) -> int:
        """The number of turns where it is known from the operands' types and the attributes, else -1."""
        return -1

    def inside(self, number: int, operand: int) -> int | None:
        return operand - self.first + self.leading if operand >= self.first else None

    def body_types(self, types: Sequence[Type]) -> list[Type]:
        """The types of the body's parameters, from those of the operands. Raises MspcError."""
        turns = self.known_turns(types)
        entries = [_entry(self, types[index], turns) for index in self.scanned_operands]
        behind = self.first + self.carried
        return [COUNT] * self.leading + [*types[self.first : behind], *entries, *types[behind + self.scanned :]]

    def results_of(self, regions: Sequence[Graph], types: Sequence[Type]) -> TupleType:
        check_count(self, regions)
        if len(types) < self.first + self.carried + self.scanned:
            raise MspcError(f"{self.name}: {len(types)} operands for {self.carried} carried and {self.scanned} scanned")
        body = regions[-1]
        check_parameters(self, "body", body, self.body_types(types))
        results = result_types(body)
        if len(results) != self.carried + self.stacked:
            wanted = f"{self.carried} carried and {self.stacked} stacked"
            raise MspcError(f"{self.name}: @{body.name} returns {len(results)} tensors, not {wanted}")
        for number, index in enumerate(self.carried_operands):
            if results[number] != types[index]:
                name = body.parameters[self.leading + number].name
                raise MspcError(
                    f"{self.name}: {name} is {types[index]} ahead of the loop, and {results[number]} behind a turn",
                    notes=["what a loop carries keeps its shape and element type in every turn"],
                )
        return TupleType((*results[: self.carried], *self.kept(results[self.carried :], self.known_turns(types))))

    def kept(self, entries: Sequence[TensorType], turns: int) -> tuple[TensorType, ...]:
        """The types of the results that hold every turn's entry."""
        return tuple(kept_type(entry, turns) for entry in entries)


class While(Loop):
    """Runs the body while the condition, of the same parameters, holds ahead of a turn. With `stacked` results, or with
    `counted`, it also returns how many turns there were, ahead of the stacks."""

    counted: bool = False
    region_names = ("condition", "body")

    @property
    def tells_turns(self) -> bool:
        """Whether the number of turns is among the results."""
        return self.counted or self.stacked > 0

    def results_of(self, regions: Sequence[Graph], types: Sequence[Type]) -> TupleType:
        found = super().results_of(regions, types)
        check_parameters(self, "condition", regions[0], self.body_types(types))
        told = result_types(regions[0])
        check_condition(self, told[0] if len(told) == 1 else TupleType(told))
        return found

    def kept(self, entries: Sequence[TensorType], turns: int) -> tuple[TensorType, ...]:
        return (*([COUNT] if self.tells_turns else []), *super().kept(entries, turns))


class For(Loop):
    """Runs the body `turns` times, or, with -1, as often as operand 0 counts; its first parameter is the number of the
    turn, from 0, or from the last one down to 0 with `reverse`."""

    turns: int = -1
    region_names = ("body",)
    leading = 1

    @property
    def first(self) -> int:
        return 1 if self.turns < 0 else 0

    def known_turns(self, types: Sequence[Type]) -> int:
        return self.turns

    def results_of(self, regions: Sequence[Graph], types: Sequence[Type]) -> TupleType:
        if self.turns < 0 and (not types or types[0] != COUNT):
            raise MspcError(f"For: the number of turns is {types[0] if types else 'missing'}, not {COUNT}")
        return super().results_of(regions, types)


class Scan(Loop):
    """Runs the body `turns` times, each on its entry of what is scanned.

    micro_batches: the turns are parts of a batch, which the stages of a pipeline hand on; what a turn saves for its
    gradient does not wait for the other turns (`join_micro_batches`).
    """

    turns: int = 0
    micro_batches: bool = False
    region_names = ("body",)

    def known_turns(self, types: Sequence[Type]) -> int:
        return self.turns


class MakeStack(Op):
    """Tensors of one type as the entries of a stack, one a turn, without a copy: what a loop overwrites in an entry it
    overwrites in the tensor."""

    takes_complex = True
    is_view = True
    widens = False
    bprop = NotDifferentiable("gradients are taken with respect to all of the stack")

    def infer(self, *types: Type) -> Type:
        first = types[0] if types else None
        if not isinstance(first, TensorType):
            raise MspcError("MakeStack: it takes tensors of one type, at least one")
        other = next((type for type in types if type != first), None)
        if other is not None:
            raise MspcError(f"MakeStack: its entries are {first} and {other}; they must be of one type")
        return StackType.of(first)

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return list(inputs)

    def aliased_operands(self, count: int) -> Sequence[int]:
        return range(count)


class TurnCount(Op):
    """How many turns of a loop have put something on a stack: Int64 of shape ()."""

    takes_complex = True
    bprop = NotDifferentiable("it is a number of turns")

    def infer(self, *types: Type) -> Type:
        if len(types) != 1 or not isinstance(types[0], StackType):
            raise MspcError(f"TurnCount: it takes a stack, not {', '.join(map(str, types)) or 'nothing'}")
        return COUNT

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return np.asarray(len(inputs[0]), np.int64)


def is_stack_of_parameters(value: Value) -> TypeGuard[Node]:
    """Whether a value is a stack whose entries are parameters."""
    return isinstance(value, Node) and isinstance(value.op, MakeStack) and isinstance(value.inputs[0], Parameter)


def runs_layers(node: Node) -> bool:
    """Whether a node is a loop over the weights of equal layers, or over what belongs to each."""
    op = node.op
    if not isinstance(op, For | Scan) or op.turns < 0:
        return False
    return any(isinstance(node.inputs[i].type, StackType) for i in op.scanned_operands)


def runs_micro_batches(node: Node) -> bool:
    """Whether a node is the loop over the micro-batches of a network in stages."""
    return isinstance(node.op, Scan) and node.op.micro_batches


def body_of(node: Node) -> Graph:
    """The body of a loop."""
    return node.regions[-1]


def kept_type(entry: TensorType, turns: int) -> TensorType:
    """The type of such entries of all turns: a tensor where the number of turns is known, and they are no stacks."""
    if turns < 0 or isinstance(entry, StackType):
        return StackType.of(entry)
    return entry.with_shape((turns, *entry.shape))


def _entry(op: Loop, type: Type, turns: int) -> TensorType:
    """The type of one entry of what is scanned. Raises MspcError."""
    if isinstance(type, StackType):
        return type.entry
    if not isinstance(type, TensorType) or not type.shape or (turns >= 0 and type.shape[0] != turns):
        wanted = f"a tensor of {turns} entries" if turns >= 0 else "a stack"
        raise MspcError(f"{op.name}: it scans {type}, not {wanted}")
    return type.with_shape(type.shape[1:])
