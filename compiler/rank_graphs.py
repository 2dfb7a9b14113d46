"""Graphs of all ranks. Passes after slicing run once for each kind of ranks (`passes.rank_kinds`)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping, Sequence
from dataclasses import field
from operator import attrgetter, is_
from typing import Any

from mspc.ir.graph import (
    STAGE,
    STAGES,
    Constant,
    Graph,
    Node,
    OpLike,
    Parameter,
    Value,
    copied_node,
    copied_parameter,
    copied_region,
)
from mspc.ir.late_dataclass import dataclass
from mspc.ir.text.printer import OpenText, SharedTexts, print_graph
from mspc.ir.varying import VaryingConstant
from mspc.passes.base import OnPass, PassManager, find_pass, run_passes
from mspc.passes.fusion.update_rows import UpdateRows
from mspc.passes.lib.ranks import GraphPositions, RankElement, RankKindParts, VaryingParts, own_constant, own_op, varies
from mspc.passes.lib.unused_states import NumberOf, drop_unused_parameters, stateless_nodes
from mspc.passes.per_rank.slice_to_rank import check_rank, sliced


class GraphSnapshots:
    """Copies of one graph over time, which must not be changed. texts: records which copies have the same text."""

    def __init__(self, texts: SharedTexts) -> None:
        self._texts = texts
        self._nodes: dict[Node, Node] = {}
        """The latest copy of each node; likewise below."""
        self._parameters: dict[Parameter, Parameter] = {}
        self._graphs: dict[Graph, Graph] = {}

    def take(self, graph: Graph) -> Graph:
        """Return a copy of the current graph."""
        return self._take(graph, {})

    def _take(self, graph: Graph, taken: dict[Graph, Graph]) -> Graph:
        if graph in taken:
            return taken[graph]
        made = Graph(graph.name)
        made.attrs, made.returns_tuple = dict(graph.attrs), graph.returns_tuple
        of: dict[Value, Value] = {}
        for parameter in graph.parameters:
            of[parameter] = copy = self._parameter(parameter)
            made.parameters.append(copy)
        for node in graph.nodes:
            inputs = [of.get(value, value) for value in node.inputs]  # constants are shared
            regions = tuple([self._take(region, taken) for region in node.regions]) if node.regions else ()
            forward = of.get(node.forward) if node.forward is not None else None
            before = self._nodes.get(node)
            says_the_same = before is not None and _says_the_same(before, node, forward)
            same = says_the_same and _are_same(before.inputs, inputs) and _are_same(before.regions, regions)
            if before is not None and same:
                own = before
            else:
                own = self._nodes[node] = copied_node(node, inputs)
                own.regions = regions
                own.forward = forward if isinstance(forward, Node) else None
                if before is not None and says_the_same and _is_written_alike(before, own):
                    self._texts.write_alike(own, before)
            of[node] = own
            made.nodes.append(own)
        made.results = [of.get(value, value) for value in graph.results]
        earlier = self._graphs.get(graph)
        if earlier is None or not _is_same(earlier, made):
            self._graphs[graph] = earlier = made
        taken[graph] = earlier
        return earlier

    def _parameter(self, parameter: Parameter) -> Parameter:
        own = self._parameters.get(parameter)
        if own is None or any(getattr(own, name) != getattr(parameter, name) for name in _OF_PARAMETERS):
            own = self._parameters[parameter] = copied_parameter(parameter)
        return own


_OF_PARAMETERS = ("name", "type", "kind", "layout", "trainable", "global_type", "attrs")


_IDENTICAL = attrgetter("op", "type", "frames", "in_layouts", "layout", "strategy", "in_strategy", "out_strategy")
_EQUAL = attrgetter("attrs", "name", "phase", "scope", "instance", "place", "forward_input")


def _says_the_same(own: Node, node: Node, forward: Value | None) -> bool:
    """Return whether a copy still matches the node, except for its operands and regions. Large fields are compared by
    identity: at worst the node is copied again."""
    same = own.forward is forward and all(map(is_, _IDENTICAL(own), _IDENTICAL(node)))
    return same and _EQUAL(own) == _EQUAL(node)


def _is_written_alike(one: Node, other: Node) -> bool:
    """Return whether two matching nodes differ at most in the identity of their operands, with equal types, and in the
    contents of their regions."""
    return (
        len(one.inputs) == len(other.inputs)
        and all(
            a is b or (a.type is b.type and not isinstance(a, Constant) and not isinstance(b, Constant))
            for a, b in zip(one.inputs, other.inputs, strict=True)
        )
        and [region.name for region in one.regions] == [region.name for region in other.regions]
    )


def _is_same(before: Graph, made: Graph) -> bool:
    """Return whether two copies consist of the same nodes."""
    return (
        before.name == made.name
        and before.returns_tuple == made.returns_tuple
        and before.attrs == made.attrs
        and _are_same(before.parameters, made.parameters)
        and _are_same(before.nodes, made.nodes)
        and _are_same(before.results, made.results)
    )


def _are_same(some: Sequence[Any], others: Sequence[Any]) -> bool:
    return len(some) == len(others) and all(map(is_, some, others))


class RankGraph(Graph):
    """The graph of one rank: that of its kind, with its own values.

    The kind is found and the nodes are made on first access, so that a rank among thousands costs nothing until it is
    read. Such an access may raise MspcError as `RankGraphs.of` does.
    """

    __slots__ = ("_find", "_rank")

    def __init__(self, rank: int, find: Callable[[], tuple[Graph, Sequence[RankElement]]]) -> None:
        # Slots not set here are filled by `__getattr__`, which Python calls for missing attributes.
        self._rank, self._find = rank, find

    def __getattr__(self, name: str) -> Any:
        if name in ("name", "attrs", "returns_tuple"):
            kind, _ = self._find()
            self.name, self.returns_tuple = kind.name, kind.returns_tuple
            self.attrs = {**kind.attrs, "rank": self._rank}
        elif name in ("nodes", "parameters", "results"):
            kind, parts = self._find()
            own = copied(kind, self._rank, parts)
            self.parameters, self.nodes, self.results = own.parameters, own.nodes, own.results
        else:
            raise AttributeError(name)
        return getattr(self, name)


@dataclass
class StageOfKind:
    """The graph of a kind after a pass. changed: whether the pass changed anything. same: the previous stage, if it did
    not."""

    graph: Graph
    changed: bool
    same: StageOfKind | None = None
    texts: SharedTexts = field(default_factory=SharedTexts)
    """Texts shared with other stages."""
    _text: OpenText | None = None
    _last: tuple[int, str] | None = None
    """A rank, and the text of its graph."""

    def text(self, rank: int, parts: Sequence[RankElement]) -> str:
        """Return the text of a rank's graph."""
        if self.same is not None:
            return self.same.text(rank, parts)
        if self._last is None or self._last[0] != rank:
            self._last = rank, self._made(rank, parts)
        return self._last[1]

    def _made(self, rank: int, parts: Sequence[RankElement]) -> str:
        if any(isinstance(value, VaryingConstant) for each in self.graph.graphs() for value in each.results):
            return print_graph(copied(self.graph, rank, parts))
        if self._text is None:
            self._text = OpenText(self.graph, varies, self.texts)

        ops: dict[int, OpLike] = {}

        def own(node: Node) -> Node:
            inputs = [own_constant(value, parts) for value in node.inputs]
            return copied_node(node, inputs, _own_op(node.op, rank, parts, ops))

        return self._text.text({**self.graph.attrs, "rank": rank}, own)


@dataclass
class RankStages:
    """The stages of one rank: those of its kind, with its own parts."""

    rank: int
    parts: Sequence[RankElement]
    of_kind: dict[str, StageOfKind]

    def graph(self, name: str) -> RankGraph:
        """Return the rank's graph after a pass."""
        return RankGraph(self.rank, lambda: (self.of_kind[name].graph, self.parts))

    def text(self, name: str) -> str:
        """Return the text of the rank's graph after a pass."""
        return self.of_kind[name].text(self.rank, self.parts)


@dataclass(frozen=True)
class RankPlaces:
    """Places at which ranks may differ. graph: of all ranks, with its regions inlined. positions: its places. times:
    how often a step runs a node; a node not listed runs once."""

    graph: Graph
    positions: GraphPositions
    times: Mapping[Node, int]


@dataclass
class _Run:
    """One run of the passes for a kind of ranks. number: of the kind, from 0."""

    number: int
    kind: RankKindParts
    stages: dict[str, StageOfKind]


@dataclass
class RankGraphs:
    """The graphs of a program's ranks.

    graph: of all ranks. passes: names of those that run for a rank; the first one slices. options: of passes by name.
    on_pass: called for every pass that runs. kind_of: the kind's number of every rank whose graph was made, except
    ranks without a kind.
    """

    graph: Graph
    passes: Sequence[str]
    on_pass: OnPass | None = None
    options: Mapping[str, dict[str, Any]] = field(default_factory=dict[str, "dict[str, Any]"])
    kind_of: dict[int, int] = field(default_factory=dict[int, int])
    _open: Graph = field(default_factory=lambda: Graph(""))
    """The graph, or a copy with inlined regions if it has any."""
    _times: Mapping[Node, int] = field(default_factory=dict[Node, int])
    _places: GraphPositions | None = None
    _differences: VaryingParts | None = None
    _runs: dict[Hashable, list[_Run]] = field(default_factory=dict[Hashable, list[_Run]])
    _apart: set[Hashable] = field(default_factory=set[Hashable])
    """Keys of ranks for which the passes run one by one."""

    def alone(self, rank: int, on_pass: OnPass) -> Graph:
        """Return the graph of a rank after the last pass, for a caller that reads no other. Nothing is stored, and
        `on_pass` is called after every pass. Raise MspcError as `of` does."""
        check_rank(self.graph, rank)
        options = {**self.options, self.passes[0]: {"rank": rank}}
        steps = [find_pass(name, options.get(name)) for name in self.passes]

        def told(name: str, graph: Graph, changed: bool) -> None:
            if self.on_pass is not None:
                self.on_pass(name, graph, changed)
            on_pass(name, graph, changed)

        return run_passes(self.graph, steps, told)

    def executable(self, rank: int) -> RankGraph:
        """Return the graph of a rank after the last pass, made when it is read. Raise MspcError if there is no such
        rank, or no rank's graph can be made."""
        check_rank(self.graph, rank)
        if not self._runs:
            return self.of(rank, ()).graph(self.passes[-1])
        found: list[RankStages] = []

        def find() -> tuple[Graph, Sequence[RankElement]]:
            stages = found[0] if found else self.of(rank, ())
            found[:] = [stages]
            return stages.of_kind[self.passes[-1]].graph, stages.parts

        return RankGraph(rank, find)

    @property
    def kinds(self) -> int:
        """Number of kinds of ranks found so far. Ranks for which the passes ran alone have no kind."""
        return sum(map(len, self._runs.values()))

    def kind(self, rank: int, wanted: Collection[str] | None = None) -> int | None:
        """Return the number of a rank's kind; None for a rank without one. wanted: the passes whose stages will be read
        for this kind, default all. Raise MspcError as `of` does."""
        self.of(rank, self.passes if wanted is None else wanted)
        return self.kind_of.get(rank)

    def of(self, rank: int, wanted: Collection[str]) -> RankStages:
        """Return the stages of a rank: those of the passes in `wanted`, and of the last one. Raise MspcError if there
        is no such rank, or its graph cannot be made."""
        check_rank(self.graph, rank)
        self._find_differences()
        assert self._places is not None
        assert self._differences is not None
        parts = self._places.on(rank)
        wanted = {*wanted, self.passes[-1]}
        alike = self._differences.made_alike(parts)
        runs = self._runs.setdefault(alike, [])
        known = next((run for run in runs if run.kind.holds_for(rank, parts)), None)
        if known is not None and wanted <= known.stages.keys():
            self.kind_of[rank] = known.number
            return RankStages(rank, parts, known.stages)
        number = self.kinds if known is None else known.number
        run = None
        if alike not in self._apart:
            run = self._run_for_kind(number, RankKindParts(rank, parts, self._differences), wanted)
        if run is None:
            self._apart.add(alike)
            return RankStages(rank, parts, self._stages(rank, parts, wanted))
        if known is not None:
            runs.remove(known)
        runs.append(run)
        self.kind_of[rank] = number
        return RankStages(rank, parts, run.stages)

    @property
    def places(self) -> RankPlaces:
        """Places at which the ranks of one stage may differ. Raises MspcError as `of` does."""
        self._find_differences()
        assert self._places is not None
        return RankPlaces(self._open, self._places, self._times)

    def _find_differences(self) -> None:
        if self._places is None:
            self._open, self._times = _opened_copy(self.graph)
            self._places = GraphPositions(self._open)
            self._differences = VaryingParts(self._places, int(self.graph.attrs.get("ranks", 1)))

    def _run_for_kind(self, number: int, kind: RankKindParts, wanted: Collection[str]) -> _Run | None:
        try:
            run = _Run(number, kind, self._stages(kind.rank, kind.parts, wanted))
        except Exception:
            # A pass needed the value of a stand-in, or the rank cannot be compiled: running with its own values tells
            # which.
            return None
        kind.looks.close()
        return run

    def _stages(self, rank: Any, parts: Sequence[RankElement], wanted: Collection[str]) -> dict[str, StageOfKind]:
        assert self._places is not None
        stages: dict[str, StageOfKind] = {}
        manager = PassManager(self.on_pass)
        graph, changed = sliced(self._open, rank, self._places, parts), True
        if self.on_pass is not None:
            self.on_pass(self.passes[0], graph, changed)
        last = self.passes[-1]
        before: StageOfKind | None = None
        texts = SharedTexts()
        snapshots = GraphSnapshots(texts)
        for name in self.passes:
            if name != self.passes[0]:
                graph, changed = manager.apply(find_pass(name, self.options.get(name)), graph)
            same = None if changed else before
            if name in wanted:
                is_alone = name == last and not stages  # else most of it has been written before
                own = same.graph if same is not None else graph if is_alone else snapshots.take(graph)
                before = stages[name] = StageOfKind(own, changed, same, texts)
            elif changed:
                before = None
        return stages


def _opened_copy(graph: Graph) -> tuple[Graph, dict[Node, int]]:
    """Return a copy with its regions inlined, or the graph itself if it has none; and how often a step runs the nodes
    of the regions."""
    if not any(node.regions for node in graph.nodes):
        return graph, {}
    from mspc.ops.control.regions import nodes_with_times  # imported late: few graphs have regions
    from mspc.passes.lib.opened_graphs import open_regions, unshare_regions

    made = copied_region(graph)
    unshare_regions(made)
    times = {node: times.count for node, times in nodes_with_times(made)}
    open_regions(made)
    return made, times


def copied(graph: Graph, rank: int | None = None, parts: Sequence[RankElement] = ()) -> Graph:
    """Copy a graph and its regions. With a rank and its parts, stand-ins are replaced by the rank's values."""
    copies: dict[Graph, Graph] = {}
    made = copied_region(graph, known=copies)
    if rank is None:
        return made
    made.attrs["rank"] = rank
    ops: dict[int, OpLike] = {}
    for each in copies.values():
        for node in each.nodes:
            node.inputs = [own_constant(value, parts) for value in node.inputs]
            node.op = _own_op(node.op, rank, parts, ops)
        each.results = [own_constant(value, parts) for value in each.results]
    return made


def _own_op(op: OpLike, rank: int, parts: Sequence[RankElement], ops: dict[int, OpLike]) -> OpLike:
    """Return the operator of a rank. `ops` holds those made so far, which many nodes share."""
    own = ops.get(id(op))
    if own is None:
        own = ops[id(op)] = own_op(op, rank, parts)
    return own


def run_graph(graph: Graph, number_of: NumberOf) -> tuple[Graph, list[Parameter]]:
    """Remove optimizer states that the values of scalars leave unused from a rank's graph. An update without states may
    then use only the rows that are looked up. Return the graph, and the scalar Parameters whose values this relies on.

    number_of: see `stateless_nodes`.
    """
    stateless = stateless_nodes(graph, number_of)
    if not stateless:
        return graph, []
    own = copied(graph)
    copies = dict(zip(graph.nodes, own.nodes, strict=True))
    for found in stateless:
        found.apply(copies[found.node])
    UpdateRows().run(own)
    drop_unused_parameters(own)
    return own, [scalar for found in stateless for scalar in found.scalars]



CUT, ORDERED = "cut_stages", "order_micro_batches"
"""Passes that make a stage's program for one micro-batch, and for all."""
KNOW_STAGE = (CUT, "join_products", "pack_attention")
"""Passes that take the stage as an option. Those before the cut leave the nodes of other stages alone."""


@dataclass
class StageGraphs(RankGraphs):
    """Like `RankGraphs`, for a graph of several stages."""

    _of_stage: dict[int, RankGraphs] = field(default_factory=dict[int, RankGraphs])
    _kinds: dict[tuple[int, int], int] = field(default_factory=dict["tuple[int, int]", int])

    def _graphs(self, rank: int) -> RankGraphs:
        check_rank(self.graph, rank)
        stage = rank // int(self.graph.attrs["ranks"])
        if stage not in self._of_stage:
            options: dict[str, dict[str, Any]] = {name: {STAGE: stage} for name in KNOW_STAGE}
            self._find_differences()  # those before the passes are the same for all stages
            made = self._of_stage[stage] = RankGraphs(self.graph, self.passes, self.on_pass, options)
            made._open, made._times, made._places, made._differences = (
                self._open, self._times, self._places, self._differences
            )  # fmt: skip
        return self._of_stage[stage]

    def alone(self, rank: int, on_pass: OnPass) -> Graph:
        return self._graphs(rank).alone(rank, on_pass)

    def executable(self, rank: int) -> RankGraph:
        return self._graphs(rank).executable(rank)

    @property
    def kinds(self) -> int:
        return sum(graphs.kinds for graphs in self._of_stage.values())

    def kind(self, rank: int, wanted: Collection[str] | None = None) -> int | None:
        graphs = self._graphs(rank)
        found = graphs.kind(rank, wanted)
        if found is None:
            return None
        stage = rank // int(self.graph.attrs["ranks"])
        self.kind_of[rank] = self._kinds.setdefault((stage, found), len(self._kinds))
        return self.kind_of[rank]

    def of(self, rank: int, wanted: Collection[str]) -> RankStages:
        found = self._graphs(rank).of(rank, wanted)
        self.kind(rank, ())
        return found


def before_joining(sliced: Graph, rank: int) -> Graph:
    """Return a rank's graph before operators are fused: the sliced graph, or with several stages the stage's own
    program for all micro-batches."""
    if STAGES not in sliced.attrs:
        return sliced
    stage = rank // int(sliced.attrs["ranks"])
    return run_passes(sliced, [find_pass(CUT, {STAGE: stage}), find_pass(ORDERED)])


def rank_graphs(graph: Graph, passes: Sequence[str], on_pass: OnPass | None = None) -> RankGraphs:
    """Return the graphs of a program's ranks."""
    kind = StageGraphs if STAGES in graph.attrs else RankGraphs
    return kind(graph, passes, on_pass)
