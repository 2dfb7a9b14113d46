"""What mspc's functions and cells hand back is a value, also of a parameter with which they have nothing to do.

It stays when the parameter is overwritten behind it. What Python hands on (names, lists, a script's own functions) is
the parameter itself.
"""

from __future__ import annotations

import ast
import types
from typing import Any

from mspc.api.common import parameter as session
from mspc.api.errors import is_own
from mspc.api.nn.cell import Cell
from mspc.compiler.frontend.state import Tracer
from mspc.compiler.frontend.values import Frame
from mspc.ir.graph import Parameter
from mspc.ops.tensor.reshape import Cast


def as_it_is(tracer: Tracer, value: Any) -> Any:
    """What a parameter holds here, as a cast to its own type, which goes again where nobody overwrites the parameter
    ahead of a reader; another value as it is."""
    if isinstance(value, session.Parameter):
        value = tracer.value(value)
    if not isinstance(value, Parameter) or value.kind != "parameter":
        return value
    return tracer.emit(Cast(dst_type=value.tensor_type.dtype), value)


def handed_back(tracer: Tracer, frame: Frame, node: ast.AST, fn: Any, result: Any) -> Any:
    """The parameter that a call in a script hands back: of a function or a cell of mspc's as it is now."""
    if not _is_of_mspc(fn):
        return result
    tracer.at(frame, node)
    return as_it_is(tracer, result)


def _is_of_mspc(fn: Any) -> bool:
    function = type(fn).construct if isinstance(fn, Cell) else getattr(fn, "__func__", fn)
    return isinstance(function, types.FunctionType) and is_own(function.__code__.co_filename)
