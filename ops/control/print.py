"""Operators that print values and write them to files."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any, cast

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Builder
from mspc.ir.types import TensorType, dtype_of
from mspc.ops.op import Gradients, Op, sample
from mspc.sharding.rules import factor_names

PLACE = "{}"
"""Placeholder in `lines` for the next tensor."""


class Print(Op):
    """A print of values, a line each, every time that it runs: this rank's slice of the first tensor, all of the
    others. Called as `Print()("x is", x)`; the result is the first tensor, a zero if there is none. Tensors may be in
    tuples, lists and dicts; a tensor of no dimensions is shown as its number, and other objects as Python shows them
    when the network is read. `print("x is", x)` in a network is this operator, once for each tensor.

    lines: the texts and, in the places of tensors, `PLACE`, which is doubled if a text has it.
    """

    lines: tuple[str, ...] = (PLACE,)
    may_alias = True
    has_side_effect = True
    follows_neighbours = True
    takes_complex = True
    widens = False
    runs_on_host = True
    samples = (sample((8, 16)), sample((4, 2), (4,), lines=("both", PLACE, PLACE)))

    def call(self, *args: Any) -> tuple[Op, tuple[Any, ...]]:
        tensors: list[Any] = []
        lines = tuple(_escaped(arg) if isinstance(arg, str) else _line(arg, tensors) for arg in args)
        return replace(self, lines=lines), tuple(tensors) or (np.zeros((), np.int32),)

    def rule(self, *types: TensorType) -> str:
        places = sum(line.replace(2 * PLACE, "").count(PLACE) for line in self.lines)
        if len(types) != max(1, places):
            raise MspcError(f"Print has {places} places for {len(types)} tensors")
        names = iter(factor_names(sum(len(t.shape) for t in types)))
        sides = [" ".join(next(names) + "!" * (i > 0) for _ in t.shape) for i, t in enumerate(types)]
        return f"{', '.join(sides)} -> {sides[0]}"

    def infer(self, *types: Any) -> Any:
        super().infer(*types)
        return types[0]

    def bprop(self, b: Builder, *values: Any) -> Gradients:
        *inputs, _, dout = values
        return (dout, *[None] * (len(inputs) - 1))

    def compute(self, xp: Any, *inputs: Any) -> Any:
        arrays = iter(inputs)
        text = [_filled(line, arrays) + "\n" for line in self.lines]
        sys.stdout.write("".join(text))  # one write, so that the lines of ranks do not mix
        sys.stdout.flush()
        return inputs[0]


def split_by_tensor(values: Sequence[Any]) -> list[list[Any]]:
    """Split the values to print into groups of at most one value with tensors, so that a rank prints its own slice of
    each."""
    runs: list[list[Any]] = [[]]
    full = False
    for value in values:
        tensors: list[Any] = []
        _line(value, tensors)
        if tensors and full:
            runs.append([])
        full = bool(tensors) or full
        runs[-1].append(value)
    return runs


def _line(value: Any, tensors: list[Any]) -> str:
    """Return a value as it is printed, and add its tensors to `tensors`."""
    if hasattr(value, "shape"):
        tensors.append(value)
        return PLACE
    if isinstance(value, dict) and value:
        entries = cast("dict[Any, Any]", value).items()
        return f"{{{', '.join(f'{_line(key, tensors)}: {_line(entry, tensors)}' for key, entry in entries)}}}"
    if isinstance(value, (tuple, list)):  # as the type checker takes it
        parts = [_line(each, tensors) for each in cast("list[Any]", value)]
        if isinstance(value, list):
            return f"[{', '.join(parts)}]"
        return f"({', '.join(parts)}{',' if len(parts) == 1 else ''})"
    return _escaped(repr(value) if isinstance(value, str) else str(value))


def _escaped(text: str) -> str:
    return text.replace(PLACE, 2 * PLACE)


def _filled(line: str, arrays: Iterator[Any]) -> str:
    parts = [part.split(PLACE) for part in line.split(2 * PLACE)]
    return PLACE.join("".join(p if i == 0 else _shown(next(arrays)) + p for i, p in enumerate(part)) for part in parts)


def _shown(array: Any) -> str:
    values = np.asarray(array)
    if not values.shape:
        return str(values)
    kind = dtype_of(values.dtype)
    return f"Tensor(shape={list(values.shape)}, dtype={kind}, value={np.array2string(values, separator=', ')})"
