"""Cell that computes a graph from a file."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from mspc.ir.diagnostics import did_you_mean
from mspc.mindspore_api.common.parameter import Parameter
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.errors import ApiRuntimeError, ApiTypeError, ApiValueError
from mspc.mindspore_api.nn.cell import Cell
from mspc.mindspore_api.train.mindir import LoadedGraph

__all__ = ["GraphCell"]


class GraphCell(Cell):
    """Cell that computes a graph read by `load`. Its parameters are those of the file, with the same names.

    Args: graph: the result of `load`. params_init: other initial values of parameters, tensors by name.

    Raises TypeError or ValueError if an argument is of the wrong kind.
    """

    is_imported = True
    """The front end copies the nodes of the graph, and reads no `construct`."""
    plan = None

    def __init__(self, graph: Any, params_init: dict[str, Any] | None = None, obf_random_seed: Any = None) -> None:
        super().__init__()
        if not isinstance(graph, LoadedGraph):
            raise ApiTypeError(f"GraphCell takes a result of load, not {type(graph).__name__}")
        if obf_random_seed is not None:
            raise ApiValueError("GraphCell: obf_random_seed is not supported")
        given = dict(params_init or {})
        weights = [each for each in graph.graph.parameters if each.kind == "parameter"]
        for name, value in given.items():
            known = [each.name for each in weights]
            if name not in known:
                raise ApiValueError(f"GraphCell: the graph has no parameter {name!r}", did_you_mean(name, known))
            if not isinstance(value, Tensor):
                raise ApiTypeError(f"GraphCell: params_init[{name!r}] must be a Tensor, not {type(value).__name__}")
        held = {name: Tensor(value) for name, value in graph.tensors.items()}
        for each in weights:
            value = given.get(each.name, held[each.name])
            held[each.name] = Parameter(value, name=each.name, requires_grad=each.trainable)
            self._insert(each.name, held[each.name])
        object.__setattr__(self, "loaded", graph)
        object.__setattr__(self, "held", held)

    def construct(self, *inputs: Any) -> Any:
        """Never read: the front end calls `evaluate`."""
        raise ApiRuntimeError("GraphCell is computed by a compile")

    def evaluate(self, evaluator: Any, args: Sequence[Any], named: Mapping[str, Any]) -> Any:
        """Return the results of the graph for these tensors, whose nodes the front end's `evaluator` makes."""
        graph = self.loaded.graph
        wanted = [each for each in graph.parameters if each.kind == "input"]
        if len(args) != len(wanted) or named:
            raise ApiValueError(f"GraphCell: the graph has {len(wanted)} inputs, not {len(args) + len(named)}")
        for place, (value, each) in enumerate(zip(args, wanted, strict=True)):
            if evaluator.type_of(value) != each.type:
                given = evaluator.type_of(value) or type(value).__name__
                raise ApiValueError(f"GraphCell: input {place} is {given}, and the graph was exported for {each.type}")
        inputs = iter(args)
        operands = [
            next(inputs) if each.kind == "input" else evaluator.held(self.held[each.name], each.name)
            for each in graph.parameters
        ]
        return _with_results(self.loaded.result, evaluator.graph(graph, operands))


def _with_results(value: Any, results: Sequence[Any]) -> Any:
    """Return the value that a network returns, with the results of its graph in their places."""
    if isinstance(value, dict):
        return results[value["result"]]
    return tuple(_with_results(each, results) for each in value) if isinstance(value, list) else value
