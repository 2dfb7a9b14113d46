"""Operators that stand for several: what they are of is written once, and read as types, as nodes and as kernels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar, Protocol

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Value
from mspc.ir.named_layout import NamedLayout, spread
from mspc.ir.types import DType, TensorType, Type, dtype_of
from mspc.ops.op import ArrayBackend, Asked, NotDifferentiable, Op
from mspc.sharding.rules import factor_names

Cuts = tuple[int, ...]


class Emit(Protocol):
    """Applies an operator to operands; cuts: the strategy of each operand, None where nobody asked for any."""

    def __call__(self, op: Op, *operands: Any, cuts: Sequence[Cuts] | None = None) -> Any: ...


def dtype_in(operand: Any) -> DType:
    """The element type of a type, a value or an array."""
    kind = getattr(operand, "type", operand)
    return dtype_of(kind.dtype)


class Composed(Op, abstract=True):
    """Several operators as one, of one result; `compose` says which. A strategy is one tuple for each operand that is
    there."""

    is_several: ClassVar[bool] = True
    bprop: ClassVar[Any] = NotDifferentiable("its parts are differentiated")

    def compose(self, emit: Emit, cuts: Sequence[Cuts] | None, operands: Sequence[Any]) -> Any:
        """The result of `operands`: types, values or arrays, as `emit` gives them. cuts: the strategy, one entry for
        each operand."""
        raise NotImplementedError

    def infer(self, *types: Any) -> Type:
        return self.compose(lambda op, *operands, cuts=None: op.infer(*operands), None, types)

    def rule(self, *types: TensorType) -> str:
        """The rule of the whole, which stays whole: its parts carry out what a strategy asks for."""
        made = self.infer(*types)
        assert isinstance(made, TensorType)
        names = iter(factor_names(sum(len(t.shape) for t in (*types, made))))
        ins = [" ".join(f"{next(names)}!" for _ in t.shape) for t in types]
        return f"{', '.join(ins)} -> {' '.join(f'{next(names)}={n}!' for n in made.shape)}"

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        return self.compose(lambda op, *operands, cuts=None: op.kernel(be)(*operands), None, inputs)

    def decompose(self, b: Builder, asked: Asked, inputs: Sequence[Value]) -> Sequence[Value] | None:
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
