"""Explanation of an operator's sharding: the least cost of every other choice, and the tensors that cause it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

from mspc.analysis.cost.timeline import MissingRate, missing_rates
from mspc.compiler.driver import DumpPoint, compile_traced
from mspc.engine.capture import CapturedCall
from mspc.ir.diagnostics import MspcError, did_you_mean
from mspc.ir.graph import Graph, Node, Parameter, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.text.families import each_of_cells
from mspc.passes.lib.choices import SHARD
from mspc.passes.lib.layout_search import other_rule
from mspc.passes.lib.opened_graphs import open_regions
from mspc.passes.sharding.propagate_sharding import begun
from mspc.plans.operator_names import CONFIGURED, StrategyNames, all_is_given
from mspc.search.layouts.cheapest import mesh_of
from mspc.search.model.memory import MemoryModel
from mspc.search.model.model import NEVER, CostModel
from mspc.search.plans.alternatives import LARGE, PlannedNetwork, PlanRequest
from mspc.search.solver.elimination import LARGEST, Assignment, Elimination, cost_of
from mspc.sharding.rules import Rule

NAMED = 8
"""Maximum number of names in a message."""
ELLIPSIS = "..."
"""Placeholder for omitted cells in an operator's name."""
PLACES = 3
"""Number of tensors that are reported as the causes of a higher cost."""
WORDS = {"alone": "in", "there": "to the readers of", "back": "the gradient of"}
"""Words for each kind of cost, before the name of a value."""
EQUAL_SECONDS = 1e-9
"""Seconds below which plans cost the same."""


@dataclass(frozen=True)
class Spent:
    """Additional cost of one tensor or operator in one plan compared with another. what: the kind of cost in words.
    name: in plans, or of a parameter."""

    seconds: float
    what: str
    name: str


@dataclass(frozen=True)
class ExplainedAlternative:
    """One way to shard an operator. layouts: of its operands. seconds: additional time of the cheapest plan with this
    choice over the cheapest of all; infinite if there is none. where: the tensors and operators with the largest
    additional costs. memory: predicted bytes at that plan's peak on a rank; 0 without a limit. taken: the choice of the
    search."""

    layouts: tuple[str, ...]
    seconds: float
    where: tuple[Spent, ...]
    memory: int
    taken: bool


@dataclass(frozen=True)
class Explanation:
    """Explanation of one operator. name: in plans. origin: source of the decision. line: "file:line: source". cannot:
    dimensions that cannot be sharded, and why. memory: measures besides layouts that could lower memory, with their
    costs. others: later operators that also match the given name. missing_rates: computations estimated at rates of
    another element type."""

    name: str
    operator: str
    origin: str
    line: str
    alternatives: tuple[ExplainedAlternative, ...]
    cannot: tuple[str, ...]
    memory: tuple[str, ...] = ()
    others: tuple[str, ...] = ()
    missing_rates: tuple[MissingRate, ...] = ()


class _ExplanationFound(Exception):  # ends a compile once the explanation is known
    def __init__(self, explanation: Explanation) -> None:
        super().__init__()
        self.explanation = explanation


def explain(captured: CapturedCall, asked: PlanRequest, name: str) -> Explanation:
    """Explain why the search shards an operator as it does.

    name: the operator's name in plans, a suffix of it, or its name in the script. The first match is explained. Raise
    MspcError if no operator has that name, or nothing can be decided on it.
    """
    config = asked.config(captured)
    config = replace(config, search_terms=replace(config.search_terms, memory=asked.memory))
    call = PlannedNetwork.read(captured, config, asked.free, bool(asked.memory)).call
    names = StrategyNames()
    names.name(call.traced.graph, with_layers=True)
    place, *others = (names.places[node] for node in _named(names.places, name))
    if asked.free:
        call.traced.graph.clear_strategies()

    def look(stage: DumpPoint) -> None:
        if stage.name == CONFIGURED:
            names.name_made(stage.graph)
        if all_is_given(stage.name, stage.graph):
            if any(node.regions for node in stage.graph.nodes):
                open_regions(stage.graph)  # permanently: the compile ends here
            raise _ExplanationFound(_NodeSearch(stage.graph, place, names.places, asked).answer())

    try:
        compile_traced(call, look, plans=True)
    except _ExplanationFound as found:
        return replace(found.explanation, others=tuple(others))
    raise MspcError(f"{config.mode} decides on no operator")


def _named(places: Mapping[Node, str], name: str) -> list[Node]:
    """Return the operators that match a name, in graph order. The name is a suffix of the name in plans, with "..." in
    place of omitted cells, or the name in the script. Raise MspcError if none matches."""
    known = list(places.values())
    exact = [node for node, place in places.items() if name in (place, *each_of_cells(place))]
    if exact:
        return exact
    pattern = re.compile(rf"(.*/)?{'.*'.join(map(re.escape, name.lstrip('/').split(ELLIPSIS)))}")
    named = [node for node, place in places.items() if any(map(pattern.fullmatch, (place, *each_of_cells(place))))]
    found = named if name.strip("./") else []
    found = found or [node for node in places if name and name in (node.instance, node.label)]
    if found:
        return found
    depth = name.strip("/").count("/") + 1  # names are often given by their ends
    ends = ["/".join(place.split("/")[-depth:]) for place in known]
    notes = did_you_mean(name, known) or did_you_mean(name, ends) or [f"the first are {', '.join(known[:5])}"]
    raise MspcError(f"the network has no operator {name!r}", kind=ValueError, notes=notes, code="E1302")


class _NodeSearch:
    """Search on a graph that explains one of its nodes."""

    def __init__(self, graph: Graph, place: str, places: Mapping[Node, str], asked: PlanRequest) -> None:
        self.places, self.asked = places, asked
        self.search, _ = begun(graph)
        node = next((each for each in graph.nodes if places.get(each) == place), None)
        if node is None or self.search.rules[node] is None:
            raise MspcError(f"nothing is decided on {place}: it is left out, or it follows its operands", code="E1302")
        self.node, self.given = node, node.in_layouts
        self.origin = str(node.attrs.get("strategy_from", SHARD)) if self.given is not None else "search"
        if self.given is not None:  # undecided, to see the alternatives
            node.in_layouts = node.layout = None
        self.model = CostModel(self.search, mesh_of(self.search))
        self.memory = MemoryModel(self.model) if asked.memory else None
        if node not in self.model.of:
            raise MspcError(
                f"nothing is decided on {places[node]}: it takes its operands in their layouts", code="E1302"
            )

    def answer(self) -> Explanation:
        model, node = self.model, self.node
        variable = model.of[node]
        sizes = [v.size for v in model.variables]
        found = Elimination(sizes, model.factors, LARGEST).min_marginals(variable)
        best = min(range(len(found)), key=lambda i: (found[i].cost, i))
        choices = model.variables[variable].choices
        bandwidth = self.asked.machine.link.bandwidth.at(LARGE)
        alternatives: dict[tuple[str, ...], ExplainedAlternative] = {}
        for i in sorted(range(len(found)), key=lambda i: (found[i].cost, i)):
            layouts = tuple(str(layout) for layout in choices[i].inputs)
            taken = i == best if self.given is None else choices[i].inputs == self.given
            more = found[i].cost - found[best].cost
            seconds = float("inf") if more >= NEVER / 2 else more / bandwidth
            where = self._where(found[best], found[i], bandwidth) if EQUAL_SECONDS < seconds < float("inf") else ()
            held = 0.0 if self.memory is None else self.memory.peak(found[i].values)
            alternatives.setdefault(layouts, ExplainedAlternative(layouts, seconds, where, int(held), taken))
        line = next((f"{f.file}:{f.line}: {f.text.strip()}" for f in node.frames if not f.file.startswith("mspc/")), "")
        return Explanation(
            self.places[node], node.label, self.origin, line, tuple(alternatives.values()), tuple(self._cannot()),
            tuple(self._savings(found[best], bandwidth)),
            missing_rates=missing_rates([self.search.graph], self.asked.machine),
        )  # fmt: skip

    def _savings(self, best: Assignment, bandwidth: float) -> Iterator[str]:
        """If memory is limited, yield the bytes that the cheapest plan saves, and the cost, by recomputing the
        operator's cell and by sharding its parameters further."""
        model, memory = self.model, self.memory
        if memory is None:
            return
        changes = [
            (f"computing {block.cell} again", memory.switches[block.cell], 1)
            for block in memory.blocks
            if self.node in block.inside
        ]
        for value in self.node.inputs:
            variable = model.of.get(value, -1) if isinstance(value, Parameter) else -1
            if variable >= 0:
                for choice in range(model.variables[variable].size):
                    again = model.variables[variable].again
                    layout = model.layout(value, int(model.variables[variable].outputs[0][choice]))
                    twice = ", gathered again for gradients," * bool(again and again[choice])
                    changes.append((f"storing {self._called(value)} as {layout}{twice}", variable, choice))
        for what, variable, choice in changes:
            if best.values[variable] == choice:
                continue
            values = [*best.values[:variable], choice, *best.values[variable + 1 :]]
            touched = [f for f in model.factors if variable in f.variables]
            now, then = (cost_of(touched, plan) for plan in (best.values, values))
            more = then - now
            saved = max(memory.live_bytes(best.values)) - max(memory.live_bytes(values))
            if saved > 0 and more < NEVER / 2:
                yield f"{what} would save {saved:.0f} bytes and take {max(0.0, more) / bandwidth * 1e6:.1f} us more"

    def _where(self, best: Assignment, other: Assignment, bandwidth: float) -> tuple[Spent, ...]:
        """Return the costs that differ most between two plans."""
        more: Counter[tuple[str, Value]] = Counter()
        for factor, about in zip(self.model.factors, self.model.about, strict=True):
            ours, theirs = (float(factor.table[tuple(a.values[v] for v in factor.variables)]) for a in (best, other))
            if ours != theirs and about[0] in WORDS:
                more[about] += theirs - ours  # pyright: ignore[reportArgumentType]  # bytes, which may be fractions
        ordered = sorted(more.items(), key=lambda item: -abs(item[1]))[:PLACES]
        return tuple(Spent(cost / bandwidth, WORDS[kind], self._called(value)) for (kind, value), cost in ordered)

    def _called(self, value: Value) -> str:
        return self.places.get(value, value.label) if isinstance(value, Node) else str(getattr(value, "name", value))

    def _cannot(self) -> Sequence[str]:
        """Return the dimensions that are not sharded, with the reasons."""
        rule = self.search.rules[self.node]
        assert rule is not None
        found: list[str] = []
        mesh, other = self.model.mesh, other_rule(self.node, self.search.ranks)
        for f, (name, size) in enumerate(zip(rule.names, rule.sizes, strict=True)):
            if f in rule.frozen and other is not None and _may_be_sharded(rule, other, f):
                continue  # in another form of the operator
            if f in rule.frozen:
                found.append(f"{name} ({size}) is not sharded: the operator's rule says so")
            elif size > 1 and any(size % axis for axis in mesh):
                odd = sorted({axis for axis in mesh if size % axis})
                counts = " or ".join(map(str, odd))
                found.append(f"{name} ({size}) is not sharded into {counts} slices: it is no multiple")
        return found


def _may_be_sharded(rule: Rule, other: Rule, factor: int) -> bool:
    """Return whether another rule on the same operands shards the dimension that a factor of this rule belongs to."""
    return any(
        factor in dim and any(f not in other.frozen for f in in_other)
        for dims, in_others in zip(rule.inputs, other.inputs, strict=True)
        for dim, in_other in zip(dims, in_others, strict=True)
    )
