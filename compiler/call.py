"""Divides the arguments of a launch into tensors fed at every step and values known at compile time."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from mspc.compiler.config import Config, Fed, feed
from mspc.ir.graph import Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Layout
from mspc.ir.text.limits import DEEPEST_TUPLE
from mspc.ir.types import TensorType, dtype_of
from mspc.mindspore_api.common.parameter import Parameter
from mspc.mindspore_api.common.tensor import REPLICATED, STORED, Tensor
from mspc.mindspore_api.errors import ApiTypeError

Call = tuple[Any, ...]
"""Arguments of a launch: TensorTypes, Placed tensors, Fixed values, and tuples of these."""


@dataclass(frozen=True)
class Placed:
    """A tensor that is not data. type: on one rank. placement: REPLICATED, or the Layout of which it is a slice."""

    type: TensorType
    placement: Layout | str


class Fixed:
    """An argument known at compile time. Another value leads to another graph."""

    def __init__(self, value: Any) -> None:
        self._value: Callable[[], Any] = lambda: value
        plain = isinstance(value, bool | int | float | str | bytes | None)
        self.identity = (type(value).__name__, value) if plain else id(value)

    @property
    def value(self) -> Any:
        """The argument; None for an object that the script no longer has."""
        return self._value()

    def stored(self) -> Fixed:
        """Return the same argument without keeping an object of the script alive."""
        value = self.value
        found = Fixed(None)
        found.identity = self.identity
        try:
            found._value = weakref.ref(value)
        except TypeError:  # Python has no weak references to a number or a list
            found._value = self._value
        return found

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fixed) and self.identity == other.identity

    def __hash__(self) -> int:
        return hash(self.identity)


def describe_call(args: Sequence[Any], tensors: list[Tensor]) -> Call:
    """Return the arguments with types in the places of their tensors, which are appended to `tensors`.

    Raises TypeError if tuples nest deeper than DEEPEST_TUPLE.
    """
    return tuple(_argument(arg, tensors, i) for i, arg in enumerate(args))


def _argument(arg: Any, tensors: list[Tensor], place: int, depth: int = 0) -> Any:
    if isinstance(arg, TensorType):
        return arg
    if isinstance(arg, Tensor) and not isinstance(arg, Parameter):
        tensors.append(arg)
        type = TensorType(dtype_of(arg.dtype), tuple(arg.shape))
        return type if arg.placement in (None, STORED) else Placed(type, arg.placement)
    if isinstance(arg, np.ndarray | np.generic):
        return _argument(Tensor(arg), tensors, place)
    if isinstance(arg, tuple | list):
        if depth == DEEPEST_TUPLE:
            raise ApiTypeError(f"argument {place} is a {arg.__class__.__name__} nested more than {DEEPEST_TUPLE} deep")
        return tuple([_argument(item, tensors, place, depth + 1) for item in arg])
    return Fixed(arg)


def stored_call(call: Any) -> Any:
    """Return the call as the key of a graph, without keeping objects of the script alive."""
    if isinstance(call, tuple):
        return tuple([stored_call(arg) for arg in call])
    return call.stored() if isinstance(call, Fixed) else call


def script_objects(call: Any) -> Iterator[Any]:
    """Yield the arguments that are compared by their ids."""
    for arg in call:
        if isinstance(arg, tuple):
            yield from script_objects(arg)
        elif isinstance(arg, Fixed) and not isinstance(arg.identity, tuple):
            yield arg.value


def call_tensors(call: Any) -> Iterator[TensorType | Placed]:
    """Yield the tensors of a call, in order."""
    for arg in call:
        if isinstance(arg, TensorType | Placed):
            yield arg
        elif isinstance(arg, tuple):
            yield from call_tensors(arg)


def feed_call(config: Config, target: Any, call: Call, global_types: bool = False) -> list[Fed]:
    """Return how the tensors of `target(*call)` arrive. Raise MspcError as `feed` does.

    Arguments of a target that takes no data are replicated, unless a graph returned them with a layout.
    """
    tensors = list(call_tensors(call))
    types = [t.type if isinstance(t, Placed) else t for t in tensors]
    placements = [t.placement if isinstance(t, Placed) else None for t in tensors]
    if not takes_data(target):
        placements = [REPLICATED if p is None else p for p in placements]
    layouts: list[Layout | None] = []  # None for data, and for a slice for another number of ranks
    for type, placement in zip(types, placements, strict=True):
        if placement == REPLICATED:
            layouts.append(Layout.replicated(config.ranks, type.rank))
        else:
            fits = isinstance(placement, Layout) and placement.ranks == config.ranks
            layouts.append(placement if fits and len(placement.dims) == type.rank else None)
    return feed(config, types, global_types, layouts)


def takes_data(target: Any) -> bool:
    """Return whether a target's tensors are data: see `Cell.takes_data`."""
    while hasattr(target, "parallel_settings"):
        target = target.network
    return bool(getattr(target, "takes_data", True))


def placements_of(config: Config, results: Sequence[Value]) -> list[Layout | str | None]:
    """Return the placements of the tensors that a graph returns, for `Tensor.placement`: None for tensors that the
    script could have fed in the same layout itself."""
    if not config.sharded or config.ranks == 1 or config.dataset_strategy == "full_batch":
        return [None] * len(results)
    found: list[Layout | str | None] = []
    for value in results:
        layout = value.layout
        if not isinstance(value.type, TensorType) or not value.type.shape:
            found.append(None)
        elif not isinstance(layout, Layout) or layout.is_replicated:
            found.append(REPLICATED)
        else:
            rows = Layout.of((layout.ranks,), [(0,), *[()] * (len(value.shape) - 1)])
            found.append(None if layout == rows else layout)
    return found


def graph_arguments(call: Call, fed: Sequence[Fed]) -> list[Any]:
    """Return the arguments for the front end, with the types that the tensors have in the graph."""
    types = iter(fed)
    return [_in_graph(arg, types) for arg in call]


def _in_graph(arg: Any, fed: Iterator[Fed]) -> Any:
    if isinstance(arg, TensorType | Placed):
        return next(fed).graph_type
    if isinstance(arg, tuple):
        return tuple([_in_graph(item, fed) for item in arg])
    return arg.value
