"""Captured steps of all ranks beside the captured step of one device, for `mspc verify --scale`: their
graphs, draws and offsets."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mspc.commands.captured import ranks_in
from mspc.commands.verify_folder import ToProve
from mspc.compiler.call import describe_call
from mspc.compiler.config import Config
from mspc.compiler.driver import trace_call
from mspc.compiler.rank_graphs import copied
from mspc.engine.capture import capture_network
from mspc.ir.diagnostics import ExecutionError, Frames, Location, MspcError, ranks_listed
from mspc.ir.graph import Constant, Graph, Node, OpLike, element_types
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Layout
from mspc.ir.types import FLOAT32, TensorType
from mspc.mindspore_api.state import Session
from mspc.ops.collective.base import Collective
from mspc.ops.collective.point_to_point import Receive, ReceiveFromStage, Send, SendToStage
from mspc.ops.random.words import draws_by_place
from mspc.output.dumps import first_values
from mspc.readers.pytorch import placed
from mspc.readers.pytorch.captured_kinds import GROUPS
from mspc.readers.pytorch.exported_program import NodeResult, ProgramInput, ProgramOutput, names_in
from mspc.verify.scale.precision import rounded_sums
from mspc.verify.scale.rank_kinds import RankKind, merged
from mspc.verify.verification import plain_graph

if TYPE_CHECKING:
    from mspc.readers.pytorch.captured import CapturedStep, DrawState, Members

    OfRanks = tuple[CapturedStep, Sequence[Sequence[DrawState]]]


_CLASS = re.compile(r"-[^/]*")
WAITS = ("_c10d_functional.wait_tensor.default", "_c10d_functional._wrap_tensor_autograd.default")
"""The second makes a tensor that waits when it is read first."""
VIEWS = frozenset(f"aten.{name}" for name in (
    "view.default", "_unsafe_view.default", "reshape.default", "t.default", "transpose.int", "permute.default",
    "slice.Tensor", "select.int", "split.Tensor", "split_with_sizes.default", "chunk.default", "unsqueeze.default",
    "squeeze.dim", "expand.default", "detach.default", "alias.default", "as_strided.default", "unbind.int",
    "narrow.default", "view_as.default", "view.dtype",
))  # fmt: skip
"""Operators that read no element."""
_GRADIENT = "gradient_to_parameter"


def programs_of_captures(folder: Path, single: Path) -> ToProve:
    """Return the programs of two captures, with the layouts of their tensors. Raise MspcError if a file cannot be read,
    or tensors of the two do not fit each other."""
    if ranks_in(single) != 1:
        raise MspcError(
            f"{single} has {ranks_in(single)} ranks, and one device is needed to compare with",
            notes=["mspc capture script.py --ranks 1 --out DIR records one"],
        )
    ((_, one_step, _, one_states),) = _kinds(single)
    one, results, values = _program(one_step, single)
    steps = _kinds(folder)
    shapes = {p.name: p.tensor_type.shape for p in one.parameters}
    mesh = placed.mesh_of([step for _, step, *_ in steps])
    graphs = graphs_of([step for _, step, *_ in steps], lambda step: _program(step, folder))
    stages = placed.axes_of_messages([step for _, step, *_ in steps], mesh)
    named = [_Named({parameter.name for parameter in graph.parameters}, {*found}, folder) for graph, found in graphs]
    whole = _Named({*shapes}, {*results}, single)
    all_names = set[str]().union(*(each.names for each in named))
    _check_same(whole, _Named(all_names, {result for each in named for result in each.results}, folder))
    batch: Layout | None = None
    kinds: list[RankKind] = []
    for (ranks, each, members, _), (graph, found), own in zip(steps, graphs, named, strict=True):
        _check_same(whole.of_stage(own) if stages else whole.without_states(own), own)
        layouts: dict[str, Layout] = {}
        for parameter in graph.parameters:
            layout = placed.layout(
                each, mesh, parameter.name, parameter.tensor_type.shape, shapes[parameter.name], stages
            )
            parameter.layout = layouts[parameter.name] = layout
            if parameter.kind == "input" and any(layout.dims):
                batch = layout
        made = dict(zip(found, graph.results, strict=True))
        graph.results = [made.get(result) or Constant(np.zeros(0, np.float32), FLOAT32) for result in results]
        for (kind, name), value in made.items():
            value.layout = layouts[name] if kind == _GRADIENT else None
            if isinstance(value.type, TensorType) and f"{name}.grad" in each.placements:
                value.layout = placed.layout(each, mesh, f"{name}.grad", value.type.shape, shapes[name])
        kinds.append(RankKind(ranks, graph, _own_groups(graph, members)))
    states = [(step, of_ranks) for _, step, _, of_ranks in steps]
    place_draws(one, (one_step, one_states), kinds, states, mesh, stages)
    groups: list[tuple[int, ...]] = []
    if batch is not None:
        axes = [axis for dim in batch.dims for axis in dim]
        groups = [batch.group(axes, rank) for rank in range(ranks_in(folder))]
    named = tuple(("gradient", name) if kind == _GRADIENT else ("loss", "") for kind, name in results)
    return ToProve(one, merged(kinds), values, results=named, batch=tuple(groups))


def check_precision(programs: ToProve) -> None:
    """Raise ExecutionError if ranks add up a gradient in half precision that one device computes in Float32."""
    gradients = [place for place, (kind, _) in enumerate(programs.results) if kind == "gradient"]
    for kind in programs.kinds:
        for place, node in rounded_sums(programs.one, kind.graph, gradients):
            op: Any = node.op
            raise ExecutionError(
                f"the gradient of {programs.results[place][1]} is added up over {ranks_listed(op.members)} in "
                f"{node.inputs[0].tensor_type.dtype.name}, and one device computes it in Float32",
                frames=node.frames,
            )


def check_waits(step: CapturedStep) -> None:
    """Raise ExecutionError if an operator reads the result of a collective before `wait_tensor`."""
    origin: dict[str, str] = {}  # of views: the tensor whose memory they have
    waiting: dict[str, str] = {}
    for node in step.program.graph.nodes:
        read = [origin.get(name, name) for _, value in node.arguments for name in names_in(value)]
        early = next((waiting[name] for name in read if name in waiting), None)
        if node.target in WAITS:
            waiting.pop(read[0], None)
        elif early is not None and node.target not in VIEWS:
            message = f"{node.target} on rank {step.rank} reads the result of {early} before wait_tensor"
            raise ExecutionError(message, frames=node.frames)
        elif node.target.startswith("_c10d_functional."):
            waiting.update((result, node.target) for result in node.results)
        if node.target in (*WAITS, *VIEWS):
            origin.update((result, read[0]) for result in node.results)


def _kinds(folder: Path) -> list[tuple[tuple[int, ...], CapturedStep, Members, Sequence[Sequence[DrawState]]]]:
    """Return (the ranks, the step of the first, their groups, the states before draws of each) of each kind; ranks that
    differ in more than groups and seeds are kinds of their own."""
    from mspc.readers.pytorch.captured import programs_of, read_rank
    from mspc.readers.pytorch.captured_kinds import read_kinds

    count, kinds = ranks_in(folder), read_kinds(folder)
    steps: list[tuple[tuple[int, ...], CapturedStep, Members, Sequence[Sequence[DrawState]]]] = []
    for kind in kinds:
        for ranks, members, states in programs_of(folder, kind):
            steps.append((ranks, read_rank(folder, ranks[0], kinds), members, states))
    for rank in range(0 if kinds else count):
        step = read_rank(folder, rank, kinds)
        steps.append(((rank,), step, {}, [step.states]))
    for ranks, step, *_ in steps:
        check_waits(step)
        if step.ranks != count:
            raise MspcError(f"{step.program.name} is of rank {ranks[0]} of {step.ranks}, not of {count}")
    return steps


def _own_groups(graph: Graph, members: Members) -> dict[int, tuple[OpLike, ...]]:
    """Give each collective whose group differs from rank to rank an operator of its own; return those of all ranks."""
    found: dict[int, tuple[OpLike, ...]] = {}
    for node in graph.all_nodes():
        op: Any = node.op
        own = members.get(getattr(op, "group", ""), ()) if isinstance(op, Collective) else ()
        if len(set(own)) > 1:
            node.op = op = replace(op)
            made = {ranks: replace(op, rank_list=ranks) for ranks in set(own)}
            found[id(op)] = tuple(made[ranks] for ranks in own)
    return found


def _program(step: CapturedStep, folder: Path) -> tuple[Graph, list[tuple[str, str]], Sequence[Any]]:
    """Return (the step as a graph whose results are the loss and all gradients, their kinds and names, the first
    values). The graph has one node for each recorded operator."""
    from mspc.readers.pytorch.network import ImportedNetwork

    outputs = tuple(each for each in step.program.outputs if each.kind in ("loss", _GRADIENT))
    session = Session(step.rank, step.ranks, step.rank, step.ranks, launched=True, initialized=True)
    session.groups.update(step.groups)

    def make() -> tuple[Any, Sequence[TensorType]]:
        network = ImportedNetwork(step.program)
        object.__setattr__(network, "results", outputs)
        return network, network.input_types

    graph, values = plain_program(make, folder, session)
    graph.attrs["ranks"] = step.ranks
    for node in graph.all_nodes():
        node.scope = _CLASS.sub("", node.scope)  # `fully_shard` gives modules other classes
        op = node.op
        if isinstance(op, Send):
            node.op = SendToStage(0, op.dest_rank - step.rank, op.sr_tag)
        elif isinstance(op, Receive):
            node.op = ReceiveFromStage(0, step.rank - op.src_rank, op.sr_tag, op.shape, op.dtype)
    return graph, [(each.kind, each.target) for each in outputs], values


def plain_program(
    make: Callable[[], tuple[Any, Sequence[TensorType]]], path: Path, session: Session
) -> tuple[Graph, Sequence[Any]]:
    """Return (a network as the graph of one rank, its first values). make: makes the network and its inputs."""
    captured = capture_network(make, path, session, lambda types: "full_batch")
    config = Config(ranks=session.size, mode="stand_alone")
    call = trace_call(captured.target, describe_call(captured.args, []), config, captured.global_types)
    graph = plain_graph(call.traced.graph)
    return graph, first_values(call.traced, graph)


@dataclass(frozen=True)
class _Named:
    """The names of tensors and the results of programs in a folder."""

    names: set[str]
    results: set[tuple[str, str]]
    folder: Path

    def of_stage(self, stage: _Named) -> _Named:
        """Return those that a stage should have: gradients of its own parameters, and perhaps the loss."""
        results = {result for result in self.results if result[1] in stage.names or result in stage.results}
        return _Named(self.names & stage.names, results, self.folder)

    def without_states(self, rank: _Named) -> _Named:
        """Return those of a rank that updates only some of the parameters: no states of others, as in ZeRO 1."""
        states = {name for name in self.names if name.partition(".")[2] in self.names}
        return _Named(self.names - (states - rank.names), self.results, self.folder)


def _check_same(one: _Named, ranks: _Named) -> None:
    """Raise MspcError if ranks have other tensors or results than one device."""
    for first, other in ((ranks, one), (one, ranks)):
        if missing := first.names - other.names:
            raise MspcError(f"{other.folder} has no parameter, state or input {min(missing)!r}: it is another network")
        if results := first.results - other.results:
            kind, name = min(results)
            raise MspcError(f"{other.folder} has no {f'gradient of {name!r}' if kind == _GRADIENT else kind}")


# Random numbers of captured steps ---------------------------------------------------------------------
# Ranks with the same values must draw the same, and each its slice of one device's.
# A draw is known by the state of its generator, so that a recomputed one is the one it repeats. mspc draws by place:
# once ranks are known to be consistent, a rank draws the numbers that one device draws for its slice.


_Key = tuple[str, int]
"""The path of a module, and the number of a draw there."""


@dataclass
class _Draw:
    """A draw of a program. nodes: it, and those that repeat it. states: of the generators of all ranks of a kind."""

    nodes: list[Node]
    states: tuple[DrawState, ...]

    @property
    def op(self) -> Any:
        return self.nodes[0].op

    @property
    def shape(self) -> tuple[int, ...]:
        return element_types(self.nodes[0].type)[0].shape


def place_draws(
    one: Graph, single: OfRanks, kinds: Sequence[RankKind], steps: Sequence[OfRanks], mesh: tuple[int, ...],
    stages: frozenset[int],
) -> None:  # fmt: skip
    """Let every rank draw its slice of the numbers of one device, and print a warning if ranks with other slices of a
    value draw the same numbers. single, steps: of one device and of each kind: the step of the first rank, and the
    states before the draws of all. stages: axes of the mesh. Raise ExecutionError if ranks with the same slice of a
    value draw other numbers."""
    whole = _draws_in(one, single)
    layouts: dict[_Key, Layout] = {}
    states: dict[_Key, dict[int, DrawState]] = {}
    nodes: dict[_Key, Node] = {}
    for kind, given in zip(kinds, steps, strict=True):
        for key, draw in _draws_in(kind.graph, given).items():
            layout = _layout(given[0], mesh, draw, whole.get(key), stages)
            if layout is not None:
                _give(kind, draw, whole[key], layout)
                layouts[key] = layout
                nodes.setdefault(key, draw.nodes[0])
                states.setdefault(key, {}).update(zip(kind.ranks, draw.states, strict=True))
    for key, of_ranks in states.items():
        _check(nodes[key], of_ranks, layouts[key])


def _draws_in(graph: Graph, given: OfRanks) -> dict[_Key, _Draw]:
    """Return the draws of a program, if they are those that were recorded for their lines."""
    step, of_ranks = given
    nodes: dict[Frames, list[Node]] = {}
    for node in (node for node in graph.all_nodes() if draws_by_place(node.op)):
        nodes.setdefault(node.frames, []).append(node)
    recorded: dict[Frames, list[int]] = {}
    for number, frames in enumerate(step.draws):
        recorded.setdefault(frames, []).append(number)
    known: dict[object, _Draw] = {}
    numbers: dict[str, int] = {}
    found: dict[_Key, _Draw] = {}
    same = {frames: those for frames, those in nodes.items() if len(those) == len(recorded.get(frames, ()))}
    for frames, node, number in ((f, *pair) for f in same for pair in zip(same[f], recorded[f], strict=True)):
        states = tuple(each[number] for each in of_ranks)
        key = (states[0], type(node.op), node.type, node.scope, frames[:1])
        if key in known:
            known[key].nodes.append(node)
            continue
        known[key] = made = _Draw([node], states)
        numbers[node.scope] = number = numbers.get(node.scope, -1) + 1
        found[node.scope, number] = made
    for each in found.values():
        for node in each.nodes[1:]:
            node.op = _seeded(node.op, each.op)
    return found


def _seeded(op: Any, like: Any) -> Any:
    return replace(op, **{name: getattr(like, name) for name in op.seeds})


def _layout(
    step: CapturedStep, mesh: tuple[int, ...], draw: _Draw, whole: _Draw | None, stages: frozenset[int]
) -> Layout | None:
    """Return the layout of a draw, None if ranks do not have slices of one device's."""
    if whole is None or type(whole.op) is not type(draw.op):
        return None
    own, shape = draw.shape, whole.shape
    try:
        layout = placed.layout(step, mesh, "", own, shape, stages)
    except MspcError:
        return None
    return layout if layout.divides(shape) else None


def _give(kind: RankKind, draw: _Draw, whole: _Draw, layout: Layout) -> None:
    """Let the ranks of a kind draw their slices."""
    shape = whole.shape
    made: list[OpLike] = []
    for rank in kind.ranks:
        slices = layout.slices_for(rank, shape)
        begin, local = tuple(s.start for s in slices), tuple(s.stop - s.start for s in slices)
        divided = {"shape": shape, "begin": begin, "local": local} if any(layout.dims) else {}
        made.append(replace(_seeded(draw.op, whole.op), **divided))
    for node in draw.nodes:
        node.op = replace(made[0])  # type: ignore[type-var]  # operators are dataclasses
        if len(set(made)) > 1:
            kind.ops[id(node.op)] = (node.op, *made[1:])


def _check(node: Node, states: Mapping[int, DrawState], layout: Layout) -> None:
    """Raise ExecutionError, or print a warning, if the states of ranks do not fit their slices."""
    first: dict[tuple[int, ...], int] = {}
    drawn: dict[DrawState, int] = {}
    cell = node.scope.removeprefix("Default").lstrip("/").replace("/", ".")
    name = f"random numbers of {cell}" if cell else "random numbers"
    words = {rank: f"seed {seed} at offset {offset}" for rank, (seed, offset) in states.items()}
    for rank, state in sorted(states.items()):
        other = first.setdefault(layout.slice_index(rank), rank)
        if states[other] != state:
            said = [f"rank {each} draws with {words[each]}" for each in (other, rank)]
            raise ExecutionError(
                f"{name} differ on ranks {other} and {rank}, which have the same values there",
                notes=[*said, "give these ranks the same seed, and let them draw equally often before"],
                frames=node.frames, code="E1401",
            )  # fmt: skip
    same = [(drawn.setdefault(states[rank], rank), rank) for rank in first.values()]
    for other, rank in [pair for pair in same if pair[0] != pair[1]][:1]:
        said = f"{name} are the same on ranks {other} and {rank}, which have other slices there"
        print(f"warning: {said}: both draw with {words[rank]}", file=sys.stderr)


# Makes the graphs of captured steps that differ in numbers, as offsets, from the graph of one of them ----
# Reading a step takes a while. So one is read, and of the others only the nodes with other arguments, as a small
# program.


Read = Callable[["CapturedStep"], tuple[Graph, list[tuple[str, str]], Sequence[Any]]]
"""Returns (the graph of a step, its results, its first values)."""
_MARK = "node of other numbers"
"""The file of a line that marks the nodes of a graph by the number of the recorded one."""


def graphs_of(steps: Sequence[CapturedStep], read: Read) -> list[tuple[Graph, list[tuple[str, str]]]]:
    """Return (the graph, its results) of each step. read: reads a step."""
    families: dict[Any, list[int]] = {}
    for number, step in enumerate(steps):
        same = tuple((node.target, node.results, node.types, node.scope) for node in step.program.graph.nodes)
        families.setdefault((same, step.program.graph.inputs, step.program.graph.outputs), []).append(number)
    found: dict[int, tuple[Graph, list[tuple[str, str]]]] = {}
    for numbers in families.values():
        own = [steps[number] for number in numbers]
        made = _alike(own, read) if len(own) > 1 else None
        found |= zip(numbers, made or [read(step)[:2] for step in own], strict=True)
    return [found[number] for number in range(len(steps))]


def _alike(steps: Sequence[CapturedStep], read: Read) -> list[tuple[Graph, list[tuple[str, str]]]] | None:
    """Return the graphs of steps with the same nodes; None if they have to be read one by one."""
    base = steps[0]
    graphs = [step.program.graph.nodes for step in steps]
    changed = [at for at, nodes in enumerate(zip(*graphs, strict=True)) if len({_numbers(n) for n in nodes}) > 1]
    read_others = any(len({_tensors(nodes[at]) for nodes in graphs}) > 1 for at in changed)
    if read_others or not _have_results_alone(base, changed):
        return None
    groups = [_groups(base, step) for step in steps]
    whole, results, _ = read(_marked(base, changed))
    marks = _taken(whole)
    parts = [_taken(read(_part(step, changed))[0]) for step in steps] if changed else [marks] * len(steps)
    places = {node: at for at, node in enumerate(whole.nodes)}
    if any(_shape(part) != _shape(marks) for part in parts) or any(n not in places for m in marks.values() for n in m):
        return None
    found: list[tuple[Graph, list[tuple[str, str]]]] = []
    for step, part, named in zip(steps, parts, groups, strict=True):
        graph = copied(whole) if step is not base else whole
        for node in graph.nodes:
            op: Any = node.op
            if isinstance(op, Collective) and (name := named.get(getattr(op, "group", ""))) is not None:
                node.op = replace(op, group=name, rank_list=step.groups[name])
        for mark, nodes in marks.items():
            for node, own in zip(nodes, part[mark], strict=True):
                made = graph.nodes[places[node]]
                made.op = own.op
                pairs = zip(made.inputs, own.inputs, strict=True)
                made.inputs = [number if isinstance(number, Constant) else value for value, number in pairs]
        found.append((graph, results))
    return found


def _numbers(node: Any) -> Any:
    return tuple((name, repr(value)) for name, value in node.arguments if name not in GROUPS)


def _tensors(node: Any) -> tuple[str, ...]:
    return tuple(name for _, value in node.arguments for name in names_in(value))


def _groups(base: CapturedStep, step: CapturedStep) -> dict[str, str]:
    """Return the names of a step's groups by those of the same groups of another step."""
    pairs = zip(base.program.graph.nodes, step.program.graph.nodes, strict=True)
    return {
        str(mine): str(own) for node, other in pairs for (name, mine), (_, own) in
        zip(node.arguments, other.arguments, strict=True) if name in GROUPS and mine != own
    }  # fmt: skip


def _have_results_alone(step: CapturedStep, changed: Sequence[int]) -> bool:
    """Return whether some nodes make tensors and do nothing else: none is a message, or overwrites a tensor, or makes a
    view of one that is overwritten, which the places in the view are read for."""
    from mspc.readers.pytorch.kinds.aten_table import kind_of
    from mspc.readers.pytorch.written_values import written_names

    written = written_names(step.program.graph)
    for node in (step.program.graph.nodes[at] for at in changed):
        kind = kind_of(node.target)
        if kind is None or kind.writes or not node.results or not all(node.results):
            return False
        if kind.put is not None and not written.isdisjoint(node.results):
            return False
    return True


def _marked(step: CapturedStep, changed: Sequence[int]) -> CapturedStep:
    nodes = list(step.program.graph.nodes)
    for at in changed:
        nodes[at] = replace(nodes[at], frames=(Location(_MARK, at), *nodes[at].frames))
    return replace(step, program=replace(step.program, graph=replace(step.program.graph, nodes=tuple(nodes))))


def _part(step: CapturedStep, changed: Sequence[int]) -> CapturedStep:
    """Return the step of some nodes alone, which gives their results."""
    graph = _marked(step, changed).program.graph
    types = dict(graph.inputs)
    for node in graph.nodes:
        types |= zip(node.results, node.types, strict=True)
    nodes = [graph.nodes[at] for at in changed]
    made = [name for node in nodes for name in node.results]
    read = [name for node in nodes for _, value in node.arguments for name in names_in(value) if name not in made]
    inputs = tuple(ProgramInput("user", name, name, types[name]) for name in dict.fromkeys(read))
    outputs = tuple(ProgramOutput("gradient_to_parameter", NodeResult(name), name) for name in made)
    graph = replace(
        graph, nodes=tuple(nodes), inputs=tuple((each.name, each.type) for each in inputs),
        outputs=tuple(each.value for each in outputs),
    )  # fmt: skip
    return replace(step, program=replace(step.program, graph=graph, inputs=inputs, outputs=outputs))


def _taken(graph: Graph) -> dict[int, list[Node]]:
    """Return the marked nodes by their marks, which are removed."""
    found: dict[int, list[Node]] = {}
    for node in graph.all_nodes():
        if node.frames and node.frames[0].file == _MARK:
            found.setdefault(node.frames[0].line, []).append(node)
            node.frames = node.frames[1:]
    return found


def _shape(nodes: dict[int, list[Node]]) -> Any:
    """Return all of some nodes but the numbers of operators and constants."""
    return {
        mark: [(type(node.op), node.type, [(isinstance(v, Constant), v.type) for v in node.inputs]) for node in each]
        for mark, each in nodes.items()
    }
