"""What strategy files call the operators of a graph, and how a graph gets its strategies from such a file."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from mspc.checkpoint.strategy_file import Cuts, read_strategies
from mspc.compiler.plan_file import PlanFile, read_plan
from mspc.ir.diagnostics import MspcError, raise_all
from mspc.ir.graph import Graph, Node, Parameter, Value, element_layouts
from mspc.ir.layout import Layout
from mspc.ir.nearest import did_you_mean
from mspc.ir.types import TensorType
from mspc.ops.control.structural import Depend, MakeTuple, TupleGetItem
from mspc.ops.op import Op
from mspc.passes.autodiff.planned_cells import mark_cells, planned_cells
from mspc.passes.sharding.choices import choices, make_choice, merge, rule_of
from mspc.passes.sharding.givers import FILE, PLAN

STRATEGIES, LAYOUTS = "step_parallel_begin", "propagate_sharding"
"""The stages that the strategies and the layouts are read from."""
CONFIGURED = "check_strategies"
"""The stage at which the script's strategies are on the operators."""
MOST_LISTED = 5


@dataclass
class StrategyNames:
    """The cuts of operators: of those that read a trainable parameter as `MatMul_w`, and of all as
    `Default/network-Net/MatMul-op0`, by their cells and their place among those of their kind; layouts: the same with
    the ranks that hold the slices. places: the names of the nodes that the front end made. given: the plan that
    they were cut by. parameters: those that are stored otherwise than their first reader needs them; gathered: of
    them those that gradients gather again. recomputed: cells that a plan has computed again."""

    by_parameter: dict[str, Cuts] = field(default_factory=dict[str, Cuts])
    by_place: dict[str, Cuts] = field(default_factory=dict[str, Cuts])
    layouts: dict[str, tuple[Layout, ...]] = field(default_factory=dict[str, tuple[Layout, ...]])
    places: dict[Node, str] = field(default_factory=dict[Node, str])
    given: PlanFile | None = None
    parameters: dict[str, Layout] = field(default_factory=dict[str, Layout])
    gathered: list[str] = field(default_factory=list[str])
    recomputed: list[str] = field(default_factory=list[str])

    def note(self, graph: Graph) -> None:
        """Keep the cuts of a graph's operators."""
        for node, names, place in _named(graph):
            if node.strategy is not None:
                cuts = tuple(tuple(entry) for entry in node.strategy)
                self.by_place[place] = cuts
                self.by_parameter.update(dict.fromkeys(names, cuts))

    def name(self, graph: Graph) -> None:
        """Note what the operators of a graph are called before passes leave some out and add others."""
        self.places = {node: place for node, _, place in _named(graph)}

    def note_layouts(self, graph: Graph) -> None:
        """Keep the layouts of the operators that have names, as they are once they are decided on."""
        for node in graph.nodes:
            place = self.places.get(node)
            ruled = isinstance(node.op, Op) and type(node.op).rule is not Op.rule
            if place is not None and ruled and node.in_layouts:  # what has no operands has no layouts to say
                self.layouts[place] = tuple(layout for layout in node.in_layouts if layout is not None)
        self.recomputed = planned_cells(graph)
        users = graph.users()
        for parameter in graph.parameters:
            layout = parameter.layout
            reads = [(node, i) for node, i in users.get(parameter, ()) if node.phase == "forward" and node.in_layouts]
            if parameter.kind != "parameter" or not parameter.trainable or not reads or not isinstance(layout, Layout):
                continue
            needs = [node.in_layouts[i] for node, i in reads if node.in_layouts is not None]
            if layout != needs[0]:
                self.parameters[parameter.name] = layout
                if any(node.attrs.get("gathers_again") for node, _ in reads):
                    self.gathered.append(parameter.name)

    def plan(self, ranks: int) -> PlanFile:
        """What a plan file says of it."""
        return PlanFile(ranks, self.layouts, self.parameters, tuple(self.recomputed), tuple(self.gathered))


def cut_as_in_file(graph: Graph, file: str) -> None:
    """Give the operators that a strategy file names the strategies that it has for them; they go before the script's.

    Raises:
        MspcError: there is no such file, or it names no operator of the graph, or cuts one of other dimensions.
    """
    known = read_strategies(Path(file)).operators
    seen: list[str] = []
    met = False
    for node, names, place in _named(graph):
        seen += names
        cuts = next((known[name] for name in (place, *names) if name in known), None)
        if cuts is None or node.op.is_collective:
            continue
        met = True
        shapes = [value.type.shape for value in node.inputs if isinstance(value.type, TensorType)]
        given = [cut for cut in cuts if cut] if len(cuts) != len(shapes) else list(cuts)
        if len(given) > len(shapes) or any(len(c) != len(s) for c, s in zip(given, shapes, strict=False) if c):
            raise node.error(
                f"{node.label}: the strategy file {file} cuts it {cuts}, its operands have shapes {tuple(shapes)}",
                ["the strategy file is of another network"],
            )
        if any(n != 1 for cut in given for n in cut):
            node.in_strategy, node.out_strategy = tuple(given), None
            node.attrs["strategy_from"] = FILE
    if known and not met:
        raise MspcError(
            f"the strategy file {file} names no operator of this network", kind=ValueError,
            notes=[f"it names {_listed(sorted(known))}; the network has {_listed(sorted(set(seen)))}"],
        )  # fmt: skip


def recompute_as_planned(graph: Graph, file: str) -> None:
    """Mark the cells that a plan computes again. Raises MspcError where there is no such file or cell."""
    missing = mark_cells(graph, read_plan(Path(file)).recompute)
    if missing:
        cells = list(dict.fromkeys(node.scope for node in graph.nodes if node.phase == "forward"))
        raise MspcError(
            f"the plan {file} computes {_listed(missing)} again, which the network does not have",
            notes=[*did_you_mean(missing[0], cells), f"it has {_listed(cells)}"],
        )


def cut_as_planned(names: StrategyNames, graph: Graph, ranks: int, file: str) -> None:
    """Give the operators and parameters that a plan names the layouts that it has for them; they go before strategies
    of the script.

    Raises:
        MspcError: there is no such file, or it is of another network or number of ranks, or an operator cannot be cut
            so. All mistakes together.
    """
    plan = read_plan(Path(file))
    if plan.ranks != ranks:
        raise MspcError(f"the plan {file} is for {plan.ranks} ranks, and the network is compiled for {ranks}")
    cut_by_plan(names, graph, plan, file)


def cut_by_plan(names: StrategyNames, graph: Graph, plan: PlanFile, file: str) -> None:
    """As `cut_as_planned`, by a plan that was read. file: that says it."""
    names.given = plan
    mistakes: list[MspcError] = []
    for work in (lambda: _store(graph, plan, file), lambda: _cut_operators(names, plan, file)):
        try:
            work()
        except MspcError as error:
            mistakes.append(error)
    raise_all(mistakes)


def _cut_operators(names: StrategyNames, plan: PlanFile, file: str) -> None:
    nodes = {place: node for node, place in names.places.items()}
    unknown = [name for name in plan.operators if name not in nodes]
    if unknown:
        raise MspcError(
            f"the plan {file} names {_listed(unknown)}, which the network does not have",
            notes=[*did_you_mean(unknown[0], list(nodes)), f"it has {_listed(list(nodes))}"],
        )
    mistakes: list[MspcError] = []
    for name, layouts in plan.operators.items():
        try:
            _cut(nodes[name], layouts, plan.ranks, file)
        except MspcError as error:
            mistakes.append(error)
    raise_all(mistakes)
    for name in plan.operators:
        _check_sums(nodes[name], file)


def _store(graph: Graph, plan: PlanFile, file: str) -> None:
    """Store parameters as a plan says. Raises MspcError where one is not there, or cannot be cut so."""
    trained = {p.name: p for p in graph.parameters if p.kind == "parameter" and p.trainable}
    unknown = [name for name in (*plan.parameters, *plan.gather_again) if name not in trained]
    if unknown:
        raise MspcError(
            f"the plan {file} stores {_listed(unknown)}, which are no trained parameters of the network",
            notes=[*did_you_mean(unknown[0], list(trained)), f"it has {_listed(list(trained))}"],
        )
    for name, layout in plan.parameters.items():
        parameter = trained[name]
        if len(layout.dims) != len(parameter.shape) or not layout.divides(parameter.shape):
            raise MspcError(f"the plan {file} stores {name} as {layout}, and its shape is {tuple(parameter.shape)}")
        parameter.layout = layout
        parameter.attrs["parallel_optimizer"] = False  # it is cut as it is to be
    gathered = {trained[name] for name in plan.gather_again}
    for node in graph.nodes:
        if node.phase == "forward" and any(value in gathered for value in node.inputs):
            node.attrs["gathers_again"] = True


def _cut(node: Node, layouts: Sequence[Layout], ranks: int, file: str) -> None:
    """Give one operator the layouts of its operands. Raises MspcError where it cannot have them."""
    rule = rule_of(node)
    if rule is None:
        raise node.error(f"{node.label}: the plan {file} cuts it, and it has no sharding rule")
    fits = len(layouts) == len(rule.inputs) and all(
        len(layout.dims) == len(dims) for layout, dims in zip(layouts, rule.inputs, strict=True)
    )
    if not fits:
        raise node.error(
            f"{node.label}: the plan {file} has layouts {_shown(layouts)} for operands of "
            f"{', '.join(str(len(dims)) for dims in rule.inputs)} dimensions"
        )
    if not layouts:
        return
    sources = tuple((dims, layout.without_partial()) for dims, layout in zip(rule.inputs, layouts, strict=True) if dims)
    choice = make_choice(rule, *merge(rule, sources, ranks))
    if any(layout.partial for layout in layouts):
        ways = choices(cast(Op, node.op), rule, tuple(layouts), (), ranks)
        choice = next((way for way in ways if way.inputs == tuple(layouts)), choice)
    if choice.inputs != tuple(layouts):
        raise node.error(
            f"{node.label} cannot be cut as the plan {file} says: {_shown(layouts)}",
            notes=[f"its rule is {rule}", f"next to it is {_shown(choice.inputs)}"],
        )
    node.in_layouts, node.layout = choice.inputs, choice.layout(node.type)
    node.in_strategy = node.out_strategy = None
    node.attrs["strategy_from"] = PLAN


def _check_sums(node: Node, file: str) -> None:
    """Raise MspcError where an operator is to take partial sums that its operand does not come out in."""
    for value, layout in zip(node.inputs, node.in_layouts or (), strict=False):
        given = _comes_out(value)
        if layout is not None and layout.partial and given != layout:
            raise node.error(
                f"{node.label}: the plan {file} has it take partial sums, {layout}, and its operand comes out "
                + (f"as {given}" if given is not None else "as no operator of the plan gives it"),
                notes=[f"without {str(layout).removeprefix(str(layout.without_partial())).strip()} they are completed"],
            )


def _comes_out(value: Value) -> Layout | None:
    """The layout that a plan has given a tensor, behind orderings and tuples."""
    if not isinstance(value, Node):
        return None
    if isinstance(value.op, TupleGetItem):
        made = value.inputs[0]
        if isinstance(made, Node) and isinstance(made.op, MakeTuple):
            return _comes_out(made.inputs[value.op.index])
        return dict(enumerate(element_layouts(made.layout))).get(value.op.index)
    if isinstance(value.op, Depend):
        return _comes_out(value.inputs[0])
    return value.layout if isinstance(value.layout, Layout) else None


def _shown(layouts: Sequence[Layout]) -> str:
    return "; ".join(map(str, layouts))


def _listed(names: list[str]) -> str:
    return ", ".join(names[:MOST_LISTED]) + (", ..." if len(names) > MOST_LISTED else "") or "none"


def _named(graph: Graph) -> Iterator[tuple[Node, list[str], str]]:
    """(node, its names by trainable parameters, its name by its place) of every forward operator."""
    count: Counter[str] = Counter()
    for node in graph.nodes:
        if node.phase != "forward":
            continue
        kind = f"{node.scope or 'Default'}/{node.op.name}"
        parameters = [v.name for v in node.inputs if isinstance(v, Parameter) and v.kind == "parameter" and v.trainable]
        yield node, [f"{node.op.name}_{name}" for name in parameters], f"{kind}-op{count[kind]}"
        count[kind] += 1
