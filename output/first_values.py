"""Describes the first values of a compiled program's parameters and constants: as data where an initializer makes them,
as arrays where the script brought arrays."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from mspc.api.common.initializers import InitialValue
from mspc.api.common.parameter import Parameter
from mspc.compiler.frontend.trace import Traced
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Graph
from mspc.ir.initial_value import Description
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import TensorType, dtype_of


@dataclass(frozen=True)
class FirstValue:
    """The first values of a parameter or constant.

    description: how they are made; None where only the script has them. make: the global array, made when called and
        not stored. part: the same of a part of it, where that is read without the rest.
    """

    name: str
    type: TensorType
    description: Description | None
    make: Callable[[], Any]
    part: Callable[[tuple[slice, ...]], Any] | None = None


def first_values(traced: Traced, graph: Graph) -> list[FirstValue]:
    """Return the first values of all parameters and constants of a graph, in its order.

    Args:
        traced: the network that the graph is compiled from.

    Raises:
        MspcError: an initializer makes no tensor of the shape or element type that it is to make.
    """
    return [
        _first_value(p.name, traced.constants[p.name] if p.name in traced.constants else traced.parameters[p.name])
        for p in graph.parameters
        if p.kind != "input"
    ]


def _first_value(name: str, source: Any) -> FirstValue:
    """Of a Parameter of the script, a tensor that is not sampled yet, or an array."""
    initial = source.initial if isinstance(source, Parameter) else source
    if isinstance(initial, InitialValue):
        part = initial.fill if initial.in_parts else None
        try:
            described = initial.description()
        except MspcError as error:
            raise MspcError(f"parameter '{name}': {error.message}", notes=error.notes) from None
        return FirstValue(name, TensorType(initial.dtype, initial.shape), described, initial.fill, part)
    if isinstance(source, Parameter):
        return FirstValue(name, source.type, None, lambda: source.array)
    array = np.asarray(source)
    return FirstValue(name, TensorType(dtype_of(array.dtype), array.shape), None, lambda: array)
