"""Whether all ranks take part where one of them finds an overflow: a step in which one is pretended.

Where a network looks for one (`AllFinite`), the ranks that hold one slice of an operand find an infinity in it, and so
does one device. What all store behind the step has to be what one device does.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from mspc.ir.graph import Graph, Node, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ops.collective.stage_messages import ReceiveFromStage, SendToStage
from mspc.ops.optim.all_finite import AllFinite
from mspc.verify.scale.execution import KindRun, KindState, run_step
from mspc.verify.scale.kinds import RankKind
from mspc.verify.scale.spread import flat

Array = Any
AN_OVERFLOW = "these ranks alone find an overflow there, and others do not do what one device does then"
CLOSE = 1e-9
"""Slices that are apart by no more are one."""


@dataclass(frozen=True)
class Overflow:
    """An infinity in an operand of a node of a kind, and of a node of one device."""

    kind: RankKind
    node: Node
    operand: int
    one: Node


def overflows(one: Graph, kinds: Sequence[RankKind]) -> Iterator[Overflow]:
    """Where to pretend one: in the first and the last operand of what looks for it, of every kind. Stages are left out,
    which send each other what they look at."""
    looking = [node for node in one.nodes if isinstance(node.op, AllFinite)]
    if not looking or any(map(_sends, kinds)):
        return
    for kind in kinds:
        for node in (node for node in kind.graph.nodes if isinstance(node.op, AllFinite)):
            same = [each for each in looking if each.frames == node.frames or len(looking) == 1]
            for operand in sorted({0, len(node.inputs) - 1}) if len(same) == 1 else ():
                yield Overflow(kind, node, operand, same[0])


def _sends(kind: RankKind) -> bool:
    nodes = (node for each in kind.graph.graphs() for node in each.nodes)
    return any(isinstance(node.op, SendToStage | ReceiveFromStage) for node in nodes)


class OverflowingRun(KindRun):
    """A step in which ranks that have the last rank's slice of an operand find an infinity in it."""

    def __init__(self, state: KindState, step: int, node: Node, operand: int) -> None:
        super().__init__(state, step, None)
        self._node, self._operand = node, operand
        self.ranks: tuple[int, ...] = ()

    def _computed(self, node: Node, operands: list[Any], values: dict[Value, Any]) -> Any:
        if node is self._node:
            operands = [*operands]
            operands[self._operand] = self._infinite(operands[self._operand])
        return super()._computed(node, operands, values)

    def _infinite(self, array: Array) -> Array:
        own = np.array(flat(array, self.kind.mesh))
        same = [number for number, part in enumerate(own) if np.allclose(part, own[-1], CLOSE, 0, equal_nan=True)]
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
    runs = [OverflowingRun(state, 1, overflow.node, overflow.operand) for state in states]
    run_step(states, feeds, 1, runs=runs)
    run_step([one], [dict(inputs)], 1, runs=[OverflowingRun(one, 1, overflow.one, 0)])
    return next(run.ranks for run in runs if run.kind is overflow.kind)
