"""Says whether a condition depends on the contents of a tensor."""

from __future__ import annotations

from typing import Any

from mspc.api.common.parameter import Parameter
from mspc.compiler.frontend.operators import reshape
from mspc.compiler.frontend.state import Tracer
from mspc.ir.graph import Value
from mspc.ir.types import BOOL, TensorType


def condition_of(tracer: Tracer, value: Any, only_bool: bool = False) -> Value | None:
    """`value` as a Bool of shape () that only the run knows; None where it is no tensor of one element, or, with
    `only_bool`, no Bool."""
    if not isinstance(value, Value | Parameter):
        return None
    tensor = tracer.value(value)
    if not isinstance(tensor.type, TensorType) or tensor.type.size != 1:
        return None
    if tensor.type.dtype != BOOL:
        if only_bool:
            return None
        tensor = tracer.emit(tracer.op("NotEqual"), tensor, 0)
    return reshape(tracer, tensor, ())


def negation(tracer: Tracer, condition: Value) -> Value:
    """`not condition`."""
    return tracer.emit(tracer.op("LogicalNot"), condition)
