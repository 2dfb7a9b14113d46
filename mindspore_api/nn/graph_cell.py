"""Cell that computes a graph from a file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from mspc.checkpoint.mindir import (
    ATTRIBUTES,
    CHOICE,
    LOOP,
    ORDER,
    OTHER_NAMES,
    SAME,
    SIGNATURES,
    MindirBlock,
    MindirNode,
    all_nodes,
    dtype_of_code,
    field_value,
    fields_of_attributes,
    words_of,
)
from mspc.ir.diagnostics import MspcError, did_you_mean
from mspc.mindspore_api import ops
from mspc.mindspore_api.common.parameter import Parameter, ParameterTuple
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.errors import ApiRuntimeError, ApiTypeError, ApiValueError
from mspc.mindspore_api.nn.cell import Cell
from mspc.mindspore_api.train.mindir import LoadedGraph

__all__ = ["GraphCell"]

CALL, TUPLE, ITEM = "call", "tuple", "item"
_Step = tuple[str, Any, tuple[Any, ...]]
"""Kind of step, the object that computes it (blocks of a choice or a loop), indices of its operands."""
_Steps = tuple[tuple[_Step, ...], tuple[int, ...]]
"""Steps one after the other, and the places of their results."""
_TYPE = " type"
"""Suffix of the name of a cast's element type."""


class GraphCell(Cell):
    """Cell that computes a graph read by `load`. Its parameters are those of the file, with the same names.

    Args: graph: the result of `load`. params_init: other initial values of parameters, tensors by name.

    Raises TypeError or ValueError if an argument is of the wrong kind; RuntimeError if the graph has operators that
    mspc lacks; the message lists all of them.
    """

    def __init__(self, graph: Any, params_init: dict[str, Any] | None = None, obf_random_seed: Any = None) -> None:
        super().__init__()
        if not isinstance(graph, LoadedGraph):
            raise ApiTypeError(f"GraphCell takes a result of load, not {type(graph).__name__}")
        if obf_random_seed is not None:
            raise ApiValueError("GraphCell: obf_random_seed is not supported")
        given = dict(params_init or {})
        known = [name for _, name, _ in graph.graph.parameters]
        for name, value in given.items():
            if name not in known:
                raise ApiValueError(f"GraphCell: the graph has no parameter {name!r}", did_you_mean(name, known))
            if not isinstance(value, Tensor):
                raise ApiTypeError(f"GraphCell: params_init[{name!r}] must be a Tensor, not {type(value).__name__}")
        self.weights = ParameterTuple(
            Parameter(given.get(name, Tensor(value)), name=name) for _, name, value in graph.graph.parameters
        )
        plan = _StepList(graph)
        self.constants = plan.constants
        self.steps = plan.steps
        self.result = plan.result
        self.inputs = len(graph.graph.inputs)

    def construct(self, *inputs: Any) -> Any:
        if len(inputs) != self.inputs:
            raise ApiValueError(f"GraphCell: the graph has {self.inputs} inputs, not {len(inputs)}")
        return _results(self.steps, (self.result,), (*inputs, *self.weights, *self.constants))[0]


def _results(steps: Any, wanted: tuple[int, ...], known: tuple[Any, ...]) -> tuple[Any, ...]:
    values = [*known]
    for kind, function, sources in steps:
        operands = []
        for source in sources:
            operands.append(values[source])
        if kind == TUPLE:
            values.append(tuple(operands))
        elif kind == ITEM:
            values.append(operands[0][operands[1]])
        elif kind == CHOICE:
            values.append(_chosen(function, operands[0], tuple(values)))
        elif kind == LOOP:
            values.append(_looped(function, tuple(operands), tuple(values)))
        else:
            values.append(function(*operands))
    return tuple([values[place] for place in wanted])


def _chosen(blocks: Any, condition: Any, known: tuple[Any, ...]) -> tuple[Any, ...]:
    if condition:
        found = _results(*blocks[0], known)
    else:
        found = _results(*blocks[1], known)
    return found


def _looped(blocks: Any, carried: tuple[Any, ...], known: tuple[Any, ...]) -> tuple[Any, ...]:
    while _results(*blocks[0], (*known, *carried))[0]:
        carried = _results(*blocks[1], (*known, *carried))
    return carried


class _StepList:
    """Nodes of a graph as steps over one list of values: inputs, parameters, constants, then a value for each step."""

    def __init__(self, loaded: LoadedGraph) -> None:
        graph = loaded.graph
        self.places: dict[str, int] = {}
        for name in (*graph.inputs, *(name for name, _, _ in graph.parameters)):
            self.places[name] = len(self.places)
        self.values = dict(graph.constants)
        self._check(loaded)
        self.values |= self._element_types(loaded)
        self.constants = tuple(_plain(value) for value in self.values.values())
        for name in self.values:
            self.places[name] = len(self.places)
        self.count = len(self.places)
        self.steps = self._steps(graph.nodes, loaded.file)
        if graph.outputs[0] not in self.places:
            raise ApiRuntimeError(f"GraphCell: {loaded.file!r} gives {graph.outputs[0]!r}, which no node computes")
        self.result = self.places[graph.outputs[0]]

    def _steps(self, nodes: Sequence[MindirNode], file: str) -> tuple[_Step, ...]:
        steps: list[_Step] = []
        for node in nodes:
            step = self._step(node, file)
            if step is not None:
                steps.append(step)
                self.places[node.name] = self.count
                self.count += 1
        return tuple(steps)

    def _block(self, block: MindirBlock, carried: Sequence[str], file: str) -> _Steps:
        kept, count = dict(self.places), self.count
        for name in carried:
            self.places[name] = self.count
            self.count += 1
        steps = self._steps(block.nodes, file)
        lacking = next((name for name in block.outputs if name not in self.places), None)
        if lacking is not None:
            raise ApiRuntimeError(f"GraphCell: {file!r} gives {lacking!r}, which no node computes")
        places = tuple(self.places[name] for name in block.outputs)
        self.places, self.count = kept, count
        return steps, places

    def _check(self, loaded: LoadedGraph) -> None:
        names = {node.operator for node in all_nodes(loaded.graph.nodes)}
        known = SAME | SIGNATURES.keys() | ATTRIBUTES.keys() | OTHER_NAMES.keys() | set(ORDER)
        others = {"MakeTuple", "TupleGetItem", "UpdateState", "SumExt", "MeanExt", CHOICE, LOOP, *_FUNCTIONS}
        lacking = sorted(names - known - others)
        if lacking:
            raise ApiRuntimeError(f"GraphCell: {loaded.file!r} has operators that are not read: {', '.join(lacking)}")
        if len(loaded.graph.outputs) != 1:
            raise ApiRuntimeError(f"GraphCell: {loaded.file!r} has {len(loaded.graph.outputs)} outputs, not 1")

    def _element_types(self, loaded: LoadedGraph) -> dict[str, Any]:
        """Return the element types of casts, by the names of their constants."""
        found: dict[str, Any] = {}
        for node in all_nodes(loaded.graph.nodes):
            if node.operator == "Cast":
                try:
                    found[f"{node.name}{_TYPE}"] = dtype_of_code(self.values[node.inputs[1]])
                except (KeyError, IndexError, TypeError):
                    raise _unreadable(loaded.file, node, "the element type") from None
        return found

    def _step(self, node: MindirNode, file: str) -> _Step | None:
        if node.operator == "UpdateState":
            return None
        inputs = node.inputs[:1] if node.operator in ORDER else node.inputs
        if node.operator == "Cast":
            inputs = (node.inputs[0], f"{node.name}{_TYPE}")
        try:
            places = tuple(self.places[name] for name in inputs)
        except KeyError as error:
            raise _unreadable(file, node, f"there is no {error}") from None
        if node.operator in ORDER:
            self.places[node.name] = places[0]
            return None
        if node.operator in ("MakeTuple", "TupleGetItem"):
            return TUPLE if node.operator == "MakeTuple" else ITEM, None, places
        if node.operator in (CHOICE, LOOP):
            first, second = ("then", "else") if node.operator == CHOICE else ("condition", "body")
            carried = node.attributes.get("carried", ())
            blocks = [self._block(node.attributes[name], carried, file) for name in (first, second)]
            return node.operator, tuple(blocks), places
        try:
            function, count = self._function(node)
        except (AttributeError, KeyError, IndexError, TypeError, ValueError) as error:
            raise _unreadable(file, node, str(error)) from None
        return CALL, function, places[:count]

    def _function(self, node: MindirNode) -> tuple[Callable[..., Any], int]:
        values = [self.values.get(name) for name in node.inputs]
        if node.operator in ("SumExt", "MeanExt"):
            axis, keep, dtype = values[1:4]
            if dtype is not None:
                raise ValueError("an element type of the result")
            operator = ops.ReduceSum if node.operator == "SumExt" else ops.ReduceMean
            return operator(keep_dims=bool(keep), axis=() if axis is None else axis), 1
        if node.operator in _FUNCTIONS:
            return _FUNCTIONS[node.operator]
        before, behind = words_of(node.operator) if node.operator in SIGNATURES else (node.inputs, ())
        fields = {
            name: field_value(name, value)
            for name, value in zip(behind, values[len(before) :], strict=False)
            if not name.startswith("=")
        } | fields_of_attributes(node.operator, node.attributes)
        count = sum(not word.startswith("=") for word in before)
        return getattr(ops, OTHER_NAMES.get(node.operator, node.operator))(**fields), count


def _unreadable(file: str, node: MindirNode, why: str) -> MspcError:
    return ApiRuntimeError(f"GraphCell: {file!r}: {node.name}: cannot read {node.operator}: {why}")


def _plain(value: Any) -> Any:
    return Tensor(value) if isinstance(value, np.ndarray) else value


_FUNCTIONS: dict[str, tuple[Callable[..., Any], int]] = {
    "MatMulExt": (ops.matmul, 2), "ClampScalar": (ops.clamp, 3), "ClampTensor": (ops.clamp, 3),
}  # fmt: skip
"""Operators that are functions here, and how many inputs these take."""
