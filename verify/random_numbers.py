"""Checks random numbers by themselves: all devices and ranks draw them with the same kernels.

They must be others in every step, in every iteration of a loop and for every call of a shared graph; a mask must keep
the part of the elements that its operator names, and scale them by it; uniform numbers must have their mean.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import fields, replace
from typing import Any

import numpy as np

from mspc.ir.graph import Constant, Graph, Node, Value
from mspc.ir.types import TensorType
from mspc.ops.collective.one_rank import OneRank
from mspc.ops.op import Op
from mspc.ops.random.dropout import Dropout
from mspc.runtime.backend import NumPyBackend
from mspc.verify.difference import ComparedValue

Array = Any
ENOUGH = 512
"""Numbers that a check takes at least, by drawing more often if a tensor is small."""
MAX_RUNS = 64
LARGEST = 1 << 22
"""Elements of the largest tensors that are drawn for this alone."""
SURE = 1e-12
"""Tensors that are equal by chance with a greater probability tell nothing."""
DEVIATIONS = 6.0
"""How many standard deviations a mean may be off: beyond it is an error, not chance."""


def wrong_random_numbers(graph: Graph) -> list[ComparedValue]:
    """Return a row for every property that the numbers of some operator do not have."""
    rows: list[ComparedValue] = []
    known: set[tuple[Any, ...]] = set()
    for node in graph.all_nodes():
        op = node.op
        if not isinstance(op, Op) or not op.draws or getattr(op, "keep_prob", 0.0) == 1.0:
            continue
        told = tuple((k, v) for k, v in op.attributes().items() if k not in _seeds(op))
        key = (op.name, told, tuple(str(value.type) for value in node.inputs))
        if key not in known:
            known.add(key)
            rows += _wrong(node, op)
    return rows


def _wrong(node: Node, op: Op) -> Iterator[ComparedValue]:
    operands = [_operand(value) for value in node.inputs]
    first = _drawn(op, operands)
    size = max((array.size for array in first), default=0)
    if not 0 < size <= LARGEST:
        return
    runs = min(MAX_RUNS, max(3, -(-ENOUGH // size)))
    keep = op.keep_prob if isinstance(op, Dropout) else None  # others make no mask
    certain = keep is None or max(keep, 1 - keep) ** (size * (runs - 1)) < SURE
    for place in ("step", "iteration", "call", "seed"):
        found = [_drawn(op, operands, **{place: number + 1}) for number in range(runs)]
        same = all(np.array_equal(a, b) for other in found[1:] for a, b in zip(found[0], other, strict=True))
        if same and certain:
            yield _row(f"{node.label}, equal for every {place}", first, math.inf, 0.0)
        if place == "step":
            yield from _wrong_parts(node, op, operands, found, keep)


def _wrong_parts(
    node: Node, op: Op, operands: list[Array], found: list[tuple[Array, ...]], keep: float | None
) -> Iterator[ComparedValue]:
    """Return rows of wrong means. found: draws of some steps."""
    if keep is not None:
        masks = [results[-1] for results in found]
        count = drawn = sum(mask.size for mask in masks)
        if isinstance(op, Dropout):  # one number may be for several elements
            drawn //= math.prod(masks[0].shape[op.random_dims(masks[0].ndim) :])
        part = sum(float(mask.sum()) for mask in masks) / count
        allowed = DEVIATIONS * math.sqrt(keep * (1 - keep) / drawn) + 1 / drawn
        if abs(part - keep) > allowed:
            yield _row(f"{node.label}, the part that is kept", found[0], abs(part - keep), allowed)
        if len(found[0]) == 2 and found[0][0].dtype.kind == "f":
            scaled, mask = found[0]
            off = float(np.max(np.abs(scaled * keep - operands[0] * mask), initial=0.0))
            if off > 1e-2:
                yield _row(f"{node.label}, the scale of what is kept", found[0], off, 1e-2)
    elif op.name == "UniformReal":
        numbers = np.concatenate([results[0].reshape(-1) for results in found]).astype(np.float64)
        allowed = DEVIATIONS / math.sqrt(12 * numbers.size)
        off = abs(float(numbers.mean()) - 0.5)
        if off > allowed or numbers.min() < 0 or numbers.max() >= 1:
            yield _row(f"{node.label}, their mean", found[0], off, allowed)


def _seeds(op: Op) -> list[str]:
    """Return the fields that hold seeds."""
    return [each.name for each in fields(op) if each.name.lower().startswith("seed")]


def _operand(value: Value) -> Array:
    """Return numbers for an operand: a constant's own, else ones."""
    if isinstance(value, Constant):
        return value.value
    assert isinstance(value.type, TensorType)
    return np.ones(value.type.shape, value.type.dtype.numpy)


def _drawn(
    op: Any, operands: list[Array], step: int = 1, iteration: int = 0, call: int = 0, seed: int = 0
) -> tuple[Array, ...]:
    if seed:
        name = _seeds(op)[0]
        op = replace(op, **{name: getattr(op, name) + seed})
    turns, calls = (iteration,) if iteration else (), (call,) if call else ()
    backend = NumPyBackend(OneRank(), step=step, turns=turns, calls=calls)
    result = op.kernel(backend)(*map(np.array, operands))
    return result if isinstance(result, tuple) else (result,)


def _row(name: str, results: tuple[Array, ...], difference: float, tolerance: float) -> ComparedValue:
    return ComparedValue("random numbers", name, results[0].shape, difference, tolerance)
