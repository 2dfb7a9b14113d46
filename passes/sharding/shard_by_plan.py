"""Shards a graph as the plan says that the front end has written into its header.

Input:  `plan_operators : (("Default/network-Net/MatMul-op0", "(2, 4) [0, 1]", "(2, 4) [1, -]"))` and
        `%0 = MatMul(%x, %w) {place: Default/network-Net/MatMul-op0}`
Output: the same node with `cnode_attrs: {strategy_from: "the plan"} {in_layouts: (2, 4) [0, 1]; (2, 4) [1, -]}
        {layout: (2, 4) [0, -] sum[1]}`, and nothing of the plan in the header

A plan has priority over strategies of the script, which are on the operators by then. Cells that it computes
again are copied for gradients, parameters stored as it says. If it leaves nothing open there is nothing to search.
All mistakes are reported together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from mspc.ir.diagnostics import MspcError, did_you_mean, listed, raise_all
from mspc.ir.graph import Graph, Node, Value, element_layouts
from mspc.ir.layout import Layout, common_mesh, on_mesh
from mspc.ops.control.structural import Back, Depend, Enter, Joined, Keep, MakeTuple, TupleGetItem
from mspc.passes.autodiff.recompute import Recompute
from mspc.passes.base import GLOBAL, OPENED, Pass
from mspc.passes.lib.choices import (
    PLAN,
    NotedPlan,
    forget_plan,
    made_places,
    make_choice,
    merge,
    noted_plan,
    options_of,
    rule_of,
)
from mspc.passes.lib.recomputation import mark_cells, mark_offloaded, mark_states


class ShardByPlan(Pass):
    """Recompute cells, keep values on the host, store parameters and shard operators as the plan in the header says."""

    regions = OPENED
    needs = (GLOBAL,)

    def run(self, graph: Graph) -> bool:
        plan = noted_plan(graph)
        if plan is None:
            return False
        mistakes: list[MspcError] = []
        for work in (_recompute, _offload, _store, _shard_loops, _shard_operators):
            try:
                work(graph, plan)
            except MspcError as error:
                mistakes.append(error)
        raise_all(mistakes)
        forget_plan(graph)
        decided = (
            node
            for node in graph.nodes
            if node.phase == "forward" and rule_of(node) and not (isinstance(node.op, Enter) and node.op.scanned)
        )
        if all(node.in_layouts is not None for node in decided):
            graph.attrs.pop("search_mode", None)
        return True


def _recompute(graph: Graph, plan: NotedPlan) -> None:
    """Recompute cells, as a search does: their copies follow the sharding of the originals. Raise MspcError if there is
    no such cell."""
    if not plan.recompute:
        return
    missing = mark_cells(graph, plan.recompute)
    if missing:
        raise _no_such_cells(graph, missing, f"the plan {plan.file} computes {listed(missing)} again")
    Recompute().run(graph)


def _offload(graph: Graph, plan: NotedPlan) -> None:
    """Let values of cells, and states of optimizers, live on the host. Raise MspcError if there is no such cell, or
    there are no states."""
    if not plan.offload and not plan.offload_states:
        return
    missing = mark_offloaded(graph, plan.offload)
    if missing:
        raise _no_such_cells(graph, missing, f"the plan {plan.file} keeps values of {listed(missing)} on the host")
    if plan.offload_states and not mark_states(graph):
        raise MspcError(f"the plan {plan.file} keeps states of optimizers on the host, and the network has none")


def _no_such_cells(graph: Graph, missing: list[str], said: str) -> MspcError:
    cells = list(dict.fromkeys(node.scope for node in graph.nodes if node.phase == "forward"))
    notes = [*did_you_mean(missing[0], cells), f"it has {listed(cells) or 'none'}"]
    return MspcError(f"{said}, which the network does not have", notes=notes, code="E0410")


def check_known(wanted: list[str], known: list[str], file: str) -> None:
    """Raise MspcError if a plan names operators that are not `known`."""
    unknown = [name for name in wanted if name not in set(known)]
    if unknown:
        raise MspcError(
            f"the plan {file} names {listed(unknown)}, which the network does not have",
            notes=[*did_you_mean(unknown[0], known), f"it has {listed(known) or 'none'}"], code="E0410",
        )


def _shard_operators(graph: Graph, plan: NotedPlan) -> None:
    from mspc.passes.lib.layout_search import take_form  # late, as only a plan needs it

    nodes = {node.place: node for node in graph.nodes if node.place}
    known = [f"{kind}-op{number}" for kind, count in plan.places.items() for number in range(count)]
    made = {place: node for node, place in made_places(graph.nodes, set(nodes.values()), plan.places.copy())}
    nodes |= made
    wanted = list(dict.fromkeys([*plan.operators, *plan.results]))
    check_known(wanted, [*known, *made], plan.file)
    there = [name for name in wanted if name in nodes]  # others were left out as nothing reads them
    ranks = int(graph.attrs.get("ranks", 1))
    mistakes: list[MspcError] = []
    for name in there:
        try:
            take_form(graph, nodes[name], plan.operators.get(name, ()))
            _shard(nodes[name], plan.operators.get(name, ()), plan.results.get(name), ranks, plan.file)
        except MspcError as error:
            mistakes.append(error)
    raise_all(mistakes)
    for name in there:
        if name in plan.operators:
            _check_sums(nodes[name], plan.file)


def _store(graph: Graph, plan: NotedPlan) -> None:
    """Store parameters by the plan. Raise MspcError if one does not exist, or cannot be sharded so."""
    from mspc.ir.text.families import each_of_cells  # late, as only a plan needs it

    known = {p.name: p for p in graph.parameters if p.kind == "parameter"}
    layouts = {name: layout for names, layout in plan.parameters.items() for name in each_of_cells(names)}
    again = [name for names in plan.gather_again for name in each_of_cells(names)]
    unknown = [name for name in (*layouts, *again) if name not in known]
    if unknown:
        raise MspcError(
            f"the plan {plan.file} stores {listed(unknown)}, which are no parameters of the network",
            notes=[*did_you_mean(unknown[0], list(known)), f"it has {listed(list(known)) or 'none'}"], code="E0410",
        )
    for name, layout in layouts.items():
        parameter = known[name]
        if len(layout.dims) != len(parameter.shape) or not layout.divides(parameter.shape):
            shape = tuple(parameter.shape)
            raise MspcError(f"the plan {plan.file} stores {name} as {layout}, and its shape is {shape}")
        parameter.layout = layout
        parameter.attrs["parallel_optimizer"] = False  # it is sharded as it is to be
    gathered = {known[name] for name in again}
    for node in graph.nodes:
        if node.phase == "forward" and any(value in gathered for value in node.inputs):
            node.attrs["gathers_again"] = True


def _shard_loops(graph: Graph, plan: NotedPlan) -> None:
    """Let the loops over equal layers carry and store values in the plan's layouts. Raise MspcError if they cannot."""
    if not plan.loops:
        return
    owners = {node.place: node.op.owner for node in graph.nodes if node.place and isinstance(node.op, Joined)}
    check_known(list(plan.loops), list(owners), plan.file)
    marks: dict[Node, list[Node]] = {}
    for node in graph.nodes:
        if isinstance(node.op, Keep) or (isinstance(node.op, Enter) and not node.op.scanned):
            marks.setdefault(node.op.owner, []).append(node)
    for name, layouts in plan.loops.items():
        own = marks.get(owners[name], [])
        if len(own) != len(layouts) or any(not _fits(mark, each) for mark, each in zip(own, layouts, strict=True)):
            said = f"has {_shown(layouts)} for {name}, which carries and keeps {len(own)} values"
            raise MspcError(f"the plan {plan.file} {said}", notes=[", ".join(str(mark.type) for mark in own)])
        for mark, layout in zip(own, layouts, strict=True):
            rule = rule_of(mark)
            assert rule is not None
            choice = make_choice(rule, *merge(rule, ((rule.outputs[0], layout),), layout.ranks))
            mark.in_layouts, mark.layout = choice.inputs, choice.layout(mark.type)
            if layout.partial:  # partial sums of every iteration are stored, and completed after the loop
                mark.in_layouts = (replace(choice.inputs[0], partial=layout.partial, reduction=layout.reduction),)
                mark.layout = layout
    for node in graph.nodes:
        if isinstance(node.op, Back) and node.op.owner in marks and isinstance(node.inputs[0].layout, Layout):
            node.layout = node.inputs[0].layout
            node.in_layouts = (node.layout, node.layout)


def _fits(node: Node, layout: Layout) -> bool:
    shape = node.tensor_type.shape
    return len(layout.dims) == len(shape) and layout.divides(shape)


def _shard(node: Node, layouts: Sequence[Layout], results: Sequence[Layout] | None, ranks: int, file: str) -> None:
    """Give one operator the layouts of its operands and results. Raise MspcError if it cannot have them."""
    rule = rule_of(node)
    if rule is None:
        raise node.error(f"{node.label}: the plan {file} shards it, and it has no sharding rule", code="E0407")
    for given, wanted, what in ((layouts, rule.inputs, "operands"), (results, rule.outputs, "results")):
        if given is None:
            continue
        if len(given) != len(wanted) or any(len(a.dims) != len(b) for a, b in zip(given, wanted, strict=True)):
            raise node.error(
                f"{node.label}: the plan {file} has layouts {_shown(given)} for {what} of "
                f"{', '.join(str(len(dims)) for dims in wanted)} dimensions"
            )
    if not layouts and results is None:
        return
    options = options_of(node, rule, tuple(layouts), results, ranks)
    fitting = [option for option in options if option.inputs == tuple(layouts)]
    choice = next((each for each in fitting if results is None or each.outputs == tuple(results)), None)
    if choice is None:
        said = _shown(layouts) + (f" -> {_shown(results)}" if results is not None else "")
        next_to = _shown(options[0].inputs) + (f" -> {_shown(options[0].outputs)}" if results is not None else "")
        raise node.error(
            f"{node.label} cannot be sharded as the plan {file} says: {said}",
            notes=[f"its rule is {rule}", f"next to it is {next_to}"],
        )
    node.in_layouts, node.layout = choice.inputs, choice.layout(node.type)
    node.in_strategy = node.out_strategy = None
    node.attrs["strategy_from"] = PLAN


def _shown(layouts: Sequence[Layout]) -> str:
    return "; ".join(map(str, layouts))


def _check_sums(node: Node, file: str) -> None:
    """Raise MspcError if an operator is to take partial sums that its operand does not have."""
    for value, layout in zip(node.inputs, node.in_layouts or (), strict=False):
        given = _comes_out(value)
        if layout is not None and layout.partial and not _sums_alike(given, layout):
            raise node.error(
                f"{node.label}: the plan {file} has it take partial sums, {layout}, and its operand comes out "
                + (f"as {given}" if given is not None else "as no operator of the plan gives it"),
                notes=[f"without {str(layout).removeprefix(str(layout.without_partial())).strip()} they are completed"],
            )


def _sums_alike(given: Layout | None, taken: Layout) -> bool:
    """Return whether two layouts have the same partial sums, perhaps in other slices."""
    if given is None or given.reduction != taken.reduction:
        return False
    fine = common_mesh(given.mesh, taken.mesh)
    return fine is not None and set(on_mesh(given, fine)[1]) == set(on_mesh(taken, fine)[1])


def _comes_out(value: Value) -> Layout | None:
    """Return the layout that a plan has given a tensor, after orderings and tuples."""
    while isinstance(value, Node):
        if isinstance(value.op, Depend):
            value = value.inputs[0]
            continue
        if not isinstance(value.op, TupleGetItem):
            return value.layout if isinstance(value.layout, Layout) else None
        made = value.inputs[0]
        if not isinstance(made, Node) or not isinstance(made.op, MakeTuple | Joined):
            return dict(enumerate(element_layouts(made.layout))).get(value.op.index)
        value = made.inputs[value.op.index]
    return None
