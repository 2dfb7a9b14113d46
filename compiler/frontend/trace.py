"""Traces a network written in Python to one graph: `construct` is parsed and interpreted over graph values, never run.

Tensors are values of the graph; everything else (numbers, shapes, attributes, cells, functions) is known at compile
time. All calls are inlined: the graph is flat. The other files of this folder compile the kinds of statements and
calls; `trace` calls them.
"""

from __future__ import annotations

import ast
import types
from collections.abc import Callable, Sequence
from dataclasses import field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from mspc.compiler.frontend.branches import either
from mspc.compiler.frontend.calls import call
from mspc.compiler.frontend.cell_marks import is_sharded_function
from mspc.compiler.frontend.expressions import assign, evaluate, evaluate_test
from mspc.compiler.frontend.operators import is_graph_value
from mspc.compiler.frontend.reads import Reads
from mspc.compiler.frontend.source import OUTERMOST, Sources
from mspc.compiler.frontend.state import PlannedStages, Tracer
from mspc.compiler.frontend.statements import block, run
from mspc.compiler.frontend.values import Closure, Frame, Poisoned, TooManyErrors, Unrolled, describe, way_of
from mspc.ir.diagnostics import MspcError, raise_all
from mspc.ir.graph import Graph, Parameter, Value, refuse_large
from mspc.ir.iterative import deep_calls
from mspc.ir.late_dataclass import dataclass
from mspc.ir.text.limits import DEEPEST_TUPLE
from mspc.ir.types import StackType, TensorType, dtype_of
from mspc.mindspore_api.common import parameter as session
from mspc.mindspore_api.common.gradient import GradientFunction, JitFunction, NamedCall
from mspc.mindspore_api.common.initializers import InitialValue
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.nn.cell import Cell
from mspc.ops.control.structural import Gradient

if TYPE_CHECKING:
    from mspc.plans.files.plan_file import StagePlan


@dataclass(frozen=True)
class Leaf:
    """Placeholder for a result of the graph in the structure that the function returns."""

    index: int


@dataclass(frozen=True)
class Either:
    """Placeholder for a returned value for which a condition, a result of the graph, selects one of two structures."""

    holds: Any
    left: Any
    right: Any


@dataclass
class Traced:
    """A network as traced by the front end.

    graph: forward and update operators, with Gradient requests. parameters: the script's Parameters by graph name.
    constants: large arrays of the script by graph name, or their initializers. structure: the returned value, with a
    `Leaf` for every tensor. ignored_strategies: number of operators whose `shard()` has no effect in this mode.
    warnings: for the user. cells: those whose `construct` was traced. reused_calls: whether a gradient reused a call
    that was in the graph already. reads: places of the script's values that became part of the graph.
    """

    graph: Graph
    parameters: dict[str, session.Parameter]
    constants: dict[str, np.ndarray | InitialValue]
    structure: Any
    ignored_strategies: int = 0
    warnings: list[str] = field(default_factory=list[str])
    cells: list[Any] = field(default_factory=list[Any])
    reused_calls: bool = False
    reads: Reads = field(default_factory=Reads)

    def without_script(self) -> Traced:
        """Return the same without the script's objects and arrays, so that it does not keep them alive."""
        return replace(self, parameters={}, constants={}, cells=[], reads=Reads())

    def rebuild(self, results: Sequence[Any]) -> Any:
        """Return the value that the function returns if the graph's results are `results`."""
        return _rebuilt(self.structure, results)

    def drop_results(self, dropped: Callable[[Value], bool]) -> None:
        """Return True in place of every tensor for which `dropped` is true."""
        returned: list[Value] = []
        places: list[Any] = []
        for value in self.graph.results:
            if dropped(value):
                places.append(True)
            else:
                places.append(Leaf(len(returned)))
                returned.append(value)
        self.structure = _rebuilt(self.structure, places)
        self.graph.results = returned


def trace(
    target: Any, args: Sequence[Any], sharded: bool = True, script_folder: str = "", name: str = "",
    other_mistakes: Callable[[Graph], list[MspcError]] | None = None, folds: bool = True, stages: int = 1,
    stage_plan: StagePlan | None = None, reuses_calls: bool = True,
) -> Traced:  # fmt: skip
    """Trace `target(*args)` to a graph.

    Args:
        target: a Cell, a function, or a gradient function.
        args: Tensors, arrays, TensorTypes or (shape, element type) pairs for tensors that are fed, also in tuples and
            lists; anything else is a constant. Shapes are those of the graph.
        sharded: whether strategies given with `shard()` apply.
        script_folder: the user's files are shown relative to it.
        name: of the graph; by default from the target.
        other_mistakes: called after errors to find further ones in the part of the graph that was traced, so
            that all are reported together.
        folds: whether equal cells whose class asks for it (`lazy_inline`) become one graph if possible.
        stages: the number of stages. stage_plan: the stages of a plan, which override those of cells.
        reuses_calls: whether gradients reuse equal calls that are in the graph already.

    Raises:
        MspcError: the network is wrong, or uses an unsupported feature; independent errors are reported together.
    """
    while hasattr(target, "parallel_settings"):
        target = target.network  # an AutoParallel cell: its settings are in the configuration already
    inner = _inner(target)
    named = f"{type(inner).__name__}_construct" if isinstance(inner, Cell) else getattr(inner, "__name__", "")
    tracer = Tracer(name or (named if named.isidentifier() else "function"), sharded, script_folder)
    tracer.folds, tracer.stages, tracer.planned = folds, stages, PlannedStages(stage_plan)
    tracer.reuses_calls = reuses_calls
    tracer.call = partial(call, tracer)
    tracer.run, tracer.block = partial(run, tracer), partial(block, tracer)
    tracer.evaluate, tracer.evaluate_test = partial(evaluate, tracer), partial(evaluate_test, tracer)
    tracer.assign, tracer.either = partial(assign, tracer), partial(either, tracer)
    result, structure, poisoned = _read(tracer, target, args)
    if tracer.errors and other_mistakes is not None:
        tracer.errors += other_mistakes(tracer.graph)
    raise_all(tracer.errors)
    assert not poisoned, "a value is missing, but no mistake was noted"
    graph = tracer.graph
    for parameter in graph.parameters:  # nodes are checked when they are made
        refuse_large(f"{parameter.kind} {parameter.name!r}", parameter.type)
    if tracer.folds and not _are_rolled(graph):
        more = False, stages, stage_plan, reuses_calls
        return trace(target, args, sharded, script_folder, name, other_mistakes, *more)
    tracer.planned.check(graph)
    graph.returns_tuple = isinstance(result, tuple | list | dict)
    ignored, cells = len(tracer.ignored), list(tracer.cells.values())
    return Traced(
        graph, tracer.parameters, tracer.constants, structure, ignored, tracer.warnings, cells, tracer.has_reused_calls,
        tracer.reads,
    )  # fmt: skip


def _read(tracer: Tracer, target: Any, args: Sequence[Any]) -> tuple[Any, Any, bool]:
    """Call the target. Return its result, the structure of it, and whether a value is missing after an error."""
    result: Any = None
    structure: Any = None
    poisoned = False
    try:
        with deep_calls(), session.without_values():
            names = _argument_names(tracer.sources, target, len(args))
            given = [_input(tracer, name, arg) for name, arg in zip(names, args, strict=True)]
            outermost = Frame(OUTERMOST, {}, {}, None, None, ())
            result = call(tracer, outermost, ast.Pass(), target, given, {})
            tracer.graph.results, structure = _results(tracer, result)
    except MspcError as error:
        tracer.errors.append(error)
    except (Poisoned, TooManyErrors):
        poisoned = True
    except RecursionError:
        tracer.errors.append(
            tracer.error("calls nest too deep: a recursion does not end at compile time", code="E0217")
        )
    return result, structure, poisoned


def _are_rolled(graph: Graph) -> bool:
    """Move the updates of cells that are one graph into loops. Return False if these cells must be inlined."""
    outside, *inside = ([node for node in each.nodes if isinstance(node.type, StackType)] for each in graph.graphs())
    if any(inside) and any(isinstance(node.op, Gradient) for node in graph.all_nodes()):
        return False  # gradients are requested for parameters, which are not stacked in that graph
    if not outside:
        return True
    from mspc.compiler.frontend.layers import roll_updates  # imported late: few networks have such cells

    try:
        roll_updates(graph)
    except Unrolled:
        return False
    return True


def _inner(target: Any) -> Any:
    """Return the cell or function wrapped by gradient requests, `jit` and `shard`."""
    while isinstance(target, GradientFunction | JitFunction | NamedCall) or is_sharded_function(target):
        target = target.fn
    return target


def _input(tracer: Tracer, name: str, arg: Any) -> Any:
    """Return an argument with a graph input, called `name`, for each tensor."""
    if isinstance(arg, session.Parameter):
        return arg
    type = _tensor_type(arg)
    if type is not None:
        made = Parameter(name, type, "input")
        tracer.graph.parameters.append(made)
        return made
    if isinstance(arg, tuple | list) and any(_has_tensor(item) for item in arg):
        items = [_input(tracer, f"{name}{i}", item) for i, item in enumerate(arg)]
        return arg.__class__(*items) if hasattr(arg, "_fields") else tuple(items)
    tracer.reads.value(arg, name)
    return arg


def _has_tensor(arg: Any) -> bool:
    return _tensor_type(arg) is not None or (isinstance(arg, tuple | list) and any(map(_has_tensor, arg)))


def _tensor_type(arg: Any) -> TensorType | None:
    if isinstance(arg, TensorType):
        return arg
    if isinstance(arg, Tensor | np.ndarray):
        return TensorType(dtype_of(arg.dtype), tuple(arg.shape))
    is_pair = isinstance(arg, tuple) and len(arg) == 2
    if is_pair and isinstance(arg[0], tuple) and not isinstance(arg[1], tuple | list):
        try:
            return TensorType(dtype_of(arg[1]), arg[0])
        except (MspcError, TypeError):
            return None
    return None


def _argument_names(sources: Sources, target: Any, count: int) -> list[str]:
    """Return names of the inputs: the arguments of construct; `inputs0`, `inputs1`, ... for `*inputs`."""
    by_name = target.names if isinstance(target, GradientFunction | NamedCall) else ()
    if by_name:
        return [*_argument_names(sources, target.fn, count - len(by_name)), *by_name]
    target = _inner(target)
    given = getattr(target, "argument_names", None)
    if given is not None:
        return [*given, *(f"input{i}" for i in range(len(given), count))][:count]
    function = target.construct if isinstance(target, Cell) else target
    function = function.fn if isinstance(function, JitFunction) else function
    is_method = isinstance(function, types.MethodType)
    function = getattr(function, "__func__", function)
    if isinstance(function, Closure) or not isinstance(function, types.FunctionType):
        return [f"input{i}" for i in range(count)]
    code = function.__code__
    names = list(code.co_varnames[int(is_method) : code.co_argcount])
    if code.co_flags & 0x04:
        star = code.co_varnames[code.co_argcount + code.co_kwonlyargcount]
        names += [f"{star}{i}" for i in range(count - len(names))]
    names += [f"input{i}" for i in range(len(names), count)]
    return names[:count]


def _results(tracer: Tracer, result: Any) -> tuple[list[Value], Any]:
    found: list[Value] = []

    def structure(value: Any, depth: int = 0) -> Any:
        if is_graph_value(value) or isinstance(value, Tensor | np.ndarray):
            found.append(tracer.value(value))
            return Leaf(len(found) - 1)
        if isinstance(value, tuple | list):
            if depth == DEEPEST_TUPLE:
                raise tracer.error(f"the network returns a tuple nested more than {DEEPEST_TUPLE} deep", code="E0211")
            items = [structure(item, depth + 1) for item in value]
            return _like(value, items)
        if isinstance(value, dict):
            return {key: structure(item) for key, item in value.items()}
        if value is None or isinstance(value, bool | int | float | str | np.generic):
            return value
        if way_of(value) is not None:
            return Either(structure(value.holds), structure(value.left), structure(value.right))
        raise tracer.error(f"the network returns {describe(value)}; it may return tensors and numbers", code="E0211")

    shape = structure(result)
    return found, shape


def _rebuilt(structure: Any, results: Sequence[Any]) -> Any:
    if isinstance(structure, Leaf):
        return results[structure.index]
    if isinstance(structure, Either):
        holds = _rebuilt(structure.holds, results)
        left, right = (_rebuilt(way, results) for way in (structure.left, structure.right))
        return Either(holds, left, right) if isinstance(holds, Leaf) else left if holds else right
    if isinstance(structure, tuple | list):
        return _like(structure, [_rebuilt(item, results) for item in structure])
    if isinstance(structure, dict):
        return {key: _rebuilt(item, results) for key, item in structure.items()}
    return structure


def _like(given: tuple[Any, ...] | list[Any], items: list[Any]) -> Any:
    """Return the items as a list, a tuple or a named tuple, like `given`."""
    if isinstance(given, list):
        return items
    return type(given)(*items) if hasattr(given, "_fields") else tuple(items)
