"""GetNext reads a queue that a device fills by itself; there is no such queue here."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import ExecutionError, MspcError
from mspc.ir.graph import Value
from mspc.ir.types import DType, TensorType, TupleType, Type
from mspc.ops.op import ArrayBackend, Op
from mspc.sharding.rules import factor_names, sized


class GetNext(Op):
    """The next tensors of the queue `shared_name`, of the given element types and shapes over all ranks.

    Networks with it can be compiled, to see how they are split; no queue is filled here, so that none can run.
    """

    types: tuple[DType, ...]
    shapes: tuple[tuple[int, ...], ...]
    output_num: int = 1
    shared_name: str = ""
    has_side_effect = True

    def rule(self) -> str:
        names = iter(factor_names(sum(map(len, self.shapes))))
        sides = ([sized(name, n) for name, n in zip(itertools.islice(names, len(s)), s, strict=True)]
                 for s in self.shapes)  # fmt: skip
        return " -> " + ", ".join(" ".join(side) for side in sides)

    def infer(self, *types: Type) -> Type:
        if not self.types or not len(self.types) == len(self.shapes) == self.output_num:
            raise MspcError(
                f"GetNext: {len(self.types)} types and {len(self.shapes)} shapes for output_num {self.output_num}",
                kind=ValueError,
            )
        if any(size < 1 for shape in self.shapes for size in shape):
            raise MspcError(f"GetNext: shapes {self.shapes} must be positive", kind=ValueError)
        return TupleType(tuple(map(TensorType, self.types, self.shapes)))

    def bprop(self, b: Builder, *out_and_gradient: Any) -> Sequence[Value | None]:
        return ()

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        raise ExecutionError(
            "GetNext: there is no queue of data here",
            notes=["call the network with its data, or train it with Model.train, which hands them in"],
        )
