"""Compiles without running: strategies, layouts and operators of a program, and sizes for inputs without any."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, TypeVar

from mspc.compiler.config import Config
from mspc.compiler.driver import Compiled, DumpPoint, compile_call, identity, run_shared_passes
from mspc.compiler.pipeline import shared_passes
from mspc.compiler.rank_graphs import before_joining, copied
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Constant, Graph, Node, Parameter, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Layout, common_mesh, group_of, on_mesh
from mspc.ir.text.parser import parse
from mspc.ir.text.printer import print_graph
from mspc.ir.types import TensorType
from mspc.mindspore_api import context, state
from mspc.mindspore_api.common.tensor import Symbol
from mspc.mindspore_api.context import FrozenContext
from mspc.mindspore_api.nn.cell import Cell
from mspc.mindspore_api.nn.cell_state import is_open
from mspc.mindspore_api.setting_kind import say_once
from mspc.ops.check_graph import check_graph
from mspc.ops.op import REGISTRY
from mspc.passes.base import PassManager
from mspc.sharding.groups import group_name

MAX_PARAMETER_SIZES = 8
"""Number of parameter sizes that are tried, the most frequent first."""
Result = TypeVar("Result")


def compiled_for_declared(
    target: Any, args: Sequence[Any], ranks: int, compiled: Callable[[Sequence[Any]], Result]
) -> Result:
    """Return the result of `compiled` for the first sizes that it accepts. A warning names them.

    target: compiled with `args`, some of which have unknown sizes. ranks: by which a dimension may be sharded. Raise
    MspcError if the network compiles for none of the sizes tried. The message is that of the first.
    """
    first: MspcError | None = None
    for scale, *unknown in _sizes(target, args, ranks):
        sized = [_sized(arg, scale, *unknown) for arg in args]
        try:
            found = compiled(sized)
        except MspcError as error:
            if first is None:
                first = error
                error.notes += (f"unknown sizes were taken as {_shown_sizes(args, sized)}, and as others",)
            continue
        say_once(
            "declared sizes",
            f"compile: unknown sizes are taken as {_shown_sizes(args, sized)}: the graph is of these; a call "
            "with others has its own",
        )
        return found
    assert first is not None
    raise first


def _sizes(target: Any, args: Sequence[Any], ranks: int) -> Iterator[tuple[int, int, int]]:
    """Yield (n of all Symbols, size of dimensions without a declaration, size of those that are a tensor's last) in the
    order of the trials."""
    scales = list(dict.fromkeys((1, 2, ranks, 2 * ranks)))
    of_ranks = {scale: ranks * min(scale, 2) for scale in scales}
    yield from ((scale, of_ranks[scale], of_ranks[scale]) for scale in scales)
    if any(_has_undeclared(arg) for arg in args):
        yield from ((scale, of_ranks[scale], size) for size in _parameter_sizes(target) for scale in scales)


def _parameter_sizes(target: Any) -> list[int]:
    parameters = target.get_parameters() if isinstance(target, Cell) else ()
    count = Counter(size for parameter in parameters for size in parameter.shape)
    return [size for size, _ in count.most_common(MAX_PARAMETER_SIZES)]


def _has_undeclared(arg: Any) -> bool:
    if isinstance(arg, tuple | list):
        return any(map(_has_undeclared, arg))
    return is_open(arg) and any(size in (None, -1) for size in arg.declared)


def _sized(arg: Any, scale: int, unknown: int, last: int) -> Any:
    """Return the argument with a type in place of a tensor of unknown sizes."""
    if isinstance(arg, tuple | list):
        return type(arg)(_sized(item, scale, unknown, last) for item in arg)
    if not is_open(arg):
        return arg
    *leading, own = arg.declared
    shape = [*(_size_of(rule, scale, unknown) for rule in leading), _size_of(own, scale, last)]
    return TensorType(arg.dtype, tuple(shape))


def _size_of(rule: Any, scale: int, unknown: int) -> int:
    """Return the size of a declared dimension: a Symbol's size for n = `scale`, or the nearest one that it allows;
    `unknown` if nothing is declared."""
    if not isinstance(rule, Symbol):
        return unknown if rule in (None, -1) else int(rule)
    size = max(rule.divisor * scale, rule.min - rule.remainder)
    size = -(-size // rule.divisor) * rule.divisor + rule.remainder
    if rule.max > rule.min:
        size = min(size, (rule.max - rule.remainder) // rule.divisor * rule.divisor + rule.remainder)
    return size


def _shown_sizes(args: Sequence[Any], sized: Sequence[Any]) -> str:
    """Return the shapes of the arguments with unknown sizes, for messages."""
    return ", ".join(
        str([item.shape if isinstance(item, TensorType) else item for item in one])
        if isinstance(one, tuple | list) else str(one.shape)
        for arg, one in zip(args, sized, strict=True)
        if is_open(arg)
    )  # fmt: skip


OnCompiled = Callable[[Compiled, FrozenContext], None]
LAID_OUT, STRATEGIES, SLICED = "propagate_sharding", "step_parallel_begin", "slice_to_rank"
"""Stages from which the facts are read. The operators of a pipeline stage are known once it is cut out."""
NAMES = {"SendToStage": "Send", "ReceiveFromStage": "Receive"}
"""MindSpore's names of operators that have other names here."""


@dataclass
class CompiledNetwork:
    """Facts about a compiled network.

    strategies: for every operator with a strategy, named by its cells and its number among those of its kind
    (`Default/network-Net/MatMul-op0`), the number of slices of every dimension of every tensor.

    parameter_layouts: for every parameter the mesh, the mesh axis that shards each dimension (counted from the last
    axis, -1: none; a list of them if there are several), one rank's shape, 0, True and "", as MindSpore lists them. For
    a parameter that optimizer parallel shards further, these are the layout its readers need, and the last entry is the
    name of the group from which a rank gathers it.

    operators: one rank's operators before fusion (`MatMul-0`): {"inputs": names and small constants, "attrs": the
    operator's fields, and facts attached to it}.

    compile_id: equal exactly for equal programs.
    """

    strategies: dict[str, list[list[int]]] = field(default_factory=dict)
    parameter_layouts: dict[str, tuple[Any, ...]] = field(default_factory=dict)
    operators: dict[str, dict[str, Any]] = field(default_factory=dict)
    compile_id: str = ""


def compile_in_memory(target: Any, args: Sequence[Any], on_compiled: OnCompiled | None = None) -> CompiledNetwork:
    """Compile `target(*args)` for the ranks of the session, or for `device_num` if no launcher set their number. The
    script's parameters then know how they will be sharded. Tensors declared without sizes get sizes.

    `on_compiled` is called with the compiled program and its settings. Raise MspcError as `compile_call` does.
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
    """Return the layout that the first reader of each parameter needs, by the parameter's name."""
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
    """Return the name of the group of ranks whose slices together form the layout `read`; "" unless only dimension 0
    was sharded further."""
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


DEVICES = ("CPU", "GPU")
"""Devices for which graphs of all ranks are made."""


def stages_again(network: str, path: str, compile_id: str, wanted: Collection[str]) -> dict[str, Graph]:
    """Return the graph after each pass in `wanted`; none if the passes do not lead to that very program, as for a graph
    that has been edited.

    network: text of the traced graph, with the header that passes read. path: of the file that contains it. compile_id:
    of the compile. Raise MspcError if the text is no graph.
    """
    for device in DEVICES:
        graph = read_network(network, path)
        try:
            identified, found = _stages(graph, device, wanted)
        except MspcError:
            continue
        if identified == compile_id:
            return found
    return {}


def read_network(text: str, path: str) -> Graph:
    """Parse such a text to a graph. path: of the file that contains it. Raise MspcError for other texts."""
    module = parse(text, REGISTRY, path, frames=True)
    if module.dialect:
        raise MspcError(f"{path} is damaged: its network is a graph of {module.dialect}")
    graph = module.main
    graph.attrs = {**module.attrs, **graph.attrs}
    check_graph(graph)
    return graph


def _stages(graph: Graph, device: str, wanted: Collection[str]) -> tuple[str, dict[str, Graph]]:
    """Return (the identity of the program, its graphs)."""
    said = graph.attrs.get("ranks")
    ranks = said if isinstance(said, int) else 1
    found: dict[str, Graph] = {}

    def look(stage: DumpPoint) -> None:
        if stage.name in wanted:
            found[stage.name] = copied(stage.graph)

    graph = run_shared_passes(graph, shared_passes(str(graph.attrs.get("mode", "")), device), look, PassManager())
    return identity(ranks, print_graph(graph)), found
