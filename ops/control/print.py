"""An operator that prints tensors while the network runs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar

import numpy as np

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Value
from mspc.ir.types import TensorType, dtype_of
from mspc.ops.arguments import describe
from mspc.ops.op import ArrayBackend, Op, sample
from mspc.sharding.rules import factor_names

PLACE = "{}"
"""Stands in `lines` for the next tensor."""


class Print(Op):
    """Prints texts and tensors, a line each, at every step: of the first tensor this rank's slice, the others whole.
    Called as `Print()("x is", x)`; the result is the first tensor.

    lines: the texts and, in the places of tensors, `PLACE`. A text that is that is printed as it is written twice.
    """

    lines: tuple[str, ...] = (PLACE,)
    may_alias: ClassVar[bool] = True
    has_side_effect: ClassVar[bool] = True
    follows_neighbours: ClassVar[bool] = True
    takes_complex: ClassVar[bool] = True
    samples: ClassVar[Any] = (sample((8, 16)), sample((4, 2), (4,), lines=("both", PLACE, PLACE)))

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        wrong = [arg for arg in args if not isinstance(arg, str | bool | int | float) and not hasattr(arg, "shape")]
        if wrong:
            raise MspcError(f"Print takes tensors, texts and numbers, not {describe(wrong[0])}", kind=TypeError)
        tensors = tuple(arg for arg in args if hasattr(arg, "shape"))
        if not tensors:
            raise MspcError("Print needs a tensor among what it prints", kind=TypeError)
        lines = tuple(PLACE if hasattr(arg, "shape") else str(arg).replace(PLACE, 2 * PLACE) for arg in args)
        return replace(self, lines=lines), tensors

    def rule(self, *types: TensorType) -> str:
        if len(types) != self.lines.count(PLACE) or not types:
            raise MspcError(f"Print has {self.lines.count(PLACE)} places for {len(types)} tensors")
        names = iter(factor_names(sum(len(t.shape) for t in types)))
        sides = [" ".join(next(names) + "!" * (i > 0) for _ in t.shape) for i, t in enumerate(types)]
        return f"{', '.join(sides)} -> {sides[0]}"

    def infer(self, *types: Any) -> Any:
        super().infer(*types)
        return types[0]

    def bprop(self, b: Builder, *values: Any) -> Sequence[Value | None]:
        *inputs, _, dout = values
        return (dout, *[None] * (len(inputs) - 1))

    def run(self, be: ArrayBackend, *inputs: Any) -> Any:
        arrays = iter(inputs)
        text = [_shown(next(arrays)) if line == PLACE else line.replace(2 * PLACE, PLACE) for line in self.lines]
        sys.stdout.write("\n".join(text) + "\n")  # one write, so that the lines of ranks do not mix
        sys.stdout.flush()
        return inputs[0]


def _shown(array: Any) -> str:
    values = np.asarray(array.get() if hasattr(array, "get") else array)
    kind = dtype_of(values.dtype)
    return f"Tensor(shape={list(values.shape)}, dtype={kind}, value={np.array2string(values, separator=', ')})"
