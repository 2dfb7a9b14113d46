"""Holds the programs of all ranks, at small sizes, to one device: results, parameters and states after some steps."""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import field, replace
from functools import partial
from typing import Any

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import PADDING, STAGES, Graph, Node, Parameter, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Layout
from mspc.ir.temporary import temporarily
from mspc.ops.collective.point_to_point import SendToStage
from mspc.ops.control.structural import StopGradient
from mspc.ops.nn.experts import ExpertPlaces
from mspc.ops.optim.optimizer import AllFinite
from mspc.passes.base import PassManager, find_pass
from mspc.runtime.faults.record import NodeFailure
from mspc.verify.difference import Noise
from mspc.verify.made_inputs import made_inputs
from mspc.verify.scale.blame import FirstWrong, Odd, odd_one
from mspc.verify.scale.compared import Compared, compared, largest_change, makers, writer_of_others
from mspc.verify.scale.execution import Deadlock, KindRun, KindState, Seen, run_step
from mspc.verify.scale.meetings import CollectiveRequest, NodeError
from mspc.verify.scale.memory_use import MemoryFound, memory_of_kinds
from mspc.verify.scale.rank_kinds import Divided, RankKind, Slices, alike, divided, flat, met_by, rows_by_rank
from mspc.verify.scale.readers import Readers
from mspc.verify.scale.reference import OneDeviceReference, OwnRows, OwnRowsReference
from mspc.verify.scale.relations import likeness
from mspc.verify.scale.repairs import (
    MAX_DOUBTED,
    Edit,
    EditedRun,
    TriedChanges,
    doubled_sums,
    edits_before,
    likeliest,
    nodes_before,
    ratio_of,
    scaled_before,
)
from mspc.verify.scale.room import check_fits, values_nbytes
from mspc.verify.scale.small_programs import Unfit, first_weights, small_programs
from mspc.verify.scale.watch import ValueWatch


@dataclass
class ScaleProof:
    """The result of a proof.

    ranks, kinds: how many there are. rows: every value of every kind and step that was compared. sizes: of parameters,
    (real, small). first: the first wrong value. stuck: the nodes at which ranks wait for each other; failed: a node
    that cannot be computed on some ranks, and why. others: nodes at which ranks are that should meet them there. odd:
    the difference in the programs of a few ranks, if it is one change.
    """

    ranks: int
    kinds: int
    rows: list[Compared]
    sizes: dict[str, tuple[tuple[int, ...], tuple[int, ...]]]
    first: FirstWrong | None = None
    stuck: tuple[tuple[RankKind, Node], ...] = ()
    failed: tuple[RankKind, Node, str] | None = None
    others: tuple[Node, ...] = ()
    odd: Odd | None = None
    memory: MemoryFound | None = None
    """Misuses of memory that values share, at real sizes."""
    untaken: list[tuple[Node, str]] = field(default_factory=list[tuple[Node, str]])
    """Branches and loops that no step runs on one device."""
    whole: bool = False
    """Whether all values have their own sizes: small ones would have said that something differs."""
    loss: str = ""
    """The loss of one device as the ranks have it: "sum" or "mean" over ranks of their own ones, "" for the same."""

    @property
    def same(self) -> bool:
        if self.memory is not None and self.memory.misuses:
            return False
        return not self.stuck and self.failed is None and all(row.same for row in self.rows)

    def may_be_of(self, odd: Odd, kinds: Sequence[RankKind]) -> bool:
        """Return whether the difference in programs of a few ranks may be the error: right programs may differ, too."""
        if self.stuck or self.failed is not None:
            waiting = [kind for kind, _ in self.stuck] + [kind for kind in kinds if kind.runs_any(self.others)]
            return odd.may_stop([] if self.failed is None else [self.failed[0]], waiting)
        return not odd.even and (self.first is None or not {*self.first.ranks}.isdisjoint(odd.ranks))


NUMBER = "real_node"
"""The attribute that numbers a node, and is copied with it."""


class FailedHere(Exception):
    """A node of a small program cannot be computed. node: None if unknown."""

    def __init__(self, node: Node | None) -> None:
        super().__init__("a node cannot be computed at small sizes")
        self.node = node


def numbered(graphs: Iterable[Graph]) -> list[Node]:
    """Return the nodes of some programs by their numbers, which they get."""
    found = [node for graph in graphs for node in graph.all_nodes()]
    for number, node in enumerate(found):
        node.attrs[NUMBER] = number
    return found


def failed_node(graph: Graph, failure: NodeFailure) -> Node | None:
    """Return the node of a program that has failed."""
    for each in graph.graphs():
        if failure.region in ("", each.name) and 0 <= failure.index < len(each.nodes):
            return each.nodes[failure.index]
    return None


# All ranks must take part if one of them finds an overflow: a step pretends one.
#
# If a network looks for overflows (`AllFinite`), the ranks that hold one slice of an operand find an infinity in it,
# and so does one device. In stages those do that compute the operand, and they send it to others. The stored values of
# all after the step must be those of one device.


Array = Any
Groups = Sequence[tuple[int, ...]]
AN_OVERFLOW = "only these ranks find an overflow there, and others do not do the same as one device"
MAX_PRETENDED = 8
"""Number that is pretended, each of which takes a step of all ranks."""
CLOSE = 1e-9
"""Slices that are apart by no more are one."""


@dataclass(frozen=True)
class Overflow:
    """An infinity in an operand of a node of a kind, and of a node of one device. nodes: this one, and if ranks that
    store the same are of several kinds those of the others, all ranks of which find it then."""

    kind: RankKind
    node: Node
    operand: int
    one: Node
    nodes: Sequence[tuple[RankKind, Node]]


def overflows(one: Graph, kinds: Sequence[RankKind]) -> list[Overflow]:
    """List the overflows to pretend: in the first and the last operand that a kind computes for a node that looks for
    one. A stage sends it to all others that look for one, else it is left out, as these may recompute it from their
    messages; of many stages, some are taken from the first to the last."""
    looking = _looking(one)
    nodes = (node for kind in kinds for node in kind.graph.all_nodes())
    are_stages = bool(looking) and any(isinstance(node.op, SendToStage) for node in nodes)
    found: list[Overflow] = []
    for family in alike(kinds) if looking else ():
        others = [kind for kind in kinds if are_stages and kind not in family and _looking(kind.graph)]
        kind = family[0]
        for members in zip(*(_looking(each.graph) for each in family), strict=False):
            node = members[0]
            same = [each for each in looking if each.frames == node.frames or len(looking) == 1]
            own = [number for number, value in enumerate(node.inputs) if _is_sent(value, kind, others)]
            if len(same) == 1 and len({len(each.inputs) for each in members}) == 1:
                pairs = tuple(zip(family, members, strict=True))
                found += [Overflow(kind, node, i, same[0], pairs) for i in sorted({*own[:1], *own[-1:]})]
    if len(found) <= MAX_PRETENDED or not are_stages:
        return found
    return [found[round(number * (len(found) - 1) / (MAX_PRETENDED - 1))] for number in range(MAX_PRETENDED)]


def _looking(graph: Graph) -> list[Node]:
    return [node for node in graph.nodes if isinstance(node.op, AllFinite)]


def _sends_it(node: Node, value: Value) -> bool:
    return isinstance(node.op, SendToStage) and node.inputs[0] is value


def _is_sent(value: Value, kind: RankKind, others: Sequence[RankKind]) -> bool:
    """Return whether all others get a value as it is."""
    sends = [node.op for node in kind.graph.nodes if _sends_it(node, value)]
    targets = {rank + op.distance for op in sends for rank in kind.ranks}  # type: ignore[attr-defined]  # a message's
    return all(not targets.isdisjoint(other.ranks) for other in others)


class OverflowingRun(KindRun):
    """A step in which ranks that have the last rank's slice of an operand find an infinity in it, and send it so; all
    ranks if others store the same."""

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
    """Run one step of all ranks, and of one device; return the ranks that find the infinity. Raise Stuck if ranks wait
    for each other, NodeError if a node cannot be computed, Divided if ranks of a kind do not go on together."""
    runs = [OverflowingRun(state, 1, overflow.nodes, overflow.operand) for state in states]
    run_step(states, feeds, 1, runs=runs)
    run_step([one], [dict(inputs)], 1, runs=[OverflowingRun(one, 1, [(one.kind, overflow.one)], 0)])
    return next(run.ranks for run in runs if run.kind is overflow.kind)


MANY_RANKS = 256
MAX_WHOLE = 1 << 30
"""If all values of all ranks take at most so many bytes, failures are confirmed at real sizes before they are reported.
"""
STEPS = 2
"""An optimizer's states are read in the second step for the first time."""


@dataclass
class SmallProgram:
    """A program of small sizes. reference: the judge of the ranks. kinds: of all ranks. weights: first stored values,
    global and small. inputs: of every step the global inputs, by name. num_full_size: how many dimensions keep their
    sizes. batch: of a capture, for each rank those that share its batch; () if all have the whole batch. loss: see
    `ScaleProof`. stops: at the first wrong step."""

    reference: OneDeviceReference | OwnRowsReference
    kinds: list[RankKind]
    weights: dict[str, Array]
    inputs: list[dict[str, Array]]
    num_full_size: int
    rows: list[Compared] = field(default_factory=list[Compared])
    batch: Groups | None = None
    loss: str = ""
    stops: bool = False
    _watch: ValueWatch | None = None  # of the step that was run, if there is one alone

    @contextmanager
    def beside(self) -> Generator[None]:
        """Run one device in a process of its own while ranks run, if there are enough ranks for it to pay."""
        own = self.reference
        are_many = sum(len(kind.ranks) for kind in self.kinds) >= MANY_RANKS
        with own.beside() if are_many and isinstance(own, OneDeviceReference) else nullcontext():
            yield

    def first_wrong(self) -> FirstWrong | None:
        """Return the first value of the first wrong step that differs from one device's; else the node that makes the
        wrong value at the end; None if none is found, or one device cannot be computed either."""
        watch = self.watched(min((row.step for row in self.rows if not row.same), default=0))
        if watch is None:
            return None
        found = self._first_of(watch)
        if self.batch is None:
            return found
        repaired = self.repaired(watch, found)
        return watch.unmoved(found) or found if found is not None and repaired is found else repaired

    def _first_of(self, watch: ValueWatch) -> FirstWrong | None:
        first = watch.first(self._not_right(watch) if watch.whole else None)
        if first is not None and (not watch.whole or self._is_of_what_differs(first)):
            return first
        if not watch.whole:
            return None
        written = self._first_written(watch)
        if written is None:
            return None
        if self.batch is not None:
            before = Readers(written.kind.graph).before(written.node)
            if (hidden := watch.hidden(before)) is not None:
                return hidden
        found = watch.written_by(written)
        words = next(row.words for row in self.rows if not row.same)
        return replace(found, equals=words) if found.node is written.node and not found.equals else found

    def _not_right(self, watch: ValueWatch) -> set[Value]:
        """Return the values from which the first wrong ones that ranks hand out or store are computed, not by way of
        right ones: values may be divided otherwise than those of one device in between, and be right afterwards, and
        those that passes put in have no counterpart."""
        wrong = [row for row in self.rows if not row.same]
        found: set[Value] = set()
        readers = {id(kind): Readers(kind.graph) for kind in self.kinds}
        waiting: list[tuple[RankKind, Value]] = []
        for kind in self.kinds:
            rows = [row for row in wrong if row.kind is kind and row.step == wrong[0].step]
            waiting += ((kind, value) for value in makers(kind.graph, rows))
        for kind, value in waiting:
            if value not in found:
                found.add(value)
                for source in readers[id(kind)].read_by(value):
                    if source in watch.right and (self.batch is not None or watch.is_own(source)):
                        found.add(source)
                    else:
                        waiting.append((kind, source))
                if isinstance(value, Node) and self.batch is None:
                    waiting += met_by(kind, value, self.kinds)
        return found

    def _is_of_what_differs(self, first: FirstWrong) -> bool:
        """Return whether any difference after the first wrong step is computed from a wrong value: if one device has 0,
        ranks may have any rounding. With several kinds this is not checked."""
        if len(self.kinds) > 1:
            return True
        wrong = [row for row in self.rows if not row.same]
        made = makers(first.kind.graph, [row for row in wrong if row.step == wrong[0].step])
        if not made:
            return True
        behind = {first.node, *Readers(first.kind.graph).behind(first.node)}
        return not behind.isdisjoint(made)

    def watched(self, step: int = 0) -> ValueWatch | None:
        """ValueWatch all values of a step; None if one device cannot be computed."""
        watch, self._watch = self._watch, None
        if watch is not None and step == 0:
            watch.whole = bool(self.rows)  # the step has been run to its end
        elif (watch := self._new_watch(step)) is not None:
            try:
                states = self.states()
                for number in range(step + 1):
                    run_step(states, self.feeds(number), number + 1, watch if number == step else None)
            except Divided as error:
                self.kinds = divided(self.kinds, error)
                return self.watched(step)
            except (Deadlock, NodeError):
                watch.whole = False
        if watch is not None:
            watch.settle()
        return watch

    def _new_watch(self, step: int) -> ValueWatch | None:
        try:
            known = self.reference.known(step)
        except NodeError:
            return None
        is_mean = self.loss == "mean" or not self.rows  # a step that does not end has no loss
        batches = len(self.batch[0]) if self.batch and is_mean else 1
        return ValueWatch(self.reference.graph, known, self.kinds, batches, self.batch is not None)

    def repaired(self, watch: ValueWatch, first: FirstWrong | None) -> FirstWrong | None:
        """Return the node of which one change makes all steps right, else the first wrong value."""
        wrong = [row for row in self.rows if not row.same]
        if not wrong:
            return first
        edit = self._repair(watch, first, wrong)
        if edit is None:
            return first
        ranks, read = edit.kind.ranks, ()
        if first is not None and first.kind is edit.kind:
            ranks = first.ranks
            said = f"{first.node.label} makes the first value that differs"
            read = (said,) if first.node is not edit.node else ()
        node = edit.node  # autograd hands gradients over outside of the script: their readers have lines
        read_there = Readers(edit.kind.graph).of(node) if isinstance(node.op, StopGradient) else ()
        node = next((each for each in read_there if isinstance(each, Node)), node)
        return FirstWrong(edit.kind, node, ranks, read, edit.words)

    def _repair(self, watch: ValueWatch, first: FirstWrong | None, wrong: Sequence[Compared]) -> Edit | None:
        """Return a change that makes all steps right, or None: of those after which the first wrong value is one of one
        device, then of some of collectives after which it is not, as it need not be in the right program."""
        target = first.node if first is not None and watch.is_alone(first.kind) else None
        tried = TriedChanges(self.kinds, wrong[0].step + 1, target, watch.fits)
        if tried.are_known:
            run_step(self.states(), self.feeds(0), 1, tried.note)
        for edit in self._edits(watch, first, wrong):
            for each in (edit, *edit.wider(self.kinds, watch.is_suspect)):
                if self._is_right_with(each, tried):
                    return each
            if tried.are_enough:
                break
        tried.target = None
        return next((edit for edit in tried.doubted[:MAX_DOUBTED] if self._is_right_with(edit, tried)), None)

    def _edits(self, watch: ValueWatch, first: FirstWrong | None, wrong: Sequence[Compared]) -> Iterator[Edit]:
        """Yield changes of values before the first wrong value, and before those that are handed out or stored."""
        for kind in self.kinds:
            yield from likeliest(kind)
        first_rows = [row for row in wrong if row.step == wrong[0].step]
        ratio = next(filter(None, (ratio_of(row.found, row.expected) for row in wrong)), 0.0)
        results = [row for row in first_rows if row.what == "result"]
        if {ratio_of(row.found, row.expected) for row in results} == {ratio}:  # all of them by one factor
            for kind in self.kinds:
                made = list(makers(kind.graph, [row for row in results if row.kind is kind]))
                if made and ratio < 1:  # a sum that is one too many is likelier than a factor that is missing
                    yield from doubled_sums(kind, made[0])
                yield from scaled_before(kind, nodes_before(kind, made, watch.is_settled), ratio)
        before = partial(edits_before, settled=watch.is_settled, divided=watch.is_divided, ratio=ratio)
        if first is not None:
            is_at_fault = watch.is_at_fault(first.node)
            if not is_at_fault:
                yield from doubled_sums(first.kind, first.node)
            yield from before(first.kind, [first.node])
            if is_at_fault:
                return
        for kind in self.kinds:
            yield from before(kind, list(makers(kind.graph, [row for row in first_rows if row.kind is kind])))

    def _is_right_with(self, edit: Edit, tried: TriedChanges) -> bool:
        """Return whether all steps are right with a change."""
        with suppress(Divided, Deadlock, NodeError), temporarily(self, rows=[], loss=self.loss):
            self._run_steps(None, lambda state, step: EditedRun(state, step, edit, tried))
            return bool(self.rows) and all(row.same for row in self.rows)
        return False

    def missed_overflow(self) -> FirstWrong | None:
        """Find ranks that look for an overflow, of which one finds it, and that do not act as one device does then.
        Raise Stuck if ranks wait for each other."""
        one = self.reference
        for each in overflows(one.graph, self.kinds) if isinstance(one, OneDeviceReference) else ():
            states, state = self.states(), one.state()
            try:
                ranks = run_overflow(each, states, self.feeds(0), state, one.fed_in(0))
            except Divided as error:
                self.kinds = divided(self.kinds, error)
                return self.missed_overflow()
            except NodeError:
                continue
            before = len(self.rows)
            for made in states:
                self._parameters(made, 0, {name: array[0] for name, array in state.stored.items()})
            if not all(row.same for row in self.rows[before:]):
                return FirstWrong(each.kind, each.node, ranks, (), AN_OVERFLOW)
            del self.rows[before:]
        return None

    def _first_written(self, watch: ValueWatch) -> FirstWrong | None:
        """Return the last node that writes the first stored value or result that is wrong."""
        wrong = [row for row in self.rows if not row.same]
        for row in (row for row in wrong if row.step == wrong[0].step):
            ranks = (row.rank,) if row.rank >= 0 else row.kind.ranks
            node = next(reversed(makers(row.kind.graph, [row])), None)
            if node is not None:
                return FirstWrong(row.kind, node, ranks, (), "")
            one = self.reference.graph
            node = next(iter(makers(one, [row])), None)
            if node is not None:
                does, other = f"gives what this computes as result {row.name}", None
                if row.what == "parameter":
                    does = f"writes {row.name} there"
                    other = writer_of_others(row.kind.graph, one, node) or watch.counterpart(row.kind, node)
                return FirstWrong(row.kind, other or node, ranks, (), f"one device {does}, and these ranks do not")
        return None

    def states(self) -> list[KindState]:
        """Return the first stored values of every kind."""
        found = [KindState(kind) for kind in self.kinds]
        for state in found:
            slices = Slices(state.kind)
            for p in (p for p in state.kind.graph.parameters if p.kind != "input"):
                state.stored[p.name] = slices.of(self.weights[p.name], layout_of(p), padded_shape(p))
        return found

    def feeds(self, step: int) -> list[dict[str, Array]]:
        """Return the inputs of a step, for every kind."""
        return [
            {
                p.name: Slices(kind).of(self.inputs[step][p.name], self.reference.fed.get(p.name, layout_of(p)))
                for p in kind.graph.parameters
                if p.kind == "input"
            }
            for kind in self.kinds
        ]

    def compare(self, seen: Seen | None = None) -> list[Compared]:
        """Run all steps, and compare. Raise Stuck if ranks wait for each other, NodeError if a node cannot be
        computed."""
        while True:
            self._watch = self._new_watch(0) if self.stops and len(self.inputs) == 1 else None
            try:
                self._run_steps(seen or self._watch)
            except Divided as error:
                self.kinds = divided(self.kinds, error)
                self.rows.clear()
            else:
                return self.rows

    def _run_steps(self, seen: Seen | None, edited: Callable[[KindState, int], KindRun] | None = None) -> None:
        """Run all steps; with a change up to the first wrong one."""
        states = self.states()
        for step in range(len(self.inputs)):
            runs = None if edited is None else [edited(state, step + 1) for state in states]
            results = run_step(states, self.feeds(step), step + 1, seen, runs)
            if self.batch:
                self._join_losses(results, step)
            self._join_parts(results)
            for state, found in zip(states, results, strict=True):
                self._results(state.kind, found, step)
                self._parameters(state, step)
            if (self.stops or edited is not None) and not all(row.same for row in self.rows):
                return

    def _results(self, kind: RankKind, found: Sequence[Array], step: int) -> None:
        slices = Slices(kind)
        for number, (value, array) in enumerate(zip(kind.graph.results, found, strict=True)):
            wanted = self.reference.result(step, number)
            if wanted is None or (wanted.size and not array.size):  # a result of other stages
                continue
            layout = layout_of(value)
            if wanted.shape == array.shape[kind.depth :]:
                layout = None
            held = self.reference.of_ranks(slices, wanted, layout)
            self._row("result", str(number), ("result", number), step, kind, held, array)

    def _join_losses(self, results: Sequence[list[Array]], step: int) -> None:
        """Replace the losses of the ranks' own rows by their sum or mean, if it is that of one device."""
        assert self.batch is not None
        wanted = self.reference.result(step, 0)
        own = self._by_rank(results, 0)
        groups = {rank: self.batch[rank] for rank in own if own.keys() >= {*self.batch[rank]}}
        sums = {rank: sum(own[member] for member in group) for rank, group in groups.items()}
        ways = {"": own, "sum": sums, "mean": {rank: sums[rank] / len(self.batch[rank]) for rank in sums}}
        fits = [way for way, values in ways.items() if np.allclose([*values.values()], wanted, CLOSE)]
        self.loss = next(iter(fits), "mean") if step == 0 else self.loss
        self._replace(results, 0, ways[self.loss])

    def _join_parts(self, results: Sequence[list[Array]]) -> None:
        """Add up gradients whose ranks have parts of a sum, as those of DTensors may be."""
        for number, values in enumerate(zip(*(kind.graph.results for kind in self.kinds), strict=True)):
            layout = next((each for each in map(layout_of, values) if each is not None and each.is_partial), None)
            if layout is not None:
                own = self._by_rank(results, number)
                groups = {rank: layout.group(layout.partial, rank) for rank in own}
                self._replace(results, number, {rank: sum(own[each] for each in groups[rank]) for rank in own})

    def _by_rank(self, results: Sequence[list[Array]], number: int) -> dict[int, Array]:
        """Return a result of every rank that has it."""
        pairs = zip(self.kinds, results, strict=True)
        return rows_by_rank((kind, found[number]) for kind, found in pairs if found[number].size)

    def _replace(self, results: Sequence[list[Array]], number: int, by_rank: Mapping[int, Any]) -> None:
        for kind, found in zip(self.kinds, results, strict=True):
            if found[number].size:
                joined = np.stack([by_rank[rank] for rank in kind.ranks])
                found[number] = joined.reshape(*kind.mesh, *joined.shape[1:])

    def _parameters(self, state: KindState, step: int, given: dict[str, Array] | None = None) -> None:
        slices = Slices(state.kind)
        for parameter in state.kind.graph.parameters:
            if parameter.kind == "parameter":
                stored = given[parameter.name] if given else self.reference.stored(step, parameter.name)
                wanted = self.reference.of_ranks(slices, stored, layout_of(parameter), padded_shape(parameter))
                held = state.stored[parameter.name]
                change = largest_change(self.weights[parameter.name], stored)
                self._row("parameter", parameter.name, parameter.name, step, state.kind, wanted, held, change)

    def _row(
        self, what: str, name: str, key: Any, step: int, kind: RankKind, wanted: Array, found: Array,
        change: float | None = None,
    ) -> None:  # fmt: skip
        row = compared(what, name, step, kind, wanted, found, Noise(), change)
        if not row.same:
            row = compared(what, name, step, kind, wanted, found, self.reference.noise(step, key), change)
            if not row.same and math.isfinite(row.apart) and all(other.same for other in self.rows):
                row = replace(row, words=likeness(found, wanted, kind))
        self.rows.append(row)


def _in_turns(graph: Graph, stages: int) -> Graph:
    """Order one device's program so that the gradient of each micro-batch is right after it, and it keeps one at a
    time."""
    if stages == 1:
        return graph
    graph.attrs[STAGES] = stages
    graph, _ = PassManager().apply(find_pass("join_micro_batches"), graph)
    del graph.attrs[STAGES]
    return graph


def layout_of(value: Value) -> Layout | None:
    """Return the layout of a value that is one tensor."""
    return value.layout if isinstance(value.layout, Layout) else None


def padded_shape(parameter: Parameter) -> tuple[int, ...]:
    """Return the shape of a rank's slice if it may be padded, or ()."""
    return parameter.shape if PADDING in parameter.attrs else ()


# The proof


def small_program(
    one: Graph, kinds: Sequence[RankKind], values: Sequence[Any], seed: int, own: OwnRows | None = None,
    full_size: Sequence[Value] | None = (), one_way: bool = False, batch: Groups | None = None, begin: int = 0,
    steps: int = STEPS,
) -> SmallProgram:  # fmt: skip
    """Return the program of small sizes; arguments and errors are those of `prove`. full_size, one_way: see
    `small_programs`. begin: the first of the made inputs that is taken; those of later steps may take other branches.
    steps: how many are run. Raise MspcError if there is no memory for them."""
    small, few, sizing = small_programs(one, kinds, full_size, one_way)
    check_fits(small, few, one, steps)
    weights = first_weights(one, small, values, seed)
    inputs = [p.tensor_type for p in small.parameters if p.kind == "input"]
    made = made_inputs(small, inputs if own is None else own.global_types(small), [], seed, begin + steps)
    fed = [{name: each.arrays[begin + step] for name, each in made.items()} for step in range(steps)]
    reference: OneDeviceReference | OwnRowsReference
    if own is not None:
        reference = OwnRowsReference(small, own, own.draws(one, small), weights, fed)
    else:
        if sum(len(kind.ranks) for kind in kinds) >= MANY_RANKS:
            small = _in_turns(small, int(kinds[0].graph.attrs.get(STAGES, 1)))
        reference = OneDeviceReference(small, weights, fed)
    return SmallProgram(reference, few, weights, fed, len(sizing.divisors.frozen), batch=batch)


def prove(
    one: Graph, kinds: Sequence[RankKind], values: Sequence[Any], seed: int, own: OwnRows | None = None,
    batch: Groups | None = None,
) -> ScaleProof:  # fmt: skip
    """Run the programs of all ranks at small sizes beside one device. If something cannot be computed at small sizes,
    as a row beyond the end of a shorter table, its sizes are kept. The memory of every program is checked as it is
    planned for its real sizes; that of a captured step is PyTorch's own. Raise Unfit if a program does not take
    Float64; MspcError if one device cannot be computed, or there is no memory for the small programs.

    one: the network on one device. kinds: the programs of all ranks. values: first stored values, each with `name` and
    `make`. seed: of inputs and of trained weights. own: how ranks feed that have rows of their own; `one` is on the
    rows of one rank then. batch: see `SmallProgram`.
    """
    memory = memory_of_kinds(kinds) if batch is None else None
    found = _found(one, kinds, values, seed, own, batch)
    if any(not row.same for row in found.rows):
        whole = _found_whole(one, kinds, values, seed, own, batch)
        found = whole if whole is not None and whole.same else found
    found.memory = memory
    return found


def first_difference(
    one: Graph, kinds: Sequence[RankKind], values: Sequence[Any], seed: int, own: OwnRows | None = None
) -> ScaleProof:
    """Return the proof that describes the first wrong value of programs that are known to differ.

    The proof is at the programs' own sizes if these are small, as a number of a script may depend on them, with one
    step if they differ in the first; else at small sizes if they differ there, and at last at own ones if there is
    memory. Arguments and errors are those of `prove`.
    """
    whole = partial(_found_whole, one, kinds, values, seed, own, None, describe=True)
    small = partial(_found, one, kinds, values, seed, own, None)
    ways: list[Callable[[], ScaleProof | None]] = [partial(whole, steps=1), whole, small, partial(small, begin=1)]
    if values_nbytes(one, kinds) > MAX_WHOLE // 16:
        ways = ways[2:] + ways[:2]
    found: ScaleProof | None = None
    for way in ways:
        found = way() or found
        if found is not None and not found.same:
            break
    assert found is not None  # two of the ways return a proof
    return found


def _found(
    one: Graph, kinds: Sequence[RankKind], values: Sequence[Any], seed: int, own: OwnRows | None, batch: Groups | None,
    begin: int = 0,
) -> ScaleProof:  # fmt: skip
    odd = odd_one(kinds)
    real = numbered([one, *(kind.graph for kind in kinds)])
    full_size: list[Value] = []
    one_way = False
    program = small_program(one, kinds, values, seed, own, batch=batch, begin=begin)
    while True:
        try:
            return _proved(program, one, odd)
        except FailedHere as error:
            crowded = not one_way and error.node is not None and isinstance(error.node.op, ExpertPlaces)
            one_way = one_way or crowded
            if error.node is not None and not crowded:
                node = real[error.node.attrs[NUMBER]]
                same = [each for each in real if each.op.name == node.op.name and each.frames == node.frames]
                full_size += [value for each in same for value in (*each.inputs, each)]  # also of equal layers
            before = program.num_full_size
            program = small_program(one, kinds, values, seed, own, full_size, one_way, batch, begin)
            if program.num_full_size == before and not crowded:
                return _proved(program, one, odd, True)


def _found_whole(
    one: Graph, kinds: Sequence[RankKind], values: Sequence[Any], seed: int, own: OwnRows | None, batch: Groups | None,
    describe: bool = False, steps: int = STEPS,
) -> ScaleProof | None:  # fmt: skip
    """Prove at the programs' own sizes, if these are small; None else. describe: describe errors."""
    if values_nbytes(one, kinds) > MAX_WHOLE:
        return None
    try:
        program = small_program(one, kinds, values, seed, own, None, batch=batch, steps=steps)
        program.stops = True
        found = _proved(program, one, None, True, describe)
    except (MspcError, NodeFailure, Unfit):
        return None
    found.whole = True
    return found


def _proved(
    program: SmallProgram, one: Graph, odd: Odd | None, at_last: bool = False, describe: bool = True
) -> ScaleProof:
    """Prove once. odd: the difference in programs of a few ranks. at_last: report nodes that cannot be computed.
    describe: describe errors, instead of only counting them. Raise FailedHere if a node cannot be computed."""
    small = program.reference.graph
    sizes = {a.name: (a.shape, b.shape) for a, b in zip(one.parameters, small.parameters, strict=True)}
    made = ScaleProof(sum(len(kind.ranks) for kind in program.kinds), len(program.kinds), program.rows, sizes)
    are_at_odds = False  # at a collective: no value of a captured step decides which nodes its ranks run
    try:
        with program.beside():
            program.compare()
    except Deadlock as error:
        made.stuck, are_at_odds = tuple(error.waiting), True
    except NodeError as error:
        are_at_odds = not error.computed
        if error.computed and not at_last:
            raise FailedHere(error.node) from error
        made.failed, made.others = (error.kind, error.node, error.reason), error.others
    except NodeFailure as error:  # of one device
        if at_last:
            raise
        raise FailedHere(failed_node(small, error)) from error
    if made.same:
        made.untaken = program.reference.untaken()
        try:
            made.first = program.missed_overflow()
        except Deadlock as error:
            made.stuck = tuple(error.waiting)
    made.kinds, made.loss = len(program.kinds), program.loss
    if describe and not made.same and made.first is None:
        if not are_at_odds or program.batch is None:
            made.first = program.first_wrong()
        made.odd = odd if odd is not None and made.may_be_of(odd, program.kinds) else None
    return made
