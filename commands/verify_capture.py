"""Captured steps of all ranks beside the captured step of one device, for `mspc verify --scale`."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mspc.commands.captured import ranks_in
from mspc.commands.captured_draws import place_draws
from mspc.commands.captured_offsets import graphs_of
from mspc.compiler.call import describe_call
from mspc.compiler.config import Config
from mspc.compiler.driver import trace_call
from mspc.engine.capture import capture_network
from mspc.ir.diagnostics import ExecutionError, MspcError
from mspc.ir.graph import Constant, Graph, OpLike
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Layout
from mspc.ir.types import FLOAT32, TensorType
from mspc.mindspore_api.state import Session
from mspc.ops.collective.base import Collective
from mspc.ops.collective.point_to_point import Receive, ReceiveFromStage, Send, SendToStage
from mspc.output.dumps import first_values
from mspc.readers.pytorch.exported_program import names_in
from mspc.verify.scale.blame import ranks_in_words
from mspc.verify.scale.precision import rounded_sums
from mspc.verify.scale.rank_kinds import RankKind, merged
from mspc.verify.verification import plain_graph

if TYPE_CHECKING:
    from mspc.readers.pytorch.captured import CapturedStep, DrawState, Members

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


@dataclass(frozen=True)
class CapturedPrograms:
    """The steps of all ranks and of one device.

    values: first values on one device. results: (kind, name) of each result: the loss and the gradients. batch: for
    each rank those that share the batch, if inputs are divided.
    """

    one: Graph
    kinds: list[RankKind]
    values: Sequence[Any]
    results: tuple[tuple[str, str], ...]
    batch: tuple[tuple[int, ...], ...] = ()


def programs_of_captures(folder: Path, single: Path) -> CapturedPrograms:
    """Return the programs of two captures, with the layouts of their tensors. Raise MspcError if a file cannot be read,
    or tensors of the two do not fit each other."""
    from mspc.readers.pytorch import placed

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
    return CapturedPrograms(one, merged(kinds), values, named, tuple(groups))


def check_precision(programs: CapturedPrograms) -> None:
    """Raise ExecutionError if ranks add up a gradient in half precision that one device computes in Float32."""
    gradients = [place for place, (kind, _) in enumerate(programs.results) if kind == "gradient"]
    for kind in programs.kinds:
        for place, node in rounded_sums(programs.one, kind.graph, gradients):
            op: Any = node.op
            raise ExecutionError(
                f"the gradient of {programs.results[place][1]} is added up over {ranks_in_words(op.members)} in "
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
    for each in graph.graphs():
        for node in each.nodes:
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
    for each in graph.graphs():
        for node in each.nodes:
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
