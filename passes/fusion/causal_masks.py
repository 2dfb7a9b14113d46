"""Finds the values that are causal masks: one number up to a diagonal and another behind it, which hides the future.

A large constant is a parameter whose elements are not in the graph; `note_causal_masks` writes what they are like
to its attribute `triangle`, as in `triangle: (0, 0.0, -inf)`. The pass that reads it takes it away, since it holds no
longer for a slice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Constant, Graph, Node, Parameter, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import TensorType
from mspc.ops.bases import Elementwise
from mspc.ops.tensor.broadcast import BroadcastTo
from mspc.ops.tensor.creation import Fill, Ones, Tril, Triu, Zeros
from mspc.ops.tensor.reshape import ExpandDims, Reshape
from mspc.passes.cleanup.simplify import Compiling

CAUSAL_MASK = "triangle"
"""The attribute of a parameter whose elements are those of a causal mask."""
DEPTH = 8
"""How many operators between constants and a mask are looked at."""

Array = Any


@dataclass(frozen=True)
class CausalMask:
    """A tensor whose matrices, of its last two dimensions, are all alike.

    diagonal: elements with column - row <= diagonal are `near`, the others `far`. None where all are alike.
    pair: (near, far), an array of the tensor's element type.
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
    """Take away the attribute `triangle`; True where there was one."""
    return any([parameter.attrs.pop(CAUSAL_MASK, None) is not None for parameter in graph.parameters])


def causal_mask_of(value: Value) -> CausalMask | None:
    """What `value` is at every step, if that is a triangle, made of constants by operators that preserve one.

    Raises:
        MspcError: an attribute `triangle` is none.
    """
    found = _pattern(value, DEPTH)
    return found if found is not None and found.diagonal is not None else None


def causal_mode(value: Value, scores: tuple[int, ...], hides: Callable[[Any, Any], bool]) -> int:
    """The `sparse_mode` of an attention that says the same as `value`, which is added to or masks scores of shape
    [..., queries, keys]: 2 or 3; 0 where `value` is no triangle or another one. `hides` says of two elements whether
    the first leaves a score as it is and the second hides it.
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
    """The triangle that Tril or Triu takes out of a tensor whose elements are all alike."""
    if found.diagonal is not None:
        return None
    zero = np.zeros_like(found.near)
    if isinstance(op, Tril):
        return CausalMask(op.diagonal, np.stack([found.near, zero]))
    return CausalMask(op.diagonal - 1, np.stack([zero, found.near]))


def _uniform(number: Array) -> CausalMask:
    return CausalMask(None, np.broadcast_to(np.asarray(number).reshape(()), (2,)))


def _mask_in(array: Array) -> CausalMask | None:
    """The triangle that an array is, if its first row has numbers of both kinds."""
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
                notes=["it must be the diagonal, the number up to it and the number behind it, as (0, 0.0, -inf)"],
            )
