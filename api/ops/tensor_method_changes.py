"""These methods change a tensor in place, `x.add_(y)`: outside of a network any tensor, in a network a parameter. What
a network computes has no place: there `x = x.add(y)` says the same."""

from __future__ import annotations

from typing import Any

from mspc.api import ops
from mspc.api.ops.checked import TensorLike


def index_copy_(self: Any, dim: int, index: TensorLike, tensor: TensorLike) -> Any:
    """The slices along `dim` that `index` names become those of another tensor."""
    turned, rows = ops.swapaxes(self, 0, dim), ops.swapaxes(ops.cast(tensor, self.dtype), 0, dim)
    found = ops.TensorScatterUpdate()(turned, ops.ExpandDims()(index, -1), rows)
    return ops.assign(self, ops.swapaxes(found, 0, dim))


def put_(self: Any, index: TensorLike, source: TensorLike, accumulate: bool = False) -> Any:
    """The elements at the places `index`, in their order, become those of the source, or these are added."""
    flat, places = ops.Reshape()(self, (-1,)), ops.Reshape()(index, (-1,))
    places = ops.Select()(ops.Less()(places, 0), places + self.size, places)
    values = ops.cast(ops.Reshape()(source, (-1,)), self.dtype)
    kind = ops.TensorScatterAdd() if accumulate else ops.TensorScatterUpdate()
    return ops.assign(self, ops.Reshape()(kind(flat, ops.ExpandDims()(places, -1), values), self.shape))


def exponential_(self: Any, lambd: float = 1.0, *, generator: Any = None) -> Any:
    """The tensor becomes numbers of the exponential distribution with this rate."""
    samples = 1.0 - ops.rand(*self.shape, seed=generator)
    return ops.assign(self, ops.cast(-ops.Log()(samples) / lambd, self.dtype))
