"""A compile that writes nothing and runs nothing, and what there is to know of it: strategies, layouts, operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from mspc.api import context, state
from mspc.compiler.config import Config
from mspc.compiler.driver import Stage, compile_launch
from mspc.ir.graph import Constant, Graph, Node, Value
from mspc.ir.layout import Layout

STRATEGIES, SLICED = "step_parallel_begin", "slice_to_rank"
"""The stages that the facts are read from."""


@dataclass
class Facts:
    """What is known of a network that was compiled.

    strategies: for every operator with a strategy, named by its cells and its place among those of its kind
        (`Default/network-Net/MatMul-op0`), the number of cuts of every dimension of every tensor.
    parameter_layouts: for every parameter the mesh, the mesh axis that cuts each dimension (counted from the last axis,
        -1: none; a list of them where several do), one rank's shape, 0, True and "", as MindSpore lists them.
    operators: one rank's operators before any are fused (`MatMul-0`): {"inputs": names and small constants, "attrs":
        the operator's fields}.
    compile_id: equal exactly for equal programs.
    """

    strategies: dict[str, list[list[int]]] = field(default_factory=dict)
    parameter_layouts: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    operators: dict[str, dict[str, Any]] = field(default_factory=dict)
    compile_id: str = ""


def compile_in_memory(target: Any, args: Sequence[Any]) -> Facts:
    """Compile `target(*args)` for the ranks of the session, of `device_num` where no launcher said how many.

    Raises:
        MspcError: every mistake of the program, as for `compile_launch`.
    """
    session, frozen = state.current(), context.freeze(target)
    ranks = session.size if session.launched or session.size > 1 else frozen.device_num or session.size
    facts = Facts()

    def look(stage: Stage) -> None:
        if stage.name == STRATEGIES:
            facts.strategies = _strategies(stage.graph)
        elif stage.name == SLICED:
            facts.operators = _operators(stage.graph)

    compiled = compile_launch(target, args, Config.from_context(frozen, ranks), look)
    facts.parameter_layouts, facts.compile_id = _parameter_layouts(compiled.graph), compiled.compile_id
    compiled.rank_graph(session.rank, look, wanted=(SLICED,))
    return facts


def _strategies(graph: Graph) -> dict[str, list[list[int]]]:
    count: Counter[str] = Counter()
    found: dict[str, list[list[int]]] = {}
    for node in graph.nodes:
        if node.strategy is not None:
            kind = f"{node.scope or 'Default'}/{node.op.name}"
            found[f"{kind}-op{count[kind]}"] = [list(entry) for entry in node.strategy]
            count[kind] += 1
    return found


def _parameter_layouts(graph: Graph) -> dict[str, tuple[Any, ...]]:
    found: dict[str, tuple[Any, ...]] = {}
    for parameter in graph.parameters:
        layout = parameter.layout
        if parameter.kind == "parameter" and isinstance(layout, Layout):
            axes = [[len(layout.mesh) - 1 - axis for axis in dimension] for dimension in layout.dims]
            cuts = [-1 if not dimension else dimension[0] if len(dimension) == 1 else dimension for dimension in axes]
            shape = list(layout.local_shape(parameter.shape))
            found[parameter.name] = (list(layout.mesh), cuts, shape, 0, True, "")
    return found


def _operators(graph: Graph) -> dict[str, dict[str, Any]]:
    count: Counter[str] = Counter()
    names: dict[Value, str] = {}
    found: dict[str, dict[str, Any]] = {}
    for node in graph.nodes:
        names[node] = f"{node.op.name}-{count[node.op.name]}"
        count[node.op.name] += 1
        inputs = [_shown(value, names) for value in node.inputs]
        found[names[node]] = {"inputs": inputs, "attrs": dict(node.op.attributes())}
    return found


def _shown(value: Value, names: dict[Value, str]) -> Any:
    if isinstance(value, Node):
        return names[value]
    return value.value.tolist() if isinstance(value, Constant) else value.name
