"""Whether all ranks take part where one of them finds an overflow: a step in which one is pretended.

Where a network looks for one (`AllFinite`), the ranks that hold one slice of an operand find an infinity in it, and so
does one device. Of several stages those do that compute the operand, and they send it to others. What all store behind
the step has to be what one device does.
"""

from __future__ import annotations

from collections.abc import Generator, Mapping, Sequence
from typing import Any

import numpy as np

from mspc.ir.graph import Graph, Node, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ops.collective.point_to_point import SendToStage
from mspc.ops.optim.optimizer import AllFinite
from mspc.verify.scale.execution import KindRun, KindState, run_step
from mspc.verify.scale.families import alike
from mspc.verify.scale.kinds import RankKind
from mspc.verify.scale.meetings import CollectiveRequest
from mspc.verify.scale.spread import flat

Array = Any
AN_OVERFLOW = "these ranks alone find an overflow there, and others do not do what one device does then"
MOST = 8
"""So many are pretended, each of which takes a step of all ranks."""
CLOSE = 1e-9
"""Slices that are apart by no more are one."""


@dataclass(frozen=True)
class Overflow:
    """An infinity in an operand of a node of a kind, and of a node of one device. nodes: this one, and where ranks that
    store the same are of several kinds those of the others, all ranks of which find it then."""

    kind: RankKind
    node: Node
    operand: int
    one: Node
    nodes: Sequence[tuple[RankKind, Node]]


def overflows(one: Graph, kinds: Sequence[RankKind]) -> list[Overflow]:
    """Where to pretend one: in the first and the last operand that a kind computes of what looks for it. A stage sends
    it to all others that look for one, else it is left out, as these may make it anew of what they receive; where there
    are many stages, some are taken from the first to the last."""
    looking = _looking(one)
    are_stages = bool(looking) and any(map(_sends, kinds))
    found: list[Overflow] = []
    for family in alike(kinds) if looking else ():
        others = [kind for kind in kinds if are_stages and kind not in family and _looking(kind.graph)]
        kind = family[0]
        for nodes in zip(*(_looking(each.graph) for each in family), strict=False):
            node = nodes[0]
            same = [each for each in looking if each.frames == node.frames or len(looking) == 1]
            own = [number for number, value in enumerate(node.inputs) if _is_sent(value, kind, others)]
            if len(same) == 1 and len({len(each.inputs) for each in nodes}) == 1:
                alike_nodes = tuple(zip(family, nodes, strict=True))
                found += [Overflow(kind, node, i, same[0], alike_nodes) for i in sorted({*own[:1], *own[-1:]})]
    if len(found) <= MOST or not are_stages:
        return found
    return [found[round(number * (len(found) - 1) / (MOST - 1))] for number in range(MOST)]


def _sends(kind: RankKind) -> bool:
    return any(isinstance(node.op, SendToStage) for each in kind.graph.graphs() for node in each.nodes)


def _looking(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if isinstance(node.op, AllFinite)]


def _sends_it(node: Node, value: Value) -> bool:
    return isinstance(node.op, SendToStage) and node.inputs[0] is value


def _is_sent(value: Value, kind: RankKind, others: Sequence[RankKind]) -> bool:
    """Whether all others get a value as it is."""
    sends = [node.op for node in kind.graph.nodes if _sends_it(node, value)]
    targets = {rank + op.distance for op in sends for rank in kind.ranks}  # type: ignore[attr-defined]  # a message's
    return all(not targets.isdisjoint(other.ranks) for other in others)


class OverflowingRun(KindRun):
    """A step in which ranks that have the last rank's slice of an operand find an infinity in it, and send it so; all
    ranks where others store the same."""

    def __init__(self, state: KindState, step: int, nodes: Sequence[tuple[RankKind, Node]], operand: int) -> None:
        super().__init__(state, step, None)
        self._node = next((node for kind, node in nodes if kind is state.kind), None)
        self._operand, self._are_all = operand, len(nodes) > 1
        self.ranks: tuple[int, ...] = ()

    def _computed(self, node: Node, operands: list[Any], values: dict[Value, Any]) -> Any:
        if node is self._node:
            operands = [*operands]
            operands[self._operand] = self._infinite(operands[self._operand])
        return super()._computed(node, operands, values)

    def step(self, inputs: dict[str, Array]) -> Generator[CollectiveRequest, Any, list[Any]]:
        going = super().step(inputs)
        try:
            request = next(going)
            while True:
                if self._node is not None and _sends_it(request.node, self._node.inputs[self._operand]):
                    request.arrays = [self._infinite(request.arrays[0])]
                answer = yield request
                request = going.send(answer)
        except StopIteration as ended:
            return ended.value

    def _infinite(self, array: Array) -> Array:
        own = np.array(flat(array, self.kind.mesh))
        same = [
            number for number, part in enumerate(own)
            if self._are_all or np.allclose(part, own[-1], CLOSE, 0, equal_nan=True)
        ]  # fmt: skip
        self.ranks = tuple(self.kind.ranks[number] for number in same)
        if own[0].size:
            own.reshape(len(own), -1)[same, -1] = np.inf
        return own.reshape(*self.kind.mesh, *own.shape[1:])


def run_overflow(
    overflow: Overflow, states: Sequence[KindState], feeds: Sequence[dict[str, Array]], one: KindState,
    inputs: Mapping[str, Array],
) -> tuple[int, ...]:  # fmt: skip
    """One step of all ranks, and of one device; the ranks that find the infinity.

    Raises:
        Stuck: ranks wait for each other. NodeError: a node cannot be computed. Divided: ranks of a kind do not go on
        together.
    """
    runs = [OverflowingRun(state, 1, overflow.nodes, overflow.operand) for state in states]
    run_step(states, feeds, 1, runs=runs)
    run_step([one], [dict(inputs)], 1, runs=[OverflowingRun(one, 1, [(one.kind, overflow.one)], 0)])
    return next(run.ranks for run in runs if run.kind is overflow.kind)
