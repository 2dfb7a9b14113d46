"""Names and attributes: lookup of the program's values, attributes of tensors, and cells read from files."""

from __future__ import annotations

import ast
import builtins
import functools
import types
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np

from mspc.compiler.frontend.cell_marks import attribute_as_float, scope_of
from mspc.compiler.frontend.source import IMPORTED, names_read_early
from mspc.compiler.frontend.state import Tracer
from mspc.compiler.frontend.values import (
    MISSING,
    POISON,
    UNSET,
    Closure,
    Frame,
    OnlyInLoop,
    Poisoned,
    TensorMethod,
    Undecided,
    describe,
    nearest,
    way_of,
)
from mspc.ir.diagnostics import Frames, MspcError, kind_of
from mspc.ir.graph import Constant, Graph, Node, Value, copied_region
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import DType, TensorType
from mspc.mindspore_api.common.parameter import Parameter
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.nn.cell import Cell
from mspc.mindspore_api.nn.cell_state import Precision
from mspc.mindspore_api.nn.container import CellList
from mspc.mindspore_api.ops.function_arguments import exchanged, permutation
from mspc.mindspore_api.ops.method_table import find_method, method_names, misfit, respelled
from mspc.ops.collective.base import Collective
from mspc.ops.control.regions import RegionOp, emit_regions
from mspc.ops.op import Op


def get_attribute(tracer: Tracer, frame: Frame, node: ast.AST, base: Any, name: str) -> Any:
    """Evaluate `base.name`. Raise MspcError if there is no such attribute."""
    if isinstance(base, Value):
        tracer.at(frame, node)
        return attribute(tracer, base, name)
    if isinstance(base, Parameter) and (name in ("T", "mT", "value", "register_hook") or find_method(name) is not None):
        tracer.at(frame, node)
        return attribute(tracer, tracer.value(base), name)
    key = (id(base), name)
    if key in tracer.attributes:
        return tracer.attributes[key]
    tracer.attributes_read.add(key)
    if isinstance(base, Closure | TensorMethod):
        raise frame.error(node, f"{describe(base)} has no attribute '{name}'", kind=AttributeError, code="E0202")
    if way_of(base) is not None:
        tracer.at(frame, node)
        return tracer.either(lambda found: get_attribute(tracer, frame, node, found, name), base)
    if isinstance(base, Undecided):
        notes = ["let both branches leave one type and shape"]
        raise frame.error(node, f"'{name}' of {base}", notes, TypeError, "E0205")
    try:
        found = getattr(base, name)
    except AttributeError as error:
        tracer.reads.attribute(base, name)
        mistake = frame.error(node, *_missing(base, name, error), kind=AttributeError, code="E0202")
        mistake.python = error
        raise mistake from None
    except MspcError as error:
        raise frame.error(node, error.message, error.notes, error.kind) from None
    except Exception as error:
        message = f"reading attribute '{name}' raised {type(error).__name__}: {error}"
        raise frame.error(node, message, kind=kind_of(error)) from None
    tracer.reads.attribute(base, name, found)
    if isinstance(base, Cell):
        return _of_cell(tracer, frame, node, base, name, found)
    return found


def _of_cell(tracer: Tracer, frame: Frame, node: ast.AST, cell: Cell, name: str, found: Any) -> Any:
    if not isinstance(found, Tensor | np.ndarray):
        return found
    kind = cell.get_flags().get("to_float") if frame.phase != "update" else None
    path = tracer.cell_paths.get(id(cell), "")
    full = f"{path}.{name}" if path else name
    if not isinstance(found, Parameter):
        name_tensor(tracer, found, full)
    if kind is None:
        return found
    tracer.at(frame, node)
    return attribute_as_float(tracer, found, kind, full)


def set_attribute(tracer: Tracer, base: Any, name: str, value: Any) -> None:
    """Assign `base.name = value` for later reads of the compiled function. The object itself is not changed. Raise
    MspcError if the value would have to be stored from call to call, or the attribute cannot hold a value."""
    key = (id(base), name)
    is_of_its_class = hasattr(type(base), name) or (isinstance(base, Cell) and name in _of_every_cell())
    plain = isinstance(base, Cell) or (hasattr(base, "__dict__") and not isinstance(base, type | types.ModuleType))
    if not plain or isinstance(base, Closure | TensorMethod | Tensor) or is_of_its_class:
        raise tracer.error(
            f"attribute '{name}' cannot be set inside a compiled function",
            ["set attributes in __init__; only a Parameter can get a new value here"],
        )
    if isinstance(value, Cell | Parameter) or isinstance(getattr(base, name, None), Cell):
        raise tracer.error(f"attribute '{name}' cannot become another cell or Parameter: make them in __init__")
    made_here = id(base) in tracer.owned
    if key in tracer.attributes_read and key not in tracer.attributes and not made_here:
        raise tracer.error(
            f"attribute '{name}' is set after it is read, so that its value would be stored from call to call",
            ["make it a Parameter(..., requires_grad=False) in __init__, and assign to that"],
        )
    if key not in tracer.attributes and not made_here:
        tracer.warn(
            f"attribute '{name}' keeps its new value until the compiled function ends; the script does not see it"
        )
    tracer.keep(base)
    tracer.runs.clear()  # earlier results may depend on the attribute
    if key not in tracer.attributes_before:
        tracer.attributes_before[key] = getattr(base, name, MISSING)
    tracer.attributes[key] = value


@functools.cache
def _of_every_cell() -> frozenset[str]:
    return frozenset(vars(Cell()))


def name_tensor(tracer: Tracer, tensor: Any, name: str) -> None:
    """Record the name of a constant tensor of the script at its first use."""
    if id(tensor) not in tracer.tensor_names:
        tracer.keep(tensor)
        tracer.tensor_names[id(tensor)] = name


def _missing(base: Any, name: str, error: AttributeError) -> tuple[str, list[str]]:
    if isinstance(base, types.ModuleType):
        text = str(error)
        if base.__name__.startswith("mspc") and "no attribute" not in text:
            return text, nearest(name, dir(base))
        return f"module '{base.__name__}' has no attribute '{name}'", nearest(name, dir(base))
    kind = base.__name__ if isinstance(base, type) else type(base).__name__
    return f"'{kind}' object has no attribute '{name}'", nearest(name, [n for n in dir(base) if not n.startswith("_")])


def look_up(tracer: Tracer, frame: Frame, node: ast.Name) -> Any:
    """Return the value of a variable. Raise MspcError if there is no such name, or it has no value yet, and Poisoned if
    an earlier error left it without a value."""
    name = node.id
    found = frame.lookup(name)
    if found is POISON:
        raise Poisoned
    if found is MISSING:
        raise frame.error(
            node, f"name '{name}' is not defined", nearest(name, [*frame.locals, *frame.globals, *vars(builtins)]),
            kind=NameError, code="E0201",
        )  # fmt: skip
    if isinstance(found, OnlyInLoop):
        text = f"variable '{name}' has no value here if the loop that assigns it runs zero iterations"
        raise frame.error(node, text, ["give it a value before the loop"], kind=NameError)
    if found is UNSET:
        text = f"variable '{name}' has no value here: no statement that ran before assigns it"
        raise frame.error(node, text, kind=NameError, code="E0216")
    if not frame.source.file.is_own and frame.is_global(name):
        tracer.reads.name(frame.globals, name, found)
    if isinstance(found, Tensor | np.ndarray) and not isinstance(found, Parameter):
        name_tensor(tracer, found, name)
    return found


def take_early_reads(tracer: Tracer, frame: Frame) -> None:
    """Give names that a function reads before it binds them their values from outside, as MindSpore does."""
    for name, node in names_read_early(frame.source.tree).items():
        found = MISSING if frame.enclosing is None else frame.enclosing(name)
        if found is MISSING or found is UNSET:
            found = frame.globals.get(name, MISSING)
        if found is not MISSING and name not in frame.locals:
            frame.locals[name] = found
            tracer.at(frame, node)
            tracer.warn(f"variable '{name}' is read here before it has a value; the outer value is used")


def register_cells(tracer: Tracer, cell: Cell, held: str) -> None:
    """Record the names of the cells below `cell`, for scopes and for the names of constants."""
    if id(cell) in tracer.cell_paths:
        return
    if held and held.isidentifier():
        tracer.cell_names.setdefault(id(cell), held)
    _register(tracer, cell, "", "")


def _register(tracer: Tracer, cell: Cell, path: str, prefix: str) -> None:
    tracer.keep(cell)
    tracer.cell_paths[id(cell)] = path
    for name, child in cell.name_cells().items():
        if id(child) in tracer.cell_paths:
            continue
        label = f"{prefix}{name}"
        tracer.cell_names.setdefault(id(child), label)
        below = f"{label}-{type(child).__name__}/" if isinstance(child, CellList) else ""
        _register(tracer, child, f"{path}.{name}" if path else name, below)


def attribute(tracer: Tracer, x: Value, name: str) -> Any:
    """Evaluate `x.name`: a value known at compile time, another tensor, or a method to be called. Raise MspcError if
    tensors have no such attribute."""
    known = ATTRIBUTES.get(name)
    if known is not None:
        return known(tracer, x)
    if find_method(name) is not None or name == "register_hook":
        return TensorMethod(x, name)
    if name == "value":
        return TensorMethod(x, "copy")
    if name in OUTSIDE:
        instead = OUTSIDE[name] or "compute with the tensor itself, or read its values at the call of the network"
        raise tracer.error(
            f"x.{name} needs the contents of a tensor, which are not known at compile time", [instead], code="E0204"
        )
    raise tracer.error(
        f"a tensor has no attribute '{name}'",
        nearest(name, [*ATTRIBUTES, *method_names()]),
        kind=AttributeError,
        code="E0202",
    )


def method_function(
    tracer: Tracer, name: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[Callable[..., Any], dict[str, Any]]:
    """Return the function that implements a method called with these arguments (the tensor first), and the keyword
    arguments under the function's own names. Raise MspcError if there is no such method, or arguments do not fit."""
    function = find_method(name)
    if function is None:
        raise tracer.error(f"Tensor.{name}() does not take tensors of the graph", kind=TypeError)
    named = respelled(function, kwargs)
    wrong = misfit(name, function, args, named)
    if wrong:
        raise tracer.error(wrong, kind=TypeError)
    return function, named


ATTRIBUTES: dict[str, Callable[[Tracer, Value], Any]] = {
    "shape": lambda t, x: x.shape,
    "dtype": lambda t, x: x.tensor_type.dtype,
    "ndim": lambda t, x: len(x.shape),
    "size": lambda t, x: x.tensor_type.size,
    "itemsize": lambda t, x: x.tensor_type.dtype.itemsize,
    "nbytes": lambda t, x: x.tensor_type.nbytes,
    "T": lambda t, x: t.emit(t.op("Transpose", perm=permutation((), len(x.shape))), x),
    "mT": lambda t, x: t.emit(t.op("Transpose", perm=exchanged("mT", len(x.shape), -1, -2)), x),
    "name": lambda t, x: x.name,
}
_ARRAY = "x.shape, x.dtype and x.size are known; mindspore.ops and mindspore.numpy have NumPy's functions"
OUTSIDE = {
    "asnumpy": _ARRAY, "numpy": _ARRAY, "item": "a tensor of one element may take the place of a number: x * y[0]",
    "tolist": "x[0], x[1] and `for row in x` give its elements", "data": "", "init_data": "",
    "set_data": "ops.assign(parameter, value) and `self.parameter = value` give a parameter a new value",
}  # fmt: skip
"""Methods that need values, and the alternative that the message suggests."""


_CALL = ast.Constant(None)


def call_imported(tracer: Tracer, frame: Frame, node: ast.AST, cell: Any, args: Sequence[Any],
                  kwargs: Mapping[str, Any]) -> Any:  # fmt: skip
    """Call a cell with `is_imported`, through its method `evaluate`. Raise MspcError for a wrong call."""
    outer = frame.frames(node)
    scope = scope_of(tracer, frame.scope, cell) if frame.depth else frame.scope
    evaluator = _FrontEnd(tracer, frame, outer, scope, cell.get_flags().get("precision"), cell.plan)
    try:
        return cell.evaluate(evaluator, args, kwargs)
    except MspcError as error:
        if error.location is not None:
            raise
        raise frame.error(node, error.message, error.notes, error.kind) from None


class _FrontEnd:
    """Interface that an imported cell uses to emit nodes, each at its own line and in its own module, with the
    strategies of its plan."""

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
        self._reason = ""
        self._repeated = RepeatedCalls(tracer)

    def at(self, frames: Frames, scope: str, precision: Precision | None, reason: str = "") -> None:
        made = Frame(IMPORTED, {}, {}, None, self._caller, (*frames, *self._outer))
        made.scope = f"{self._scope}/{scope}" if scope else self._scope
        made.precision = self._precision if precision is None else precision
        self._frame, self._reason = made, reason
        self._tracer.at(made, _CALL)

    @property
    def nodes(self) -> Sequence[Node]:
        """The nodes of the graph so far."""
        return self._tracer.builder.nodes

    def call(self, function: Callable[..., Any], operands: Sequence[Any], repeats: bool = False) -> Any:
        builder = self._tracer.builder
        before = len(builder.nodes)

        def run() -> Any:
            return self._tracer.call(self._frame, _CALL, function, operands, {})

        found = self._repeated.call(self._frame, function, operands, run) if repeats else run()
        for node in builder.nodes[before:] if self._reason else ():
            if isinstance(node.op, Collective):
                node.attrs["reason"] = self._reason
        return found if self._plan is None else self._plan.given(builder, before, found)

    def graph(self, graph: Graph, operands: Sequence[Any]) -> list[Value]:
        """Add the nodes of a graph, with operands for its parameters, and return its results. Raise MspcError if a node
        has another type than its operator gives."""
        tracer, builder = self._tracer, self._tracer.builder
        found: dict[Value, Value] = {}
        for parameter, operand in zip(graph.parameters, operands, strict=True):
            found[parameter] = tracer.value(operand)
        known: dict[Graph, Graph] = {}
        for node in graph.nodes:
            self.at(node.frames, node.scope.partition("/")[2], None)
            inputs = [found.get(value, value) for value in node.inputs]
            regions = [copied_region(region, known=known) for region in node.regions]
            if isinstance(node.op, RegionOp):
                made = emit_regions(builder, node.op, inputs, regions, node.name)
            else:
                assert isinstance(node.op, Op)
                made = builder.emit(node.op, *inputs, name=node.name, instance=node.instance)
            if made.type != node.type:
                raise tracer.error(f"{made.label} has type {made.type}, and its file says {node.type}")
            found[node] = made
        return [found.get(value, value) for value in graph.results]

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

    def layers(
        self, carried: tuple[Any, ...], layer: Callable[[Sequence[Any]], tuple[Any, ...]],
        members: Sequence[Sequence[Parameter]], count: int,
    ) -> tuple[Any, ...] | None:  # fmt: skip
        tracer = self._tracer
        if not tracer.folds or (tracer.stages > 1 and (self._plan is None or not self._plan.stages)):
            return None
        from mspc.compiler.frontend.layers import repeated  # imported late: few networks have many equal layers

        return repeated(tracer, self._frame, carried, layer, members, count)


# Repeated calls of imported functions -----------------------------------------------------------------
# Copies the nodes of a function's earlier call with operands of the same types, for networks that are imported as
# lists of calls: equal layers read each function once.


class _Unrepeatable(Exception):
    """Another call may make other nodes."""


@dataclass(frozen=True)
class _Made:
    """A call. operands: its tensors. nodes: those it has made. result: its result."""

    operands: Sequence[Value]
    nodes: Sequence[Node]
    result: Any


class RepeatedCalls:
    """The calls of one trace."""

    def __init__(self, tracer: Tracer) -> None:
        self._tracer = tracer
        self._known: dict[Hashable, _Made] = {}

    def call(self, frame: Frame, function: Callable[..., Any], operands: Sequence[Any], run: Callable[[], Any]) -> Any:
        """Return the result of a function in a frame, from an earlier call or by `run`."""
        tensors: list[Value] = []
        try:
            key = (function, self._form(operands, tensors))
            if frame.precision is not None or frame.to_float is not None or self._tracer.guard is not None:
                raise _Unrepeatable
        except _Unrepeatable:
            return run()
        if (known := self._known.get(key)) is not None:
            return self._copied(known, tensors, frame)
        nodes, parameters = self._tracer.builder.nodes, self._tracer.graph.parameters
        before, weak, held = len(nodes), len(self._tracer.weak), len(parameters)
        result = run()
        made = _Made(tensors, nodes[before:], result)
        if len(self._tracer.weak) == weak and len(parameters) == held and _is_repeatable(made, frame):
            self._known[key] = made
        return result

    def _form(self, value: Any, tensors: list[Value]) -> Hashable:
        """Return a key of an operand, equal for equal numbers and tensors of one type; add its tensors to a list."""
        if isinstance(value, tuple | list):
            return type(value), tuple([self._form(each, tensors) for each in value])
        if value is None or isinstance(value, bool | int | str | DType):
            return type(value), value
        if isinstance(value, float):
            return float, repr(value)
        if isinstance(value, Parameter) and id(value) not in self._tracer.parameter_readers:
            value = self._tracer.value(value)
        if isinstance(value, Value) and not isinstance(value, Constant) and value not in self._tracer.weak:
            if value not in tensors:
                tensors.append(value)
            return Value, tensors.index(value), value.type
        raise _Unrepeatable

    def _copied(self, known: _Made, tensors: Sequence[Value], frame: Frame) -> Any:
        found: dict[Value, Value] = dict(zip(known.operands, tensors, strict=True))
        for node in known.nodes:
            inputs = [found.get(value, value) for value in node.inputs]
            made = Node(node.op, inputs, node.type, node.name, "", frame.scope, frame.call_frames, node.phase)
            self._tracer.builder.nodes.append(made)
            found[node] = made
        return _with(known.result, found)


def _with(result: Any, found: Mapping[Value, Value]) -> Any:
    if isinstance(result, tuple | list):
        return type(result)([_with(each, found) for each in result])
    return found.get(result, result) if isinstance(result, Value) else result


def _is_repeatable(made: _Made, frame: Frame) -> bool:
    """Return whether nodes are made of operands and constants alone, and nothing else has been changed."""
    known: set[Value] = {*made.operands}
    for node in made.nodes:
        op = node.op
        if not isinstance(op, Op) or op.mutates or op.seeds or node.regions or node.attrs or node.instance:
            return False
        if (node.scope, node.frames, node.forward) != (frame.scope, frame.call_frames, None):
            return False
        if not all(value in known or isinstance(value, Constant) for value in node.inputs):
            return False
        known.add(node)
    return _is_of(made.result, known)


def _is_of(result: Any, known: set[Value]) -> bool:
    if isinstance(result, tuple | list):
        return all(_is_of(each, known) for each in result)
    return result in known if isinstance(result, Value) else result is None or isinstance(result, bool | int | float)
