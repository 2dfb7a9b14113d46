"""Evaluates a cell whose nodes come from a file: the cell says what is called, and the front end makes the nodes."""

from __future__ import annotations

import ast
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from mspc.api.common.parameter import Parameter
from mspc.api.common.tensor import Tensor
from mspc.api.nn.cell_state import Precision
from mspc.compiler.frontend.attributes import name_tensor
from mspc.compiler.frontend.source import FunctionSource
from mspc.compiler.frontend.state import Tracer
from mspc.compiler.frontend.values import Frame
from mspc.ir.diagnostics import Frames, MspcError
from mspc.ir.graph import Value
from mspc.ir.types import TensorType


class _NoFile:
    """What a node of a file is called from: lines come with it."""

    name = ""
    is_own = False


_CALL = ast.Constant(None)
_SOURCE = FunctionSource(_NoFile(), ast.parse("lambda: 0").body[0].value, 0)  # type: ignore[arg-type, attr-defined]  # only its name is read


def call_imported(tracer: Tracer, frame: Frame, node: ast.AST, cell: Any, args: Sequence[Any],
                  kwargs: Mapping[str, Any]) -> Any:  # fmt: skip
    """What a cell with `is_imported` gives, which has a method `evaluate`. Raises MspcError."""
    outer = frame.frames(node)
    label = tracer.cell_names.get(id(cell), "")
    scope = frame.scope
    if frame.depth:
        scope = f"{scope}/{f'{label}-' if label else ''}{type(cell).__name__}"
    evaluator = _FrontEnd(tracer, frame, outer, scope, cell.get_flags().get("precision"), cell.plan)
    try:
        return cell.evaluate(evaluator, args, kwargs)
    except MspcError as error:
        if error.location is not None:
            raise
        raise frame.error(node, error.message, error.notes, error.kind) from None


class _FrontEnd:
    """Makes nodes of calls, each at its own line and in its own module; what a plan says of them is given to them."""

    def __init__(
        self, tracer: Tracer, caller: Frame, outer: Frames, scope: str, precision: Precision | None, plan: Any
    ) -> None:
        self._tracer = tracer
        self._caller = caller
        self._outer = outer
        self._scope = scope
        self._precision = precision
        self._frame = caller
        self._plan = plan

    def at(self, frames: Frames, scope: str, precision: Precision | None) -> None:
        made = Frame(_SOURCE, {}, {}, None, self._caller, (*frames, *self._outer))
        made.scope = f"{self._scope}/{scope}" if scope else self._scope
        made.precision = self._precision if precision is None else precision
        self._frame = made
        self._tracer.at(made, _CALL)

    def call(self, function: Callable[..., Any], operands: Sequence[Any]) -> Any:
        builder = self._tracer.builder
        before = len(builder.nodes)
        found = self._tracer.call(self._frame, _CALL, function, operands, {})
        return found if self._plan is None else self._plan.given(builder, before, found)

    def held(self, tensor: Tensor, name: str) -> Any:
        if isinstance(tensor, Parameter):
            return tensor
        name_tensor(self._tracer, tensor, name)
        return self._tracer.value(tensor)

    def planned(self, name: str, value: Any) -> Any:
        return value if self._plan is None else self._plan.held(self._tracer.builder, name, value)

    def type_of(self, value: Any) -> TensorType | None:
        if isinstance(value, Parameter):
            return value.type
        if isinstance(value, Tensor | np.ndarray):
            value = self._tracer.value(value)
        return value.tensor_type if isinstance(value, Value) and isinstance(value.type, TensorType) else None
