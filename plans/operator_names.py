"""Names of a graph's operators as in strategy files and plans, and the strategies of such a file for a graph."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import field
from pathlib import Path
from typing import TYPE_CHECKING, cast

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import OFFLOAD, Graph, Node, Parameter, Value, element_layouts
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Layout
from mspc.ir.text.families import each_of_cells, name_of_cells
from mspc.ir.types import TensorType
from mspc.ops.control.regions import Loop, MakeStack, runs_known_times, runs_micro_batches
from mspc.passes.autodiff.recompute_cells import ASKED as RECOMPUTE_CELLS
from mspc.passes.lib.choices import FILE, GIVEN, PLAN_FILE, kind_of, kinds_of, made_places, options_of, rule_of
from mspc.passes.lib.recomputation import planned_cells
from mspc.passes.sharding.shard_by_plan import listed
from mspc.plans.files.plan_file import Given, PlanFile

if TYPE_CHECKING:
    from mspc.plans.files.strategy_file import Cuts


STATES = ""
"""Key, in place of a cell, for the states of optimizers."""
STRATEGIES, LAYOUTS = "step_parallel_begin", "propagate_sharding"
"""The compile stages at which strategies and layouts are read."""
CONFIGURED = "check_strategies"
"""The compile stage after which the script's strategies are on the operators."""
_GIVING = (CONFIGURED, "shard_by_plan", "recompute_cells")
"""The compile stages after which all given strategies may be on the operators. The last two run only if the settings
ask for them."""


def all_is_given(stage: str, graph: Graph) -> bool:
    """Return whether, after this compile stage, only the search still decides on the operators."""
    return stage in _GIVING and PLAN_FILE not in graph.attrs and RECOMPUTE_CELLS not in graph.attrs


@dataclass
class StrategyNames:
    """Strategies of operators. by_parameter: of readers of a trainable parameter, as `MatMul_w`. by_place: of all,
    as `Default/network-Net/MatMul-op0`, from cell, kind and count in the kind. layouts: operand layouts, by the
    same names. results: result layouts that do not follow from operands. places: the names of nodes. strategies: those
    given before all passes. stored: layouts of parameters that do not follow from operators. parameters: layouts of
    trained ones if they differ from the need of the first reader. gathered: parameters that gradients gather again.
    loops: layouts of carried and saved values of loops. recomputed: cells that a plan recomputes.
    offloaded: cells with values that a plan stores on the host. states_offloaded: optimizer states are there, too."""

    by_parameter: dict[str, Cuts] = field(default_factory=dict)
    by_place: dict[str, Cuts] = field(default_factory=dict)
    layouts: dict[str, tuple[Layout, ...]] = field(default_factory=dict[str, tuple[Layout, ...]])
    results: dict[str, tuple[Layout, ...]] = field(default_factory=dict[str, tuple[Layout, ...]])
    places: dict[Node, str] = field(default_factory=dict[Node, str])
    strategies: dict[str, Given] = field(default_factory=dict[str, Given])
    stored: dict[str, Layout] = field(default_factory=dict[str, Layout])
    parameters: dict[str, Layout] = field(default_factory=dict[str, Layout])
    gathered: list[str] = field(default_factory=list[str])
    loops: dict[str, tuple[Layout, ...]] = field(default_factory=dict[str, tuple[Layout, ...]])
    recomputed: list[str] = field(default_factory=list[str])
    offloaded: list[str] = field(default_factory=list[str])
    states_offloaded: bool = False
    _on_host: frozenset[str] = frozenset()
    _asked: set[str] = field(default_factory=set[str])
    _with_layers: bool = False

    def look(self, stage: str, graph: Graph) -> None:
        """Read strategies, names or layouts from the graph after the pass `stage`, if they are read at that pass."""
        looks = {STRATEGIES: self.note, CONFIGURED: self.name_made, LAYOUTS: self.note_layouts}
        if stage in looks:
            looks[stage](graph)

    def note(self, graph: Graph) -> None:
        """Note the strategies of a graph's operators."""
        for node, names, place in named(graph):
            if node.strategy is not None:
                strategy = tuple(tuple(entry) for entry in node.strategy)
                self.by_place.update(dict.fromkeys(each_of_cells(place), strategy))
                self.by_parameter.update(dict.fromkeys(names, strategy))

    def name(self, graph: Graph, with_layers: bool = False) -> None:
        """Note the names of a graph's operators before passes remove some and add others. with_layers: also write the
        names on the nodes of equal layers that share one graph, because passes copy those nodes."""
        self.places = {node: place for node, _, place in named(graph)}
        self._with_layers = with_layers
        for node in (*layer_nodes(graph), *filter(runs_micro_batches, graph.nodes)) if with_layers else ():
            node.place = self.places.get(node, "")

    def keep_strategies(self, graph: Graph) -> None:
        """Note the strategies given to the operators of a graph before any pass, the operators that gather operands
        again, and the cells with values on the host."""
        self.strategies = {
            self.places[node]: Given(node.in_strategy, node.out_strategy)
            for each in graph.graphs()
            for node in each.nodes
            if node in self.places and (node.in_strategy is not None or node.out_strategy is not None)
        }
        self._asked = {name for node, name in self.places.items() if node.attrs.get("gathers_again")}
        self._on_host = frozenset(_on_host(graph))

    def name_made(self, graph: Graph) -> None:
        """Name the forward operators that passes put in place of others: the counts continue."""
        layers = list(layer_nodes(graph)) if self._with_layers else []
        knowing = (*layers, *graph.nodes) if self._with_layers else ()  # passes moved some out of loops
        self.places |= {node: node.place for node in knowing if node.place}
        kinds = kinds_of(dict.fromkeys(self.places.values()))  # a copy has the name of its original
        self.places |= dict(made_places([*layers, *graph.nodes], self.places, kinds))

    def note_layouts(self, graph: Graph) -> None:
        """Note the final layouts of the named operators and of parameters."""
        ranks = int(graph.attrs.get("ranks", 1))
        for node, place in self.places.items():
            if runs_known_times(node) and (layouts := _carried(node)):
                self.loops[place] = layouts
            rule = rule_of(node) if node.in_layouts is not None else None
            if rule is None or node.in_layouts is None or None in node.in_layouts:
                continue
            layouts = tuple(layout for layout in node.in_layouts if layout is not None)
            if layouts:
                self.layouts[place] = layouts
            made = tuple(layout for layout in element_layouts(node.layout) if layout is not None)
            if not layouts or options_of(node, rule, layouts, None, ranks)[0].outputs != made:
                self.results[place] = made
        self.recomputed = planned_cells(graph)
        on_host = [name for name in _on_host(graph) if name not in self._on_host]
        self.states_offloaded = STATES in on_host
        self.offloaded = [name for name in on_host if name != STATES]
        self._note_parameters(graph)
        for node in (*layer_nodes(graph), *graph.nodes):
            node.place = ""

    def _note_parameters(self, graph: Graph) -> None:
        reads = list(parameter_reads(graph))
        # Parameters are stored in the layout of the first operator that changes them, else of the first reader.
        given = [
            read for read in reads
            if read[0].in_layouts is not None
            and (read[0].phase == "forward" or read[0].attrs.get("strategy_from") in GIVEN)
        ]  # fmt: skip
        readers: dict[Parameter, Layout] = {}
        for node, i, parameter in (*(read for read in given if read[0].op.mutates), *given):
            layout = (node.in_layouts or ())[i] if i < len(node.in_layouts or ()) else None
            if layout is not None:
                readers.setdefault(parameter, layout.without_partial())
        forward: dict[Parameter, list[tuple[Node, int]]] = {}
        for node, i, parameter in reads:
            if node.phase == "forward":
                forward.setdefault(parameter, []).append((node, i))
        names = dict(_names_together(graph))
        for parameter in graph.parameters:
            layout, name = parameter.layout, names.get(parameter, parameter.name)
            if parameter.kind != "parameter" or not isinstance(layout, Layout) or not name:
                continue
            own = forward.get(parameter, [])
            needs = [node.in_layouts[i] for node, i in own if node.in_layouts]
            follows = layout == needs[0] == readers.get(parameter) if needs else not any(layout.dims)
            if not follows and (needs or parameter.trainable):
                self.stored[name] = layout
            if needs and parameter.trainable and layout != needs[0]:
                self.parameters[name] = layout
            again = [node for node, _ in own if node.attrs.get("gathers_again")]
            if again and len(again) == len(own) and not all(self.places.get(node) in self._asked for node in again):
                self.gathered.append(name)

    def plan(self, ranks: int) -> PlanFile:
        """Return the contents of a plan file."""
        return PlanFile(
            ranks, self.layouts, self.stored, tuple(self.recomputed), tuple(self.gathered), self.results,
            self.strategies, loops=self.loops, offload=tuple(self.offloaded), offload_states=self.states_offloaded,
        )  # fmt: skip


def _on_host(graph: Graph) -> Iterator[str]:
    """Yield the cells with values on the host, and `STATES` if optimizer states are there."""
    marked = [each for each in graph.graphs() if any(OFFLOAD in node.attrs for node in each.nodes)]
    if marked:
        from mspc.passes.lib.host_memory import marked_cells  # late: few networks have any

        for each in marked:
            yield from marked_cells(each)
    if any(OFFLOAD in parameter.attrs for parameter in graph.parameters):
        yield STATES


def parameter_reads(
    graph: Graph, known: Mapping[Value, Parameter] | None = None
) -> Iterator[tuple[Node, int, Parameter]]:
    """Yield (operator, operand index, parameter) for every read of a parameter, also in the graphs of equal layers. An
    iteration there reads one parameter of a stack: the first of the stack represents it. known: the parameter that
    each value represents."""
    known = {parameter: parameter for parameter in graph.parameters} if known is None else known
    for node in graph.nodes:
        if not runs_known_times(node):
            yield from ((node, i, known[value]) for i, value in enumerate(node.inputs) if value in known)
            continue
        op, (body,) = cast(Loop, node.op), node.regions
        inside: dict[Value, Parameter] = {}
        for i, value in enumerate(node.inputs):
            of = value.inputs[0] if isinstance(value, Node) and isinstance(value.op, MakeStack) else value
            place = op.inside(0, i)
            if place is not None and of in known:
                inside[body.parameters[place]] = known[of]
        yield from parameter_reads(body, inside)


def _names_together(graph: Graph) -> Iterator[tuple[Parameter, str]]:
    """Yield (parameter, name) for parameters in stacks of equal layers: the first has the joined name, the others have
    "" as name."""
    for node in graph.nodes:
        members = [value for value in node.inputs if isinstance(value, Parameter)]
        if isinstance(node.op, MakeStack) and len(members) == len(node.inputs):
            name = name_of_cells([member.name for member in members])
            if name:
                yield members[0], name
                yield from ((member, "") for member in members[1:])


def layer_nodes(graph: Graph) -> Iterator[Node]:
    """Yield the nodes inside loops of a known number of iterations: of equal layers, micro-batches and scanned rows."""
    for node in graph.nodes:
        for region in node.regions if runs_known_times(node) else ():
            yield from layer_nodes(region)
            yield from region.nodes


def _carried(node: Node) -> tuple[Layout, ...]:
    """Return the layouts of a loop's carried values and of its stacked results; () if not all are known."""
    op, body = cast(Loop, node.op), node.regions[-1]
    carried = [body.parameters[op.leading + number].layout for number in range(op.carried)]
    kept = element_layouts(node.layout)[op.carried :] if op.stacked else ()
    found = tuple(layout for layout in (*carried, *kept) if isinstance(layout, Layout))
    return found if len(found) == op.carried + op.stacked else ()


def shard_as_in_file(graph: Graph, file: str) -> None:
    """Give the operators named in a strategy file their strategies from it, which take precedence over the script's.
    Raise MspcError if the file does not exist, names no operator of the graph, or shards one of other dimensions."""
    from mspc.plans.files.strategy_file import read_strategies  # late, as only such a file needs it

    known = read_strategies(Path(file)).operators
    seen: list[str] = []
    met = False
    for node, names, place in named(graph):
        seen += names
        strategy = next((known[name] for name in (place, *names) if name in known), None)
        if strategy is None or node.op.is_collective:
            continue
        met = True
        shapes = [value.type.shape for value in node.inputs if isinstance(value.type, TensorType)]
        given = [shards for shards in strategy if shards] if len(strategy) != len(shapes) else list(strategy)
        if len(given) > len(shapes) or any(len(c) != len(s) for c, s in zip(given, shapes, strict=False) if c):
            raise node.error(
                f"{node.label}: the strategy file {file} shards it {strategy}, its operands have shapes "
                f"{tuple(shapes)}",
                ["the strategy file is of another network"],
            )
        if any(n != 1 for shards in given for n in shards):
            node.in_strategy, node.out_strategy = tuple(given), None
            node.attrs["strategy_from"] = FILE
    if known and not met:
        raise MspcError(
            f"the strategy file {file} names no operator of this network", kind=ValueError,
            notes=[f"it names {listed(sorted(known))}; the network has {listed(sorted(set(seen)))}"],
        )  # fmt: skip


def named(graph: Graph) -> Iterator[tuple[Node, list[str], str]]:
    """Yield (node, its names by trainable parameters, its name by place) for every forward operator, including those
    in equal layers that share one graph."""
    count: Counter[str] = Counter()
    for node in (*layer_nodes(graph), *graph.nodes):
        if node.phase != "forward":
            continue
        kind = kind_of(node)
        parameters = [v.name for v in node.inputs if isinstance(v, Parameter) and v.kind == "parameter" and v.trainable]
        yield node, [f"{node.op.name}_{name}" for name in parameters], f"{kind}-op{count[kind]}"
        count[kind] += 1
