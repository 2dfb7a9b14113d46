"""Runs the programs of all ranks: those of one kind at once, kinds in turns, until they wait for each other."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any

import numpy as np

from mspc.analysis.aliasing import results_over
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import MICRO_BATCH, Constant, Graph, Node, Value, element_types
from mspc.ir.late_dataclass import dataclass
from mspc.ir.temporary import temporarily
from mspc.ir.types import StackType
from mspc.ops.collective.base import Collective
from mspc.ops.collective.one_rank import OneRank
from mspc.ops.control.regions import Call, For, If, MakeStack, Scan, TurnCount, While, body_of, spread
from mspc.ops.control.structural import CALL
from mspc.ops.op import Op
from mspc.runtime.backend import NumPyBackend
from mspc.verify.scale.meetings import Board, CollectiveRequest, NodeError
from mspc.verify.scale.rank_kernels import places_on_each, run_on_all, slices_on_each
from mspc.verify.scale.rank_kinds import (
    MAX_PARTS,
    STRUCTURE,
    Divided,
    RankKind,
    block_by_block,
    by_key,
    common_lead,
    flat,
    mapped,
    on_mesh,
    told_apart,
    widened,
)

Array = Any
Seen = Callable[[RankKind, Node, Any, tuple[int, ...], Sequence[Any]], None]
"""Told of every node's result on all ranks of a kind, with the numbers of the loops' turns and calls around it, and its
operands."""


MAX_TURNS = 10000
"""Iterations of a loop that ends when the data say so."""


class Deadlock(Exception):
    """Ranks wait for each other. waiting: by kind the node at which it waits."""

    def __init__(self, waiting: Sequence[tuple[RankKind, Node]]) -> None:
        super().__init__("ranks wait for each other")
        self.waiting = waiting


@dataclass
class KindState:
    """The stored values of a kind of ranks between steps: by name, with leading dimensions. taken: graphs of branches
    and loops that have run."""

    kind: RankKind
    stored: dict[str, Array] = field(default_factory=dict[str, Array])
    taken: set[Graph] = field(default_factory=set[Graph])


class KindRun:
    """One step of one kind."""

    def __init__(self, state: KindState, step: int, seen: Seen | None) -> None:
        self.kind, self.state, self._seen = state.kind, state, seen
        self._backend = NumPyBackend(OneRank(), step=step)
        self._around: tuple[int, ...] = ()
        self._known: Mapping[Node, Any] = {}
        """Results that are not computed."""
        self._ends: dict[Graph, list[list[Node]]] = {}
        self._known_to_meet: dict[int, bool] = {}
        self._changing: dict[Graph, bool] = {}
        """Whether graphs overwrite parameters."""

    def step(self, inputs: dict[str, Array]) -> Generator[CollectiveRequest, Any, list[Any]]:
        """Yield the results of the graph. inputs: by name, with leading dimensions."""
        graph = self.kind.graph
        values: dict[Value, Any] = {
            p: inputs[p.name] if p.kind == "input" else self.state.stored[p.name] for p in graph.parameters
        }
        results = yield from self._graph(graph, values)
        for parameter in graph.parameters:
            if parameter.kind != "input":
                self.state.stored[parameter.name] = values[parameter]
        return results

    def _graph(self, graph: Graph, values: dict[Value, Any]) -> Generator[CollectiveRequest, Any, list[Any]]:
        if graph not in self._ends:
            self._ends[graph] = results_over(graph)
        for node, ended in zip(graph.nodes, self._ends[graph], strict=True):
            if node in self._known:
                values[node] = self._known[node]
                continue
            operands = [self._value(v, values) for v in node.inputs]
            op = node.op
            if isinstance(op, STRUCTURE):
                result = op.run(self._backend, *operands)
            elif isinstance(op, TurnCount):
                result = np.full((1,) * self.kind.depth, len(operands[0]), np.int64)
            elif node.regions:
                result = yield from self._regions(node, operands, values)
            elif self._meets(op):
                if any(isinstance(operand, list) for operand in operands):
                    raise NodeError(self.kind, node, "it takes no stack of tensors")
                result = yield CollectiveRequest(self.kind, node, self.kind.ops_of(op), operands)
            else:
                result = self._computed(node, operands, values)
            result = values[node] = self._changed(node, operands, result)
            if self._seen is not None:
                self._seen(self.kind, node, result, self._around, operands)
            del operands, result
            for value in ended:
                # A stack names the tensors that it is of, which a loop may overwrite.
                if not isinstance(value.op, MakeStack):
                    del values[value]
        results = [self._value(v, values) for v in graph.results]
        if graph not in self._changing:
            self._changing[graph] = any(node.op.mutates for node in graph.all_nodes())
        # A result that shows a parameter stays as it is when that changes later.
        return [mapped(result, np.array) for result in results] if self._changing[graph] else results

    def _changed(self, node: Node, operands: Sequence[Any], result: Any) -> Any:
        """Return the result of a node; another one if the run tries a change of the program."""
        return result

    def _meets(self, op: Any) -> bool:
        found = self._known_to_meet.get(id(op))
        if found is None:
            ops = told_apart(self.kind.ops_of(op))[0] if isinstance(op, Collective) else ()
            found = self._known_to_meet[id(op)] = any(own.communicates for own in ops)
        return found

    def _value(self, value: Value, values: dict[Value, Any]) -> Any:
        if not isinstance(value, Constant):
            return values[value]
        own = self.kind.constants.get(id(value))
        if own is None:
            return value.value.reshape((1,) * self.kind.depth + value.value.shape)
        return on_mesh(np.stack([c.value for c in own]), self.kind.mesh)

    def _computed(self, node: Node, operands: list[Any], values: dict[Value, Any]) -> Any:
        op = node.op
        assert isinstance(op, Op)
        ops: Sequence[Any] = self.kind.ops_of(op)
        if op.mutates:
            self._widen(node, operands, values)
        try:
            with np.errstate(all="ignore"):
                return computed(ops, self.kind, self._backend, operands)
        except (MspcError, ValueError, IndexError, TypeError, AttributeError, ArithmeticError) as error:
            reason = error.message if isinstance(error, MspcError) else str(error)
            raise NodeError(self.kind, node, reason, computed=True) from error

    def _widen(self, node: Node, operands: list[Any], values: dict[Value, Any]) -> None:
        """Give the values that the node overwrites all the leading dimensions of its operands."""
        op, depth = node.op, self.kind.depth
        ops: Sequence[Any] = self.kind.ops_of(op)
        groups = [range(len(operands))]
        width = getattr(op, "width", 0)
        if width and len(operands) > width:
            groups = [range(start, start + width) for start in range(0, len(operands), width)]
        for group in groups:
            lead = self.kind.mesh if len(ops) > 1 else common_lead((operands[i] for i in group), depth)
            for index in group:
                if index in op.mutates and operands[index].shape[:depth] != lead:
                    wide = np.array(widened(operands[index], lead))
                    operands[index] = values[node.inputs[index]] = wide

    # Graphs that nodes run

    def _regions(
        self, node: Node, operands: list[Any], values: dict[Value, Any]
    ) -> Generator[CollectiveRequest, Any, Any]:
        around, calls, turns = self._around, self._backend.calls, self._backend.turns
        if MICRO_BATCH in node.attrs:
            number = int(node.attrs[MICRO_BATCH])
            turns, around = (*turns, number), (*around, number + 1)
        elif CALL in node.attrs:
            number = int(node.attrs[CALL])
            calls, around = (*calls, number), (*around, number)
        with temporarily(self._backend, calls=calls, turns=turns), temporarily(self, _around=around):
            found, inside = yield from self._region_of(node, operands)
        for index in node.op.mutates:
            value = node.inputs[index]
            made = values[value] = inside(index)
            if isinstance(value, Node) and isinstance(value.op, MakeStack):
                values.update(zip(value.inputs, made, strict=True))
        return found

    def _region_of(
        self, node: Node, operands: list[Any]
    ) -> Generator[CollectiveRequest, Any, tuple[Any, Callable[[int], Any]]]:
        op = node.op
        if isinstance(op, Call):
            given = list(spread(node, operands))
            values: dict[Value, Any] = dict(zip(node.regions[0].parameters, given, strict=True))
            found = yield from self._graph(node.regions[0], values)
            places = op.places(0, [v.type for v in node.inputs])
            return tuple(found), lambda i: values[node.regions[0].parameters[places[i][0]]]
        if isinstance(op, If):
            way = self._same_everywhere(node, operands[0])
            region = node.regions[0 if way else 1]
            self.state.taken.add(region)
            values = dict(zip(region.parameters, operands[1:], strict=True))
            found = yield from self._graph(region, values)
            return tuple(found), lambda i: values[region.parameters[i - 1]]
        if isinstance(op, Scan | For | While):
            return (yield from self._loop(node, op, operands))
        raise NodeError(self.kind, node, f"{op.name} cannot be run for all ranks at once")

    def _loop(
        self, node: Node, op: Scan | For | While, operands: list[Any]
    ) -> Generator[CollectiveRequest, Any, tuple[Any, Callable[[int], Any]]]:
        first, depth = op.first, self.kind.depth
        behind = first + op.carried
        carried, scanned = list(operands[first:behind]), operands[behind : behind + op.scanned]
        rest = list(operands[behind + op.scanned :])
        body = body_of(node)
        count = 0
        limit = self._iterations(node, op, operands)
        kept: list[list[Any]] = []
        turns: Iterator[int] = iter(range(limit)) if limit >= 0 else itertools.count()
        if op.reverse and limit >= 0:
            turns = iter(range(limit)[::-1])
        around, turns_around = self._around, self._backend.turns
        for turn in turns:
            self._around = (*around, turn + 1)
            if isinstance(op, While):
                condition = node.regions[0]
                asked = dict[Value, Any](zip(condition.parameters, (*carried, *rest), strict=True))
                told = yield from self._graph(condition, asked)
                if not self._same_everywhere(node, told[0]):
                    break
                if turn == MAX_TURNS:
                    message = f"{node.label} turns more than {MAX_TURNS} times, with inputs that are made for it"
                    raise MspcError(message, notes=["mspc verify without --scale has other ones"], frames=node.frames)
            place = (*(slice(None),) * depth, turn)
            entries = [part[turn] if isinstance(part, list | tuple) else part[place] for part in scanned]
            leading = [np.full((1,) * depth, turn, np.int64)] * op.leading
            values = dict[Value, Any](zip(body.parameters, (*leading, *carried, *entries, *rest), strict=True))
            self._backend.turns = (*turns_around, turn)
            found = yield from self._graph(body, values)
            self._backend.turns = turns_around
            for index in op.mutates:
                place = op.inside(len(node.regions) - 1, index)
                assert place is not None
                inner = values[body.parameters[place]]
                if index >= behind + op.scanned:
                    rest[index - behind - op.scanned] = operands[index] = inner
                elif isinstance(operands[index], list):
                    operands[index][turn] = inner
            carried = list(found[: op.carried])
            kept.append(list(found[op.carried :]))
            count += 1
            self.state.taken.add(body)
        self._around = around
        if op.reverse:
            kept.reverse()
        results: list[Any] = list(carried)
        if isinstance(op, While) and op.returns_count:
            results.append(np.full((1,) * depth, count, np.int64))
        types = element_types(node.type)[len(results) :]
        for place, entry in enumerate(body.results[op.carried :]):
            rows = [row[place] for row in kept]
            is_stack = isinstance(entry.type, StackType) or (place < len(types) and isinstance(types[place], StackType))
            lead = () if is_stack else common_lead(rows, depth)
            results.append(rows if is_stack else np.stack([widened(row, lead) for row in rows], depth))
        return tuple(results), lambda i: operands[i]

    def _iterations(self, node: Node, op: Scan | For | While, operands: list[Any]) -> int:
        if isinstance(op, While):
            return -1
        if isinstance(op, For) and op.turns < 0:
            return int(self._same_everywhere(node, operands[0]))
        return op.known_iterations([value.type for value in node.inputs])

    def _same_everywhere(self, node: Node, array: Array) -> Any:
        """Return the value that decides a node's way, if all ranks of the kind agree."""
        found = np.unique(array)
        if found.size == 1:
            return found[0]
        ways = flat(array, self.kind.mesh).reshape(len(self.kind.ranks), -1)
        if ways.shape[1] == 1:
            parts = by_key(self.kind, ways[:, 0].tolist())
            if len(parts) <= MAX_PARTS:
                raise Divided(self.kind, parts)
        raise NodeError(self.kind, node, "ranks of one kind go different ways here, as the data say")


def computed(ops: Sequence[Any], kind: RankKind, backend: Any, operands: Sequence[Array]) -> Any:
    """Return the results of an operator on all ranks of a kind. ops: as every rank has it, or one for all."""
    if len(ops) == 1:
        return run_on_all(ops[0], backend, kind.depth, operands)
    placed = places_on_each(ops, kind.mesh, backend, operands)
    if placed is not None:
        return placed
    distinct, numbers = told_apart(ops)
    which = on_mesh(np.array(numbers), kind.mesh)
    sliced = slices_on_each(distinct, which, kind.depth, backend, operands)
    if sliced is not None:
        return sliced

    def run(number: Array, *own: Array) -> Any:
        return run_on_all(distinct[int(number.flat[0])], backend, kind.depth, own)

    return block_by_block(run, [which, *operands], kind.depth, [which])


def run_step(
    states: Sequence[KindState], feeds: Sequence[dict[str, Array]], step: int, seen: Seen | None = None,
    runs: Sequence[KindRun] | None = None,
) -> list[list[Any]]:  # fmt: skip
    """Run one step of all ranks; return the results of every kind, with leading dimensions. step: counted from 1. runs:
    how kinds are run, if it is not as they are. Raise Stuck if ranks wait for each other, NodeError if a node cannot be
    computed, Divided if ranks of a kind do not go on together."""
    runs = runs or [KindRun(state, step, seen) for state in states]
    steps = [run.step(feed) for run, feed in zip(runs, feeds, strict=True)]
    results: list[list[Any]] = [[] for _ in steps]
    board = Board([state.kind for state in states])
    ready: list[tuple[int, Any]] = [(number, None) for number in range(len(steps))]
    while ready:
        for number, answer in ready:
            try:
                board.enter(number, steps[number].send(answer))
            except StopIteration as ended:
                results[number] = ended.value
        ready = board.answers()
    board.check()
    if board.waiting:
        raise Deadlock([(request.kind, request.node) for request in board.waiting.values()])
    return results
