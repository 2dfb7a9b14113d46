"""A composite operator stands for several: their composition is written once, and read as types, as nodes and as
kernels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, cast

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Value
from mspc.ir.layout import NamedLayout, spread
from mspc.ir.types import DType, TensorType, Type, dtype_of
from mspc.ops.op import ArrayBackend, NotDifferentiable, Op, RequestedSharding
from mspc.sharding.rules import factor_names

Cuts = tuple[int, ...]


class Emit(Protocol):
    """Applies an operator to operands; cuts: the strategy of each operand, None where there is none."""

    def __call__(self, op: Op, *operands: Any, cuts: Sequence[Cuts] | None = None) -> Any: ...


def dtype_in(operand: Any) -> DType:
    """The element type of a type, a value or an array."""
    kind = getattr(operand, "type", operand)
    return dtype_of(kind.dtype)


class CompositeOp(Op, abstract=True):
    """Several operators as one, of one result; `compose` says which. A strategy is one tuple for each operand that is
    there."""

    is_several = True
    bprop = NotDifferentiable("its parts are differentiated")

    def compose(self, emit: Emit, cuts: Sequence[Cuts] | None, operands: Sequence[Any]) -> Any:
        """The result of `operands`: types, values or arrays, as `emit` gives them. cuts: the strategy, one entry for
        each operand."""
        raise NotImplementedError

    def infer(self, *types: Any) -> Type:
        def emit(op: Op, *operands: Any, cuts: Sequence[Cuts] | None = None) -> Any:
            return op.infer(*operands)

        return self.compose(emit, None, types)

    def rule(self, *types: TensorType) -> str:
        """The rule of the composite operator, of which nothing is sharded: its parts carry out a strategy."""
        made = self.infer(*types)
        assert isinstance(made, TensorType)
        names = iter(factor_names(sum(len(t.shape) for t in (*types, made))))
        ins = [" ".join(f"{next(names)}!" for _ in t.shape) for t in types]
        return f"{', '.join(ins)} -> {' '.join(f'{next(names)}={n}!' for n in made.shape)}"

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        def emit(op: Op, *operands: Any, cuts: Sequence[Cuts] | None = None) -> Any:
            return op.kernel(be)(*operands)

        return self.compose(emit, None, inputs)

    def decompose(self, b: Builder, asked: RequestedSharding, inputs: Sequence[Value]) -> Sequence[Value] | None:
        entries: list[Cuts] | None = None
        if asked.in_strategy is not None:
            entries = spread(asked.in_strategy)
            if any(isinstance(entry, NamedLayout) for entry in entries):
                raise MspcError(f"{self.name} takes strategies of tuples, not of Layouts")
            if [len(entry) for entry in entries] != [len(value.shape) for value in inputs]:
                shapes = ", ".join(str(value.shape) for value in inputs)
                raise MspcError(
                    f"{self.name}: the strategy {asked.in_strategy} does not fit operands of shapes {shapes}"
                )

        def emit(op: Op, *operands: Any, cuts: Sequence[Cuts] | None = None) -> Any:
            node = b.emit(op, *operands)
            if cuts is not None:
                node.in_strategy = tuple(cuts)
            return node

        return (self.compose(emit, entries, inputs),)


class WithOptionalOperands(CompositeOp, abstract=True):
    """An operator whose last operands may be None. given: those that are there.

    Class attributes:
        order: names of the operands, as a call gives them. needed: how many of them must be there.
    """

    order: ClassVar[tuple[str, ...]]
    needed: ClassVar[int]
    omitted = ("given",)

    if TYPE_CHECKING:  # behind the fields of the operator
        given: tuple[str, ...]

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        if not self.needed <= len(args) <= len(self.order):
            count = f"{self.needed} to {len(self.order)}"
            raise MspcError(f"{self.name} takes {count} tensors, not {len(args)}", kind=TypeError)
        there = {name: x for name, x in zip(self.order, args, strict=False) if x is not None}
        missing = [name for name in self.order[: self.needed] if name not in there]
        if missing:
            raise MspcError(f"{self.name}: {missing[0]} must be a tensor, not None", kind=TypeError)
        return replace(cast(Any, self), given=tuple(there)), tuple(there.values())

    def named(self, values: Sequence[Any] | None) -> dict[str, Any]:
        """Operands, or their strategies, by name; None for what is not there."""
        found: dict[str, Any] = dict.fromkeys(self.order)
        if values is None:
            return found
        if len(values) != len(self.given):
            raise MspcError(f"{self.name} takes {len(self.given)} tensors, not {len(values)}", kind=TypeError)
        return found | dict(zip(self.given, values, strict=True))


def together(*cuts: Cuts | None) -> Sequence[Cuts] | None:
    """The strategy of an operator whose operands are sharded so; None where some have no strategy."""
    known = [entry for entry in cuts if entry is not None]
    return known if len(known) == len(cuts) else None
