"""Random numbers of captured steps: ranks with the same values must draw the same, and each its slice of one device's.

A draw is known by the state of its generator, so that a recomputed one is the one it repeats. mspc draws by place: once
ranks are known to be consistent, a rank draws the numbers that one device draws for its slice.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from mspc.ir.diagnostics import ExecutionError, Frames, MspcError
from mspc.ir.graph import Graph, Node, OpLike, element_types
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Layout
from mspc.ops.random.words import draws_by_place
from mspc.readers.pytorch import placed
from mspc.verify.scale.rank_kinds import RankKind

if TYPE_CHECKING:
    from mspc.readers.pytorch.captured import CapturedStep, DrawState

    OfRanks = tuple[CapturedStep, Sequence[Sequence[DrawState]]]

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
    value draw the same numbers.

    Args:
        single, steps: of one device and of each kind: the step of the first rank, and the states before the draws of
            all. stages: axes of the mesh.

    Raises:
        ExecutionError: ranks with the same slice of a value draw other numbers.
    """
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
    for node in (node for each in graph.graphs() for node in each.nodes if draws_by_place(node.op)):
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
