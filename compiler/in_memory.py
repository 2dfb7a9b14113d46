"""Compiles without running anything, and returns the strategies, layouts and operators of the program."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Any

from mspc.api import context, state
from mspc.api.context import FrozenContext
from mspc.api.nn.cell_state import is_open
from mspc.compiler.config import Config
from mspc.compiler.declared_sizes import compiled_for_declared
from mspc.compiler.driver import Compiled, DumpPoint, compile_call
from mspc.compiler.stage_graphs import before_joining
from mspc.ir.graph import Constant, Graph, Node, Parameter, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Layout, common_mesh, group_of, on_mesh
from mspc.sharding.groups import group_name

OnCompiled = Callable[[Compiled, FrozenContext], None]
LAID_OUT, STRATEGIES, SLICED = "propagate_sharding", "step_parallel_begin", "slice_to_rank"
"""The stages that the facts are read from. Of a pipeline's stage the operators are known once it is cut out."""
NAMES = {"SendToStage": "Send", "ReceiveFromStage": "Receive"}
"""How MindSpore calls operators that have other names here."""


@dataclass
class CompiledNetwork:
    """What is known of a network that was compiled.

    strategies: for every operator with a strategy, named by its cells and its place among those of its kind
        (`Default/network-Net/MatMul-op0`), the number of slices of every dimension of every tensor.
    parameter_layouts: for every parameter the mesh, the mesh axis that shards each dimension (counted from the last
        axis, -1: none; a list of them where several do), one rank's shape, 0, True and "", as MindSpore lists them. Of
        a parameter that optimizer parallel shards further these are what its readers need, and in the last place is the
        name of the group from which a rank gathers it.
    operators: one rank's operators before any are fused (`MatMul-0`): {"inputs": names and small constants, "attrs":
        the operator's fields, and facts that were attached to it}.
    compile_id: equal exactly for equal programs.
    """

    strategies: dict[str, list[list[int]]] = field(default_factory=dict)
    parameter_layouts: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    operators: dict[str, dict[str, Any]] = field(default_factory=dict)
    compile_id: str = ""


def compile_in_memory(target: Any, args: Sequence[Any], on_compiled: OnCompiled | None = None) -> CompiledNetwork:
    """Compile `target(*args)` for the ranks of the session, of `device_num` where no launcher said how many. The
    script's parameters then know how they will be sharded. Tensors that are declared without sizes get some.

    `on_compiled` is called with what was compiled and the settings that it was compiled in.

    Raises:
        MspcError: every mistake of the program, as for `compile_call`.
    """
    session, frozen = state.current(), context.freeze(target)
    ranks = session.size if session.launched or session.size > 1 else frozen.device_num or session.size
    config = Config.from_context(frozen, ranks)

    def compiled(sized: Sequence[Any]) -> CompiledNetwork:
        return _compiled(target, sized, config, lambda found: on_compiled(found, frozen) if on_compiled else None)

    if any(map(is_open, args)):
        return compiled_for_declared(target, args, config.ranks, compiled)
    return compiled(args)


def _compiled(
    target: Any, args: Sequence[Any], config: Config, on_compiled: Callable[[Compiled], None]
) -> CompiledNetwork:
    session, facts = state.current(), CompiledNetwork()
    read: dict[str, Layout] = {}

    def look(stage: DumpPoint) -> None:
        if stage.name == STRATEGIES:
            facts.strategies = _strategies(stage.graph)
        elif stage.name == LAID_OUT:
            read.update(_first_reads(stage.graph))
        elif stage.name == SLICED:
            facts.operators = _operators(before_joining(stage.graph, session.rank))

    compiled = compile_call(target, args, config, look)
    facts.compile_id = compiled.compile_id
    facts.parameter_layouts = _parameter_layouts(
        compiled.graph, read if compiled.config.parallel_optimizer else {}, session.rank
    )
    for parameter in compiled.graph.parameters:
        own = compiled.traced.parameters.get(parameter.name)
        if own is not None and isinstance(parameter.layout, Layout):
            own.laid_out = parameter.layout
    compiled.rank_graph(session.rank, look, wanted=(SLICED,))
    on_compiled(compiled)
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


def _first_reads(graph: Graph) -> dict[str, Layout]:
    """By a parameter's name the layout that its first reader needs."""
    found: dict[str, Layout] = {}
    for node in graph.nodes:
        for value, layout in zip(node.inputs, node.in_layouts or (), strict=False):
            if isinstance(value, Parameter) and layout is not None:
                found.setdefault(value.name, layout)
    return found


def _parameter_layouts(graph: Graph, read: Mapping[str, Layout], rank: int) -> dict[str, tuple[Any, ...]]:
    found: dict[str, tuple[Any, ...]] = {}
    for parameter in graph.parameters:
        stored = parameter.layout
        if parameter.kind == "parameter" and isinstance(stored, Layout):
            layout = read.get(parameter.name, stored)
            group = _gathering_group(stored, layout, rank)
            layout = layout if group else stored
            axes = [[len(layout.mesh) - 1 - axis for axis in dimension] for dimension in layout.dims]
            placed = [-1 if not dimension else dimension[0] if len(dimension) == 1 else dimension for dimension in axes]
            shape = list(layout.local_shape(parameter.shape))
            found[parameter.name] = (list(layout.mesh), placed, shape, 0, True, group)
    return found


def _gathering_group(stored: Layout, read: Layout, rank: int) -> str:
    """The name of the group of ranks whose slices are together what is read; "" unless only dimension 0 was sharded
    further."""
    mesh = common_mesh(stored.mesh, read.mesh)
    if stored == read or mesh is None or not stored.dims:
        return ""
    (first, *rest), (wanted, *others) = on_mesh(stored, mesh)[0], on_mesh(read, mesh)[0]
    if rest != others or first[: len(wanted)] != wanted or first == wanted:
        return ""
    return group_name(group_of(mesh, first[len(wanted) :], rank))


def _operators(graph: Graph) -> dict[str, dict[str, Any]]:
    count: Counter[str] = Counter()
    names: dict[Value, str] = {}
    found: dict[str, dict[str, Any]] = {}
    for node in graph.nodes:
        called = NAMES.get(node.op.name, node.op.name)
        names[node] = f"{called}-{count[called]}"
        count[called] += 1
        inputs = [_shown(value, names) for value in node.inputs]
        found[names[node]] = {"inputs": inputs, "attrs": node.attrs | dict(node.op.attributes())}
    found["Return-0"] = {"inputs": [_shown(value, names) for value in graph.results], "attrs": {}}
    return found


def _shown(value: Value, names: dict[Value, str]) -> Any:
    if isinstance(value, Node):
        return names[value]
    return value.value.tolist() if isinstance(value, Constant) else value.name
