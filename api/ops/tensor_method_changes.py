"""Methods that change a tensor in place, `x.add_(y)`: outside of a network any tensor, in a network a parameter. What a
network computes has no place: there `x = x.add(y)` says the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from mspc.api import ops
from mspc.api.ops.checked import TensorLike
from mspc.api.ops.method_table import METHODS, tensor_method

_OTHERWISE = """add sub mul div floor_divide remainder clamp exp log floor sign sigmoid tanh erfinv masked_fill
masked_scatter index_add index_fill index_put scatter scatter_add addmm addr fill_diagonal bernoulli""".split()
"""Methods that give a new tensor, each of which has a form in place."""


def _in_place(name: str) -> Callable[..., Any]:
    def change(self: Any, *args: Any, **kwargs: Any) -> Any:
        return ops.assign(self, ops.cast(getattr(self, name)(*args, **kwargs), self.dtype))

    change.__doc__ = f"The tensor becomes what `{name}` gives, in its own type."
    change.__name__ = change.__qualname__ = f"{name}_"
    return change


METHODS.update({f"{name}_": _in_place(name) for name in _OTHERWISE})


def __getattr__(name: str) -> Callable[..., Any]:
    if name[:-1] not in _OTHERWISE:
        raise AttributeError(name)
    return METHODS[name]


@tensor_method()
def zero_(self: Any) -> Any:
    """The tensor becomes zeros."""
    return ops.assign(self, ops.zeros_like(self))


@tensor_method()
def fill_(self: Any, value: Any) -> Any:
    """The tensor becomes one value."""
    return ops.assign(self, ops.broadcast_to(ops.cast(value, self.dtype), self.shape))


@tensor_method()
def copy_(self: Any, src: TensorLike, non_blocking: bool = False) -> Any:
    """The tensor takes over the values of another one, repeated to its shape and in its type, before the next line runs
    whatever non_blocking says."""
    return ops.assign(self, ops.broadcast_to(ops.cast(src, self.dtype), self.shape))


@tensor_method()
def index_copy_(self: Any, dim: int, index: TensorLike, tensor: TensorLike) -> Any:
    """The slices along `dim` that `index` names become those of another tensor."""
    turned, rows = ops.swapaxes(self, 0, dim), ops.swapaxes(ops.cast(tensor, self.dtype), 0, dim)
    found = ops.TensorScatterUpdate()(turned, ops.ExpandDims()(index, -1), rows)
    return ops.assign(self, ops.swapaxes(found, 0, dim))


@tensor_method()
def put_(self: Any, index: TensorLike, source: TensorLike, accumulate: bool = False) -> Any:
    """The elements at the places `index`, in their order, become those of the source, or these are added."""
    flat, places = ops.Reshape()(self, (-1,)), ops.Reshape()(index, (-1,))
    places = ops.Select()(ops.Less()(places, 0), places + self.size, places)
    values = ops.cast(ops.Reshape()(source, (-1,)), self.dtype)
    kind = ops.TensorScatterAdd() if accumulate else ops.TensorScatterUpdate()
    return ops.assign(self, ops.Reshape()(kind(flat, ops.ExpandDims()(places, -1), values), self.shape))


@tensor_method()
def uniform_(self: Any, from_: float = 0.0, to: float = 1.0, *, generator: Any = None) -> Any:
    """The tensor becomes numbers drawn evenly from [from_, to)."""
    return ops.assign(self, ops.cast(ops.uniform(self.shape, from_, to, generator), self.dtype))


@tensor_method()
def normal_(self: Any, mean: float = 0.0, std: float = 1.0, *, generator: Any = None) -> Any:
    """The tensor becomes numbers of the normal distribution with this mean and deviation."""
    return ops.assign(self, ops.cast(ops.normal(self.shape, mean, std, generator), self.dtype))


@tensor_method()
def exponential_(self: Any, lambd: float = 1.0, *, generator: Any = None) -> Any:
    """The tensor becomes numbers of the exponential distribution with this rate."""
    drawn = 1.0 - ops.rand(*self.shape, seed=generator)
    return ops.assign(self, ops.cast(-ops.Log()(drawn) / lambd, self.dtype))


@tensor_method()
def random_(self: Any, from_: int = 0, to: Any = None, *, generator: Any = None) -> Any:
    """The tensor becomes integers drawn evenly from `from_` to `to`, without `to`; 2^24 unless given."""
    return ops.assign(self, ops.cast(ops.randint(from_, 2**24 if to is None else to, self.shape, generator),
    self.dtype))
