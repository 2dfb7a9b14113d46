"""Find causal masks: one number up to a diagonal and another after it, which hides the future.

A large constant is a parameter whose elements are not in the graph; `note_causal_masks` writes their kind
to its attribute `triangle`, as in `triangle: (0, 0.0, -inf)`. The pass that reads it takes it away, since it holds no
longer for a slice.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterator, Mapping
from typing import Any

import numpy as np

from mspc.analysis.integer_ranges import BOUNDS, IntegerRange, bounds_of, note_bounds
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Builder, Constant, Graph, Node, Parameter, Value
from mspc.ir.iterative import iterative, reached
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import BOOL, TensorType
from mspc.ops.bases import Elementwise
from mspc.ops.math.arithmetic import Equal, Greater, GreaterEqual, Less, LessEqual, LogicalNot, Mul, Select
from mspc.ops.math.mint import RepeatInterleaveInt
from mspc.ops.math.reduce import ReduceAll, ReduceAny, ReduceMean
from mspc.ops.op import Op
from mspc.ops.tensor.creation import Fill, Ones, Range, Tril, Triu, Zeros
from mspc.ops.tensor.moving import Transpose
from mspc.ops.tensor.reshape import BroadcastTo, Cast, ExpandDims, Reshape, Squeeze
from mspc.passes.cleanup.simplify import Compiling

CAUSAL_MASK = "triangle"
"""The attribute of a parameter whose elements are those of a causal mask."""
DEPTH = 8
"""How many operators between constants and a mask are looked at."""

Array = Any


@dataclass(frozen=True)
class CausalMask:
    """A tensor whose last two dimensions hold equal matrices.

    diagonal: elements with column - row <= diagonal are `near`, the others `far`; None if all are equal. pair: (near,
    far), an array of the tensor's element type.
    """

    diagonal: int | None
    pair: Array

    @property
    def near(self) -> Any:
        return self.pair[0]

    @property
    def far(self) -> Any:
        return self.pair[1]


def note_causal_masks(graph: Graph, constants: Mapping[str, Array]) -> None:
    """Write the attribute `triangle` of the graph's constants; `constants` holds their elements by name."""
    for parameter in graph.parameters:
        if parameter.kind == "constant" and parameter.name in constants:
            found = _mask_in(np.asarray(constants[parameter.name]))
            if found is not None:
                parameter.attrs[CAUSAL_MASK] = (found.diagonal, found.near.item(), found.far.item())


def forget_causal_masks(graph: Graph) -> bool:
    """Remove the attribute `triangle`; return True if there was one."""
    return any([parameter.attrs.pop(CAUSAL_MASK, None) is not None for parameter in graph.parameters])


def causal_mask_of(value: Value) -> CausalMask | None:
    """Return the triangle that `value` is at every step, or None. It is made of constants by operators that preserve
    one. Raise MspcError if an attribute `triangle` is malformed."""
    found = _pattern(value, DEPTH)
    return found if found is not None and found.diagonal is not None else None


def causal_mode(value: Value, scores: tuple[int, ...], hides: Callable[[Any, Any], bool]) -> int:
    """Return the `sparse_mode` (2 or 3) equivalent to adding `value` to, or masking with it, scores of shape [...,
    queries, keys].

    0 if `value` is no such triangle. `hides` tells of two elements if the first keeps a score and the second hides it.
    """
    queries, keys = scores[-2:]
    found = causal_mask_of(value) if value.shape[-2:] == scores[-2:] else None
    # With a diagonal below 0 there are queries that look at no key.
    if found is None or found.diagonal not in (0, max(keys - queries, 0)) or not hides(found.near, found.far):
        return 0
    return 2 if found.diagonal == 0 else 3


def _pattern(value: Value, depth: int) -> CausalMask | None:
    if isinstance(value, Constant):
        return _uniform(value.value) if value.value.size == 1 else _mask_in(value.value)
    if isinstance(value, Parameter):
        return _noted(value) if value.kind == "constant" and CAUSAL_MASK in value.attrs else None
    if not isinstance(value, Node) or not isinstance(value.type, TensorType) or not depth:
        return None
    op = value.op
    if isinstance(op, Fill | Ones | Zeros):
        number = op.value if isinstance(op, Fill) else int(isinstance(op, Ones))
        return _uniform(np.asarray(number).astype(value.type.dtype.numpy))
    if isinstance(op, Elementwise):
        return _elementwise(op, value, depth)
    if not isinstance(op, Tril | Triu | Reshape | ExpandDims | BroadcastTo):
        return None
    found = _pattern(value.inputs[0], depth - 1)
    if found is not None and isinstance(op, Tril | Triu):
        return _triangle(op, found)
    if found is None or found.diagonal is None or value.inputs[0].shape[-2:] == value.shape[-2:]:
        return found
    return None


def _elementwise(op: Elementwise, node: Node, depth: int) -> CausalMask | None:
    diagonal: int | None = None
    pairs: list[Array] = []
    for operand in node.inputs:
        found = _pattern(operand, depth - 1)
        if found is None:
            return None
        if found.diagonal is not None:
            if operand.shape[-2:] != node.shape[-2:] or diagonal not in (None, found.diagonal):
                return None
            diagonal = found.diagonal
        pairs.append(found.pair)
    if not pairs or op.has_side_effect:
        return None
    with np.errstate(all="ignore"):
        pair = np.asarray(op.kernel(Compiling())(*pairs))
    return CausalMask(diagonal, pair) if pair.shape == (2,) else None


def _triangle(op: Tril | Triu, found: CausalMask) -> CausalMask | None:
    """Return the triangle that Tril or Triu takes from a tensor of equal elements."""
    if found.diagonal is not None:
        return None
    zero = np.zeros_like(found.near)
    if isinstance(op, Tril):
        return CausalMask(op.diagonal, np.stack([found.near, zero]))
    return CausalMask(op.diagonal - 1, np.stack([zero, found.near]))


def _uniform(number: Array) -> CausalMask:
    return CausalMask(None, np.broadcast_to(np.asarray(number).reshape(()), (2,)))


def _mask_in(array: Array) -> CausalMask | None:
    """Return the triangle of an array if its first row has numbers of both kinds."""
    if array.ndim < 2 or not array.size:
        return None
    rows, columns = int(array.shape[-2]), int(array.shape[-1])
    first: Array = array.reshape(-1, rows, columns)[0]
    near, far = first[0, 0], first[0, -1]
    others: Array = np.flatnonzero(first[0] != near)
    # Most large constants are something else, which their first and last rows show.
    if not others.size or first[-1, 0] != near or (first[0, others[0] :] != far).any():
        return None
    diagonal = int(others[0]) - 1
    for row in range(rows):  # nothing as large as the mask is made
        border = min(max(row + diagonal + 1, 0), columns)
        if (array[..., row, :border] != near).any() or (array[..., row, border:] != far).any():
            return None
    return CausalMask(diagonal, np.stack([near, far]))


def _noted(parameter: Parameter) -> CausalMask:
    fact = parameter.attrs[CAUSAL_MASK]
    match fact:
        case (int(diagonal), int() | float() as near, int() | float() as far):
            dtype = parameter.tensor_type.dtype
            return CausalMask(diagonal, np.array([near, far]).astype(dtype.numpy))
        case _:
            raise MspcError(
                f"the triangle of parameter {parameter.name} is {fact!r}",
                notes=["it must be the diagonal, the number up to it and the number after it, as (0, 0.0, -inf)"],
            )


# Rows of scores whose keys are all hidden: where there can be some, and the graph of what they give.
#
# Written out, such a row attends to all keys alike where a mask puts a number in the place of scores, and is NaN where
# scores become minus infinity. The fused operator gives zeros there, or on a GPU what its kernel makes of them.


ROWS_HOLD = "rows_hold"
"""The attribute of a Bool constant: whether every row of its last dimension holds a False, and whether a True."""
LARGEST = 1 << 22
"""Elements up to which a mask is computed from constants to look for rows."""
SMALL = -1000.0
"""A number above it that is added to scores hides no key beside a mask, which puts MASKED or less in their place."""
MADE = Fill | Ones | Zeros | Range
MOVED = Reshape | ExpandDims | BroadcastTo | Squeeze | Transpose


def note_rows(graph: Graph, constants: Mapping[str, Any]) -> None:
    """Write the attribute `rows_hold` of Bool constants and the bounds of loop values. constants: elements by name."""
    note_bounds(graph)
    for parameter in graph.parameters:
        if parameter.kind != "constant" or parameter.tensor_type.dtype != BOOL or parameter.name not in constants:
            continue
        rows = np.atleast_1d(np.asarray(constants[parameter.name]))
        holds = bool((~rows).any(-1).all()), bool(rows.any(-1).all())
        if any(holds):
            parameter.attrs[ROWS_HOLD] = holds


def forget_rows(graph: Graph) -> bool:
    """Remove the attribute `rows_hold`, which is wrong for a slice, and the bounds of integers; return True if any."""
    attrs = [parameter.attrs for parameter in graph.parameters]
    return any([each.pop(name, None) is not None for each in attrs for name in (ROWS_HOLD, BOUNDS)])


@iterative
def every_row_holds(mask: Value, wanted: bool) -> Generator[Any, bool, bool]:
    """Return whether the graph shows that every row of a Bool tensor holds `wanted` at every step."""
    triangle = causal_mask_of(mask)
    if triangle is not None and triangle.diagonal is not None:
        queries, keys = mask.shape[-2:]
        near, far = triangle.diagonal >= 0, triangle.diagonal < keys - queries
        return bool((near and triangle.near == wanted) or (far and triangle.far == wanted))
    if isinstance(mask, Parameter):
        return mask.attrs.get(ROWS_HOLD, (False, False))[wanted]
    if isinstance(mask, Node) and isinstance(mask.op, LogicalNot):
        return (yield mask.inputs[0], not wanted)
    if isinstance(mask, Node) and isinstance(mask.op, Reshape | ExpandDims | BroadcastTo):
        before = mask.inputs[0]
        if before.shape and before.shape[-1] == mask.shape[-1] and (yield before, wanted):
            return True
    if isinstance(mask, Node) and isinstance(mask.op, Greater | GreaterEqual | Less | LessEqual):
        if _first_holds(mask.op, *mask.inputs) is wanted:
            return True
    elements = elements_of(mask)
    return elements is not None and bool((elements == wanted).any(-1).all())


def _first_holds(op: Op, left: Value, right: Value) -> bool | None:
    """Return the result of a comparison for the first element of every row, or None if it varies."""
    if isinstance(op, Less | LessEqual):
        left, right = right, left
    above, below = _firsts(left), _firsts(right)
    if above is None or below is None:
        return None
    equal = isinstance(op, GreaterEqual | LessEqual)
    if above.low > below.high or (equal and above.low == below.high):
        return True
    return False if above.high < below.low or (not equal and above.high == below.low) else None


@iterative
def _firsts(value: Value) -> Generator[Any, IntegerRange | None, IntegerRange | None]:
    """Return the bounds of the first elements of rows, or those of all elements if no more is known."""
    if isinstance(value, Node) and isinstance(value.op, Range) and value.op.dtype.is_integer and value.op.count < 0:
        return IntegerRange(int(value.op.start), int(value.op.start))
    if isinstance(value, Node) and isinstance(value.op, Reshape | ExpandDims | BroadcastTo):
        before = value.inputs[0]
        if before.shape and before.shape[-1] == value.shape[-1]:
            return (yield (before,))
    return bounds_of(value)


@iterative
def elements_of(value: Value) -> Generator[Any, Any, Any]:
    """Return the elements of a small value made of constants alone, or None."""
    if isinstance(value, Constant):
        return value.value
    if not isinstance(value, Node) or not isinstance(value.type, TensorType) or value.type.size > LARGEST:
        return None
    op = value.op
    if not isinstance(op, Elementwise | MADE | MOVED | Tril | Triu) or op.has_side_effect:
        return None
    inputs: list[Any] = []
    for operand in value.inputs:
        inputs.append((yield (operand,)))
        if inputs[-1] is None:
            return None
    with np.errstate(all="ignore"):
        return np.asarray(op.kernel(Compiling())(*inputs))


def may_be_infinite(shift: Value) -> bool:
    """Return True if an addend of scores may be minus infinity: such numbers are written, or it is fed as it is."""
    dtype = shift.tensor_type.dtype.numpy
    with np.errstate(over="ignore"):
        return any(
            leaf.kind == "input" and straight
            if isinstance(leaf, Parameter)
            else np.asarray(_least(leaf)).astype(dtype) == -math.inf
            for leaf, straight in _leaves(shift)
        )


def may_hide(shift: Value) -> bool:
    """Return True if an addend of scores may be SMALL or less, so that it hides keys."""
    return any(
        leaf.kind != "parameter" if isinstance(leaf, Parameter) else _least(leaf) <= SMALL for leaf, _ in _leaves(shift)
    )


def _least(leaf: Value) -> float:
    if isinstance(leaf, Constant):
        return float(np.min(leaf.value)) if leaf.value.size else 0.0
    return float(leaf.op.value) if isinstance(leaf, Node) and isinstance(leaf.op, Fill) else 0.0


def _leaves(value: Value) -> Iterator[tuple[Value, bool]]:
    """Return the floating-point values a tensor is computed from, and whether they are only moved and cast."""

    def is_computed(at: Value) -> bool:
        return isinstance(at, Node) and isinstance(at.op, Elementwise | MOVED | Tril | Triu)

    def operands(leaf: tuple[Value, bool]) -> Iterator[tuple[Value, bool]]:
        at, straight = leaf
        if isinstance(at, Node) and is_computed(at):
            straight = straight and (isinstance(at.op, Cast | Select) or not isinstance(at.op, Elementwise))
            yield from ((v, straight) for v in at.inputs if isinstance(v.type, TensorType) and v.type.dtype.is_float)

    return (leaf for leaf in reached([(value, True)], operands) if not is_computed(leaf[0]))


def with_hidden_rows(b: Builder, out: Value, mask: Value, value: Value, layout: str, filled: float) -> Node:
    """Replace the rows of an attention's result in `layout` that `mask` hides.

    They become the mean of the values if scores were set to the number `filled`, NaN if it is infinite. Gradients
    follow from the operators.
    """
    rows = _in_layout(b, b.emit(ReduceAll(axis=(-1,), keep_dims=True), mask), layout)
    sequence = -3 if layout == "BSND" else -2
    mean = b.emit(ReduceMean(axis=(sequence,), keep_dims=True), value)
    heads = {"BNSD": 1, "BSND": 2}.get(layout)
    if heads is not None and 1 < value.shape[heads] < out.shape[heads]:  # each serves several of the query's
        mean = b.emit(RepeatInterleaveInt(out.shape[heads] // value.shape[heads], heads), mean)
    if not math.isfinite(filled):
        # Of heads with such a row alone, as NaN goes into the gradients of all their values.
        some = b.emit(ReduceAny(axis=(sequence,), keep_dims=True), rows) if len(rows.shape) >= -sequence else rows
        mean = b.emit(Mul(), mean, _nan_where(b, some, out))
    return b.emit(Select(), rows, mean, out)


def with_infinite_rows(b: Builder, out: Value, shift: Value, layout: str) -> Node:
    """Return an attention's result with NaN in the rows of which `shift` is minus infinity throughout, and their
    gradients."""
    hidden = b.emit(Equal(), shift, b.constant(-math.inf, shift.tensor_type.dtype))
    rows = _in_layout(b, b.emit(ReduceAll(axis=(-1,), keep_dims=True), hidden), layout)
    return b.emit(Mul(), out, _nan_where(b, rows, out))


def _nan_where(b: Builder, rows: Value, out: Value) -> Node:
    dtype = out.tensor_type.dtype
    return b.emit(Select(), rows, b.constant(math.nan, dtype), b.constant(1, dtype))


def _in_layout(b: Builder, rows: Value, layout: str) -> Value:
    rank = len(rows.shape)
    if layout != "BSND" or rank < 2:
        return rows
    if rank == 2:
        return b.emit(ExpandDims(axis=1), rows)
    return b.emit(Transpose((*range(rank - 3), rank - 2, rank - 3, rank - 1)), rows)
