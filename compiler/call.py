"""Arguments of a launch: which are tensors that are fed at every step, and which are known at compile time."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from mspc.api.common.parameter import Parameter
from mspc.api.common.tensor import Tensor
from mspc.compiler.config import Fed
from mspc.ir.types import TensorType

Call = tuple[Any, ...]
"""Arguments of a launch: TensorTypes, Fixed values, and tuples of both."""


class Fixed:
    """An argument that is known at compile time; another value is another graph."""

    def __init__(self, value: Any) -> None:
        self.value = value
        plain = isinstance(value, bool | int | float | str | bytes | None)
        self.identity = (type(value).__name__, value) if plain else id(value)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Fixed) and self.identity == other.identity

    def __hash__(self) -> int:
        return hash(self.identity)


def describe_call(args: Sequence[Any], tensors: list[Tensor]) -> Call:
    """The arguments with types in the places of their tensors, which are appended to `tensors`."""
    return tuple(_argument(arg, tensors) for arg in args)


def _argument(arg: Any, tensors: list[Tensor]) -> Any:
    if isinstance(arg, TensorType):
        return arg
    if isinstance(arg, Tensor) and not isinstance(arg, Parameter):
        tensors.append(arg)
        return TensorType(arg.dtype, tuple(arg.shape))
    if isinstance(arg, np.ndarray | np.generic):
        return _argument(Tensor(arg), tensors)
    if isinstance(arg, tuple | list):
        return tuple(_argument(item, tensors) for item in arg)
    return Fixed(arg)


def call_types(call: Any) -> Iterator[TensorType]:
    """Types of the tensors of a call, in order."""
    for arg in call:
        if isinstance(arg, TensorType):
            yield arg
        elif isinstance(arg, tuple):
            yield from call_types(arg)


def graph_arguments(call: Call, fed: Sequence[Fed]) -> list[Any]:
    """The call as the front end reads it: with the types that its tensors have in the graph."""
    types = iter(fed)
    return [_in_graph(arg, types) for arg in call]


def _in_graph(arg: Any, fed: Iterator[Fed]) -> Any:
    if isinstance(arg, TensorType):
        return next(fed).graph_type
    if isinstance(arg, tuple):
        return tuple(_in_graph(item, fed) for item in arg)
    return arg.value
