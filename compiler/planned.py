"""How a graph is cut as a plan says: strategies before all passes, the rest once they are on the operators."""

from __future__ import annotations

from collections.abc import Sequence

from mspc.compiler.plan_file import PlanFile
from mspc.compiler.plan_ways import ways_of
from mspc.compiler.strategy_names import StrategyNames, listed
from mspc.ir.diagnostics import MspcError, raise_all
from mspc.ir.graph import Graph, Node, Value, element_layouts
from mspc.ir.layout import Layout
from mspc.ir.nearest import did_you_mean
from mspc.ops.control.structural import Depend, MakeTuple, TupleGetItem
from mspc.passes.autodiff.planned_cells import mark_cells
from mspc.passes.autodiff.recompute import Recompute
from mspc.passes.sharding.choices import Choice, rule_of
from mspc.passes.sharding.givers import PLAN
from mspc.sharding.factors import Rule


def check_ranks(plan: PlanFile, ranks: int, file: str) -> None:
    """Raise MspcError where a plan is for another number of ranks."""
    if plan.ranks != ranks:
        raise MspcError(f"the plan {file} is for {plan.ranks} ranks, and the network is compiled for {ranks}")


def give_strategies(names: StrategyNames, graph: Graph, plan: PlanFile, file: str) -> None:
    """Give the operators of a graph that was read what a plan has of `shard()`, in place of what the script says.

    Raises:
        MspcError: an operator is not there.
    """
    if plan.strategies is None:
        return
    nodes = {place: node for node, place in names.places.items()}
    _check_known(list(plan.strategies), list(nodes), file)
    for node in graph.nodes:
        node.in_strategy = node.out_strategy = None
    for name, given in plan.strategies.items():
        nodes[name].in_strategy, nodes[name].out_strategy = given.operands, given.results


def cut_by_plan(names: StrategyNames, graph: Graph, plan: PlanFile, file: str) -> None:
    """Compute cells again, store parameters and cut operators as a plan says; that goes before strategies of the
    script. Where it leaves nothing open there is nothing to search.

    Args:
        file: that says it.

    Raises:
        MspcError: the plan is of another network, or an operator cannot be cut so. All mistakes together.
    """
    names.given = plan
    mistakes: list[MspcError] = []
    for work in (_recompute, _store):
        try:
            work(graph, plan, file)
        except MspcError as error:
            mistakes.append(error)
    try:
        _cut_operators(names, plan, file)
    except MspcError as error:
        mistakes.append(error)
    raise_all(mistakes)
    if all(node.in_layouts is not None for node in graph.nodes if node.phase == "forward" and rule_of(node)):
        graph.attrs.pop("search_mode", None)


def _recompute(graph: Graph, plan: PlanFile, file: str) -> None:
    """Compute cells again, as a search does it: their copies follow what the originals are cut by. Raises MspcError
    where there is no such cell."""
    if not plan.recompute:
        return
    missing = mark_cells(graph, plan.recompute)
    if missing:
        cells = list(dict.fromkeys(node.scope for node in graph.nodes if node.phase == "forward"))
        raise MspcError(
            f"the plan {file} computes {listed(missing)} again, which the network does not have",
            notes=[*did_you_mean(missing[0], cells), f"it has {listed(cells)}"],
        )
    Recompute().run(graph)


def _check_known(wanted: list[str], known: list[str], file: str) -> None:
    unknown = [name for name in wanted if name not in set(known)]
    if unknown:
        raise MspcError(
            f"the plan {file} names {listed(unknown)}, which the network does not have",
            notes=[*did_you_mean(unknown[0], known), f"it has {listed(known)}"],
        )


def _cut_operators(names: StrategyNames, plan: PlanFile, file: str) -> None:
    nodes = {place: node for node, place in names.places.items()}
    wanted = list(dict.fromkeys([*plan.operators, *plan.results]))
    _check_known(wanted, list(nodes), file)
    mistakes: list[MspcError] = []
    for name in wanted:
        try:
            _cut(nodes[name], plan.operators.get(name, ()), plan.results.get(name), plan.ranks, file)
        except MspcError as error:
            mistakes.append(error)
    raise_all(mistakes)
    for name in plan.operators:
        _check_sums(nodes[name], file)


def _store(graph: Graph, plan: PlanFile, file: str) -> None:
    """Store parameters as a plan says. Raises MspcError where one is not there, or cannot be cut so."""
    known = {p.name: p for p in graph.parameters if p.kind == "parameter"}
    unknown = [name for name in (*plan.parameters, *plan.gather_again) if name not in known]
    if unknown:
        raise MspcError(
            f"the plan {file} stores {listed(unknown)}, which are no parameters of the network",
            notes=[*did_you_mean(unknown[0], list(known)), f"it has {listed(list(known))}"],
        )
    for name, layout in plan.parameters.items():
        parameter = known[name]
        if len(layout.dims) != len(parameter.shape) or not layout.divides(parameter.shape):
            raise MspcError(f"the plan {file} stores {name} as {layout}, and its shape is {tuple(parameter.shape)}")
        parameter.layout = layout
        parameter.attrs["parallel_optimizer"] = False  # it is cut as it is to be
    gathered = {known[name] for name in plan.gather_again}
    for node in graph.nodes:
        if node.phase == "forward" and any(value in gathered for value in node.inputs):
            node.attrs["gathers_again"] = True


def _cut(
    node: Node, layouts: Sequence[Layout], results: Sequence[Layout] | None, ranks: int, file: str
) -> None:
    """Give one operator the layouts of its operands and results. Raises MspcError where it cannot have them."""
    rule = rule_of(node)
    if rule is None:
        raise node.error(f"{node.label}: the plan {file} cuts it, and it has no sharding rule")
    _check_sizes(node, rule, layouts, results, file)
    if not layouts and results is None:
        return
    ways = ways_of(node, rule, tuple(layouts), results, ranks)
    choice = next((way for way in ways if _is_as_said(way, layouts, results)), None)
    if choice is None:
        said = _shown(layouts) + (f" -> {_shown(results)}" if results is not None else "")
        next_to = _shown(ways[0].inputs) + (f" -> {_shown(ways[0].outputs)}" if results is not None else "")
        raise node.error(
            f"{node.label} cannot be cut as the plan {file} says: {said}",
            notes=[f"its rule is {rule}", f"next to it is {next_to}"],
        )
    node.in_layouts, node.layout = choice.inputs, choice.layout(node.type)
    node.in_strategy = node.out_strategy = None
    node.attrs["strategy_from"] = PLAN


def _check_sizes(
    node: Node, rule: Rule, layouts: Sequence[Layout], results: Sequence[Layout] | None, file: str
) -> None:
    """Raise MspcError where there are not as many layouts and dimensions as an operator has."""
    for given, wanted, what in ((layouts, rule.inputs, "operands"), (results, rule.outputs, "results")):
        if given is None:
            continue
        if len(given) != len(wanted) or any(len(a.dims) != len(b) for a, b in zip(given, wanted, strict=True)):
            raise node.error(
                f"{node.label}: the plan {file} has layouts {_shown(given)} for {what} of "
                f"{', '.join(str(len(dims)) for dims in wanted)} dimensions"
            )


def _is_as_said(way: Choice, layouts: Sequence[Layout], results: Sequence[Layout] | None) -> bool:
    return way.inputs == tuple(layouts) and (results is None or way.outputs == tuple(results))


def _shown(layouts: Sequence[Layout]) -> str:
    return "; ".join(map(str, layouts))


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
