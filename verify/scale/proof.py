"""Holds the programs of all ranks, at small sizes, to one device: results, parameters and states after some steps."""

from __future__ import annotations

import math
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import field, replace
from typing import Any

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import STAGES, Graph, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Layout
from mspc.ops.nn.experts import ExpertPlaces
from mspc.passes.base import PassManager, find_pass
from mspc.runtime.faults.failure import NodeFailure
from mspc.verify.difference import Noise
from mspc.verify.made_inputs import made_inputs
from mspc.verify.scale.blame import FirstWrong
from mspc.verify.scale.compared import Compared, compared, largest_change
from mspc.verify.scale.division import Divided, divided
from mspc.verify.scale.execution import Deadlock, KindState, Seen, run_step
from mspc.verify.scale.kinds import RankKind
from mspc.verify.scale.meetings import NodeError
from mspc.verify.scale.memory_of_kinds import memory_of_kinds
from mspc.verify.scale.odd_ranks import Odd, odd_one
from mspc.verify.scale.origins import NUMBER, FailedHere, alike_nodes, failed_node, numbered
from mspc.verify.scale.overflow import AN_OVERFLOW, overflows, run_overflow
from mspc.verify.scale.own_rows import OwnRows, OwnRowsReference
from mspc.verify.scale.readers import Readers
from mspc.verify.scale.reference import OneDeviceReference, ReferenceRun
from mspc.verify.scale.relations import likeness
from mspc.verify.scale.room import check_fits, values_nbytes
from mspc.verify.scale.scale_proof import ScaleProof
from mspc.verify.scale.slices import Slices
from mspc.verify.scale.small_programs import Unfit, small_programs
from mspc.verify.scale.watch import ValueWatch
from mspc.verify.scale.weights import first_weights
from mspc.verify.scale.writers import makers, writer_of_others

Array = Any
MANY_RANKS = 256
MOST_WHOLE = 1 << 30
"""So many bytes all values of all ranks may take that are looked at by their own sizes, too, before they are told."""
STEPS = 2
"""An optimizer's states are read in the second step for the first time."""


@dataclass
class SmallProgram:
    """A program of small sizes. reference: what ranks are held to. kinds: of all ranks. weights: first values of what
    is stored, global and small. inputs: of every step the global inputs, by name. kept: how many dimensions keep their
    sizes."""

    reference: ReferenceRun
    kinds: list[RankKind]
    weights: dict[str, Array]
    inputs: list[dict[str, Array]]
    kept: int
    rows: list[Compared] = field(default_factory=list[Compared])

    @contextmanager
    def beside(self) -> Generator[None]:
        """Run one device in a process of its own while ranks run, where there are so many that it pays."""
        reference = self.reference
        if isinstance(reference, OneDeviceReference) and sum(len(kind.ranks) for kind in self.kinds) >= MANY_RANKS:
            with reference.beside():
                yield
        else:
            yield

    def first_wrong(self) -> FirstWrong | None:
        """The first value of the first wrong step that is none of one device's; else the node that makes what is wrong
        at the end. None where none is found, or where one device cannot be computed either."""
        watch = self.watched(min((row.step for row in self.rows if not row.same), default=0))
        if watch is None:
            return None
        first = watch.first
        if first is not None and (not watch.whole or self._is_of_what_differs(first)):
            return first
        if not watch.whole:
            return None
        written = self._first_written()
        if written is None:
            return None
        told = watch.written_by(written)
        words = next(row.words for row in self.rows if not row.same)
        return replace(told, equals=words) if told.node is written.node and not told.equals else told

    def _is_of_what_differs(self, first: FirstWrong) -> bool:
        """Whether anything that differs behind the first wrong step is computed of a wrong value: where one device has
        0, ranks may have any rounding. Where several kinds meet that is not looked for."""
        if len(self.kinds) > 1:
            return True
        wrong = [row for row in self.rows if not row.same]
        made = makers(first.kind.graph, [row for row in wrong if row.step == wrong[0].step])
        if not made:
            return True
        behind = {first.node, *Readers(first.kind.graph).behind(first.node)}
        return not behind.isdisjoint(made)

    def watched(self, step: int = 0) -> ValueWatch | None:
        """What is found of all values of a step; None where one device cannot be computed."""
        try:
            known = self.reference.known(step)
        except NodeError:
            return None
        watch = ValueWatch(self.reference.graph, known, self.kinds)
        try:
            states = self.states()
            for number in range(step + 1):
                run_step(states, self.feeds(number), number + 1, watch if number == step else None)
        except Divided as error:
            self.kinds = divided(self.kinds, error)
            return self.watched(step)
        except (Deadlock, NodeError):
            watch.whole = False
        return watch

    def missed_overflow(self) -> FirstWrong | None:
        """Where ranks look for an overflow that one of them finds, and do not do what one device does then.

        Raises:
            Stuck: ranks wait for each other.
        """
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
                self._parameters(made, 0, {name: array[0] for name, array in state.held.items()})
            if not all(row.same for row in self.rows[before:]):
                return FirstWrong(each.kind, each.node, ranks, (), AN_OVERFLOW)
            del self.rows[before:]
        return None

    def _first_written(self) -> FirstWrong | None:
        """The node that makes the first stored value or result that is wrong, the last that does where several do."""
        wrong = [row for row in self.rows if not row.same]
        for row in (row for row in wrong if row.step == wrong[0].step):
            ranks = (row.rank,) if row.rank >= 0 else row.kind.ranks
            node = next(reversed(makers(row.kind.graph, [row])), None)
            if node is not None:
                return FirstWrong(row.kind, node, ranks, (), "")
            one = self.reference.graph
            node = next(iter(makers(one, [row])), None)
            if node is not None and row.what == "parameter":
                said = f"one device writes {row.name} there, and these ranks do not"
                return FirstWrong(row.kind, writer_of_others(row.kind.graph, one, node) or node, ranks, (), said)
            if node is not None:
                said = f"one device gives what this computes as result {row.name}, and these ranks do not"
                return FirstWrong(row.kind, node, ranks, (), said)
        return None

    def states(self) -> list[KindState]:
        """What the ranks of every kind store at first."""
        found: list[KindState] = []
        for kind in self.kinds:
            slices = Slices(kind)
            state = KindState(kind)
            for parameter in kind.graph.parameters:
                if parameter.kind != "input":
                    state.held[parameter.name] = slices.of(self.weights[parameter.name], layout_of(parameter))
            found.append(state)
        return found

    def feeds(self, step: int) -> list[dict[str, Array]]:
        """The inputs of a step, for every kind."""
        return [
            {
                p.name: Slices(kind).of(self.inputs[step][p.name], self.reference.fed.get(p.name, layout_of(p)))
                for p in kind.graph.parameters
                if p.kind == "input"
            }
            for kind in self.kinds
        ]

    def compare(self, seen: Seen | None = None) -> list[Compared]:
        """Run all steps, and compare.

        Raises:
            Stuck: ranks wait for each other. NodeError: a node cannot be computed.
        """
        while True:
            try:
                self._run_steps(seen)
            except Divided as error:
                self.kinds = divided(self.kinds, error)
                self.rows.clear()
            else:
                return self.rows

    def _run_steps(self, seen: Seen | None) -> None:
        states = self.states()
        for step in range(STEPS):
            results = run_step(states, self.feeds(step), step + 1, seen)
            for state, found in zip(states, results, strict=True):
                self._results(state.kind, found, step)
                self._parameters(state, step)

    def _results(self, kind: RankKind, found: Sequence[Array], step: int) -> None:
        slices = Slices(kind)
        for number, (value, array) in enumerate(zip(kind.graph.results, found, strict=True)):
            wanted = self.reference.result(step, number)
            if wanted is None:
                continue
            layout = layout_of(value)
            if wanted.shape == array.shape[kind.depth :]:
                layout = None
            held = self.reference.of_ranks(slices, wanted, layout)
            self._row("result", str(number), ("result", number), step, kind, held, array)

    def _parameters(self, state: KindState, step: int, given: dict[str, Array] | None = None) -> None:
        slices = Slices(state.kind)
        for parameter in state.kind.graph.parameters:
            if parameter.kind == "parameter":
                stored = given[parameter.name] if given else self.reference.stored(step, parameter.name)
                wanted = self.reference.of_ranks(slices, stored, layout_of(parameter))
                held = state.held[parameter.name]
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
    """One device's program with the gradient of each micro-batch right behind it, so that it keeps one at a time."""
    if stages == 1:
        return graph
    graph.attrs[STAGES] = stages
    graph, _ = PassManager().apply(find_pass("join_micro_batches"), graph)
    del graph.attrs[STAGES]
    return graph


def layout_of(value: Value) -> Layout | None:
    """The layout of a value that is one tensor."""
    return value.layout if isinstance(value.layout, Layout) else None


# The proof


def small_program(
    one: Graph, kinds: Sequence[RankKind], values: Sequence[Any], seed: int, own: OwnRows | None = None,
    kept: Sequence[Value] = (), one_way: bool = False,
) -> SmallProgram:  # fmt: skip
    """The program of small sizes; arguments and errors are those of `prove`. kept, one_way: see `small_programs`.

    Raises:
        MspcError: there is no memory for them.
    """
    small, few, sizing = small_programs(one, kinds, kept, one_way)
    check_fits(small, few, one, STEPS)
    weights = first_weights(one, small, values, seed)
    inputs = [p.tensor_type for p in small.parameters if p.kind == "input"]
    made = made_inputs(small, inputs if own is None else own.global_types(small), [], seed, STEPS)
    fed = [{name: each.arrays[step] for name, each in made.items()} for step in range(STEPS)]
    reference: ReferenceRun
    if own is not None:
        reference = OwnRowsReference(small, own, own.draws(one, small), weights, fed)
    else:
        if sum(len(kind.ranks) for kind in kinds) >= MANY_RANKS:
            small = _in_turns(small, int(kinds[0].graph.attrs.get(STAGES, 1)))
        reference = OneDeviceReference(small, weights, fed)
    return SmallProgram(reference, few, weights, fed, len(sizing.divisors.frozen))


def prove(
    one: Graph, kinds: Sequence[RankKind], values: Sequence[Any], seed: int, own: OwnRows | None = None
) -> ScaleProof:
    """Run the programs of all ranks at small sizes beside one device. What cannot be computed at small sizes, as a
    row beyond the end of a table that has become shorter, is tried again with sizes kept. The memory of every program
    is looked at as it is planned for its real sizes.

    Args:
        one: the network on one device. kinds: the programs of all ranks. values: first values of what is stored, each
        with `name` and `make`. seed: of inputs and of what is trained. own: how ranks feed that have rows of their own;
        `one` is on the rows of one rank then.

    Raises:
        Unfit: a program does not take Float64. MspcError: one device cannot be computed, or there is no memory for
            the small programs.
    """
    memory = memory_of_kinds(kinds)
    found = _found(one, kinds, values, seed, own)
    if any(not row.same for row in found.rows):
        whole = _found_whole(one, kinds, values, seed, own)
        found = whole if whole is not None and whole.same else found
    found.memory = memory
    return found


def _found(
    one: Graph, kinds: Sequence[RankKind], values: Sequence[Any], seed: int, own: OwnRows | None
) -> ScaleProof:
    """What is found of values at small sizes; arguments and errors are those of `prove`."""
    odd = odd_one(kinds)
    real = numbered([one, *(kind.graph for kind in kinds)])
    kept: list[Value] = []
    one_way = False
    program = small_program(one, kinds, values, seed, own)
    while True:
        try:
            return _proved(program, one, odd)
        except FailedHere as error:
            crowded = not one_way and error.node is not None and isinstance(error.node.op, ExpertPlaces)
            one_way = one_way or crowded
            if error.node is not None and not crowded:
                node = real[error.node.attrs[NUMBER]]
                kept += [value for each in alike_nodes(real, node) for value in (*each.inputs, each)]
            before, program = program.kept, small_program(one, kinds, values, seed, own, kept, one_way)
            if program.kept == before and not crowded:
                return _proved(program, one, odd, True)


def _found_whole(
    one: Graph, kinds: Sequence[RankKind], values: Sequence[Any], seed: int, own: OwnRows | None
) -> ScaleProof | None:
    """What is found at the programs' own sizes, where these are small; None else."""
    if values_nbytes(one, kinds) > MOST_WHOLE:
        return None
    graphs = [one, *(kind.graph for kind in kinds)]
    nodes = [node for graph in graphs for each in graph.graphs() for node in each.nodes]
    kept = [value for graph in graphs for each in graph.graphs() for value in each.parameters]
    kept += [value for node in nodes for value in (*node.inputs, node)]
    try:
        found = _proved(small_program(one, kinds, values, seed, own, kept), one, None, True, is_told=False)
    except (MspcError, NodeFailure, Unfit):
        return None
    found.whole = True
    return found


def _proved(
    program: SmallProgram, one: Graph, odd: Odd | None, at_last: bool = False, is_told: bool = True
) -> ScaleProof:
    """What is found. odd: what a few ranks run otherwise. at_last: nodes that cannot be computed are told. is_told:
    what is wrong is told, too, and not only that it is.

    Raises:
        FailedHere: a node cannot be computed.
    """
    small = program.reference.graph
    sizes = {a.name: (a.shape, b.shape) for a, b in zip(one.parameters, small.parameters, strict=True)}
    made = ScaleProof(sum(len(kind.ranks) for kind in program.kinds), len(program.kinds), program.rows, sizes)
    try:
        with program.beside():
            program.compare()
    except Deadlock as error:
        made.stuck = tuple(error.waiting)
    except NodeError as error:
        if error.computed and not at_last:
            raise FailedHere(error.node) from error
        made.failed, made.others = (error.kind, error.node, error.reason), error.others
    except NodeFailure as error:  # of one device
        if at_last:
            raise
        raise FailedHere(failed_node(small, error)) from error
    if made.same:
        try:
            made.first = program.missed_overflow()
        except Deadlock as error:
            made.stuck = tuple(error.waiting)
    made.kinds = len(program.kinds)
    if is_told and not made.same and made.first is None:
        made.first = program.first_wrong()
        made.odd = odd if odd is not None and made.may_be_of(odd, program.kinds) else None
    return made
