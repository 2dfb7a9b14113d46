"""Looks at every value that ranks compute, whether it is one of one device's, and finds the first that is none."""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Hashable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

import numpy as np

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Graph, Node, Value
from mspc.ir.iterative import reached
from mspc.ops.collective.collectives import AllGather, AllReduce, AlltoAll, ReduceScatter
from mspc.ops.collective.one_rank import OneRank
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.math.reduce import ReduceMean
from mspc.ops.op import Op
from mspc.ops.tensor.embedding import Gather
from mspc.ops.tensor.moving import Transpose
from mspc.runtime.backend import NumPyBackend
from mspc.verify.scale.blame import (
    FirstWrong,
    ReadOnOne,
    SumsTaken,
    added_along,
    blamed,
    gathered_otherwise,
    misplaced,
    parts_read,
    sum_over_others,
    tensor_of,
)
from mspc.verify.scale.rank_kernels import run_on_all
from mspc.verify.scale.rank_kinds import Families, RankKind, Together, mapped, parts_of
from mspc.verify.scale.readers import Readers, adds_up, lines_of
from mspc.verify.scale.relations import (
    Identities,
    Pieces,
    PlacesOfScript,
    ReferenceCandidates,
    Relation,
    Whole,
    added,
    files_of,
    keyed,
    relation,
    scaled,
    times,
    wrong_ranks,
)

Array = Any
MAX_PARTS = 3
"""Most operands for which combinations to add up are tried."""
ROUNDING = 1e-13
"""Values that are no larger on ranks and on one device are the rounding of 0 and are not compared."""
MOVES_PIECES = (AllGather, AllReduce, AlltoAll, ReduceScatter)
MAX_WRONG = 64
MAX_WRONG_PAIRED = 512
"""Nodes with wrong values after which no more are looked for; more in captures, whose ranks may reshape what they have
divided, so that it is no piece of one device's value."""


def _hands_on(node: Node) -> bool:
    """Return whether a node hands on a tensor of another node, which was checked."""
    return isinstance(node.op, TupleGetItem) and isinstance(node.inputs[0], Node) and not node.inputs[0].regions


def _is_compared(array: Array, kind: RankKind, candidates: ReferenceCandidates) -> bool:
    """Whether a value is a tensor of floating-point numbers, or one condition or counter, by which branches are taken
    and iterations counted. Other whole numbers may be places in slices, which are those of ranks."""
    is_one = array.dtype.kind in "bi" and math.prod(array.shape[kind.depth :]) == 1
    return array.dtype.kind == "f" or (is_one and candidates.own is not None)


Fitting = tuple[Whole, Pieces]
"""A value of one device that has pieces of a shape."""
Known = Mapping[Node, Mapping[tuple[int, ...], Any]]
"""Values of the reference by node, and by the turns of the loops around; with a leading dimension of its places."""


class ValueWatch:
    """Looks at every value that ranks compute, whether it is one of one device's.

    right: nodes whose values are. whole: whether the step has been run to its end.
    """

    def __init__(
        self, one: Graph, values: Known, kinds: Sequence[RankKind], batches: int = 1, are_paired: bool = False
    ) -> None:
        """batches: see `relation`. are_paired: a value is wrong only if ranks and one device run as many operators at
        its place of the script."""
        self._batches, self._are_paired = batches, are_paired
        self._wrong: dict[Node, FirstWrong] = {}
        self._other: dict[Node, FirstWrong] = {}
        """For nodes that have the value of another at their place of the script: the error, unless one device has it
        so, too."""
        self._unsure: dict[Node, FirstWrong] = {}
        """Values that are none of one device's at a place where ranks run more operators than it."""
        self._order: dict[Node, int] = {}
        """In which order nodes have such values first."""
        self._identities = Identities()
        self._aside: set[Node] = set()
        """Fused nodes of which another is right: the wrong one may be an intermediate of a pass, unless its readers are
        wrong for no other reason."""
        self.right: set[Node] = set()
        self.whole = True
        self._candidates: dict[tuple[int, Node], list[ReferenceCandidates]] = {}
        self._families = Families(kinds)
        files = files_of([one]) & files_of(kind.graph for kind in kinds) if are_paired else None
        self._places = PlacesOfScript(one, files)
        for kind in kinds:
            for key, node, number in keyed(kind.graph):
                self._families.note(kind, key, node, number)
            for node, candidates in self._places.of(kind):
                self._candidates.setdefault((id(kind), node), []).append(candidates)
        self._one, self._values = one, values
        self._pieces: dict[Any, Pieces | None] = {}
        self._relations: dict[Node, Relation] = {}
        self._over_others: dict[Node, str] = {}
        """Errors of sums, as sums over other ranks than have parts of them; "" if right."""
        self._taken = SumsTaken()
        self._readers: dict[int, Readers] = {}
        self._partial_sums: dict[Hashable, list[tuple[Together, Sequence[Fitting], ReferenceCandidates]]] = {}
        """Values of micro-batches that may be parts of sums, with values of one device."""

    def is_settled(self, node: Node) -> bool:
        """Return whether all that a node gives is a slice or a copy of a value of one device."""
        found = self._relations.get(node)
        return node in self.right and node not in self._other and found is not None and found.is_whole

    def is_own(self, value: Value) -> bool:
        """Return whether a right value is not that of another operator at its place of the script."""
        return not isinstance(value, Node) or value not in self._other or not self._identities.taken_from(value)

    def is_alone(self, kind: RankKind) -> bool:
        """Whether no other kind stores the same tensors as one."""
        return self._families.joint(kind) is kind

    def is_divided(self, node: Node) -> bool:
        """Return whether a value is a slice or a copy of a value of one device, perhaps times a number of ranks."""
        return node in self.right and node in self._relations and not self._relations[node].summed

    def fits(self, kind: RankKind, node: Node, value: Any) -> bool:
        """Return whether another value of a node would be one of one device's at its place, as far as these are
        known."""
        known = self._candidates.get((id(kind), node), ())
        for candidates in known:
            part, means = parts_of(value)[candidates.number], self._means(candidates)
            for of, pieces in self._fitting(part.shape[kind.depth :], candidates, ()):
                if candidates.own in (None, of) and relation(part, pieces, kind, False, means) is not None:
                    return True
        return not known

    def first(self, among: Collection[Value] | None = None) -> FirstWrong | None:
        """Return the first value that differs from all of one device's, and has a reader that differs, too: a rank may
        reach right values in another way than one device. If an operand is a part of a sum still, or in another order,
        return the beginning of that. among: the values that may be wrong; None for all."""
        looked = {node for node in self.right | self._wrong.keys() if not _hands_on(node)}
        others = ((node, self._identities.taken_from(node)) for node in self._other)
        bad = self._wrong | {node: replace(self._other[node], equals=said) for node, said in others if said}
        norms: dict[Node, FirstWrong] = {}
        for node, wrong in sorted(bad.items(), key=lambda item: self._order[item[0]]):
            if not set(wrong.ranks) & set(wrong.kind.ranks):
                continue  # another kind of the family has the error
            readers = self._readers_of(wrong.kind)
            if among is not None and node not in among:
                continue
            if self._are_paired and self._is_reshaped(node, readers):
                continue
            if self._are_paired and self._is_norm_of_parts(wrong, readers, norms):
                norms[node] = wrong
                continue
            found = [n for n in readers.next(node, looked) if n in looked]
            worse = [n for n in found if n in bad]
            is_unsure = node in self._aside or (self._are_paired and 0 < len(worse) < len(found))
            if is_unsure and not any(self._is_of(n, node, readers) for n in found):
                continue
            if worse or not found:
                return self._explained(wrong) or self._blamed(wrong)
        return next(map(self._blamed, norms.values()), None)

    def _explained(self, wrong: FirstWrong) -> FirstWrong | None:
        """Return what makes an unsure value wrong from which a wrong one is computed, if that is known, or None."""
        before = self._readers_of(wrong.kind).before(wrong.node, self.right - self._unsure.keys())
        for node in sorted(self._unsure.keys() & before, key=lambda each: self._order[each]):
            found = self._blamed(self._unsure[node])
            if found.node is not node:
                return found
        return None

    def _is_norm_of_parts(self, wrong: FirstWrong, readers: Readers, norms: Collection[Node]) -> bool:
        """Return whether a value is computed from parts of a sum, as norms of slices, and added up at the same place
        of the script, as their squares are; or computed from such a norm before that sum."""
        node = wrong.node
        if any(source in norms for source in readers.sources(node, self.right | self._wrong.keys())):
            return True
        if not wrong.is_of_parts:
            return False
        axes = {axis for own in parts_read(node, readers, self._relations).values() for axis in own}
        joint = self._families.joint(wrong.kind)
        return any(
            isinstance(each, Node) and adds_up(each) and each.frames == node.frames and each.scope == node.scope
            and axes & added_along(each, wrong.kind, joint)
            for each in readers.behind(node)
        )  # fmt: skip

    def is_suspect(self, kind: RankKind, node: Node) -> bool:
        """Return whether the next compared value that is computed from a node is wrong."""
        return not self._wrong.keys().isdisjoint(self._readers_of(kind).next(node, self._compared))

    @cached_property
    def _compared(self) -> set[Node]:
        return self.right | self._wrong.keys()

    def is_at_fault(self, node: Node) -> bool:
        """Return whether a value is wrong and computed from right ones alone, so that no change before it helps."""
        made = [value for value in node.inputs if isinstance(value, Node)]
        return node in self._wrong and all(map(self.is_settled, made))

    def counterpart(self, kind: RankKind, one: Node) -> Node | None:
        """Return the node of a kind that runs at the place of a node of one device, in its turn; None if unknown."""
        nodes = (node for (owner, node), known in self._candidates.items() if owner == id(kind) for each in known
                 if each.own is not None and each.own[0] is one)  # fmt: skip
        return next(nodes, None)

    def hidden(self, among: Collection[Value]) -> FirstWrong | None:
        """Return the first wrong value that is made of right ones and whose readers round the difference away, as those
        of a small term of a sum do; None if there is none."""
        for node in sorted(self._wrong.keys() & among, key=lambda each: self._order[each]):
            wrong = self._wrong[node]
            if self.is_at_fault(node) and not self._is_reshaped(node, self._readers_of(wrong.kind)):
                return wrong
        return None

    def _is_reshaped(self, node: Node, readers: Readers) -> bool:
        """Return whether a value is right but for its shape: it is made by reshaping a right one, or it is right once
        it, or another wrong value computed from it, is reshaped."""

        def reshapes(each: Value) -> bool:
            return isinstance(each, Node) and isinstance(each.op, Op) and each.op.reshapes

        source: Value = node
        while isinstance(source, Node) and reshapes(source):
            source = source.inputs[0]
            if source in self.right or not isinstance(source, Node):
                return True
        wrong = reached([node], lambda value: (each for each in readers.of(value) if each in self._wrong))
        return any(reader in self.right and reshapes(reader) for value in wrong for reader in readers.of(value))

    def _blamed(self, wrong: FirstWrong) -> FirstWrong:
        readers = self._readers_of(wrong.kind)
        if self.unmoved(wrong) is not None:
            return wrong
        found = self._taken.repeated(wrong.node, wrong.factor, readers, self._relations) if wrong.factor else None
        if found is not None:
            behind = f"{wrong.node.label} makes the first value of it that is none: {wrong.equals}"
            return replace(wrong, node=found.node, reads=(behind, *wrong.reads), equals=found.words)
        return blamed(wrong, self._families.joint(wrong.kind), self._readers_of(wrong.kind), self._relations)

    def unmoved(self, wrong: FirstWrong) -> FirstWrong | None:
        """Return a value before a wrong one whose elements one device transposes before, and ranks do not; None if
        there is none. Ranks may reshape what they have divided, so that it is known to be wrong only later. It is not
        known to be the error: right ranks may do without a transposition, too."""
        readers = self._readers_of(wrong.kind)
        for node in readers.unknown_before(wrong.node, self.right) if self._are_paired else ():
            for candidates in self._candidates.get((id(wrong.kind), node), ()):
                read = (value for one, _ in candidates.wholes for value in one.inputs)
                moves = [value for value in read if isinstance(value, Node) and isinstance(value.op, Transpose)]
                left = next(filter(self._places.is_left_out, moves), None)
                if left is not None:
                    seen = (f"{wrong.node.label} makes the first value that differs in any shape",)
                    said = f"one device runs {left.label} before it, and these ranks do not"
                    return FirstWrong(wrong.kind, node, wrong.ranks, seen, said)
        return None

    def _is_of(self, reader: Node, node: Node, readers: Readers) -> bool:
        """Return whether a wrong value reads one wrong node alone."""
        if reader not in self._wrong:
            return False
        wrong = self._wrong.keys() | self._aside
        sources = {*readers.known_before(reader, self.right | wrong)}
        return node in sources and wrong.isdisjoint(sources - {node, reader})

    def written_by(self, wrong: FirstWrong) -> FirstWrong:
        """Return the first wrong update, the first operand that matches no single-device value, or the position from
        which on their order differs."""
        if wrong.equals:
            return wrong
        sources = self._readers_of(wrong.kind).sources(wrong.node, self.right | self._wrong.keys())
        read = next((self._wrong[node] for node in sources if node in self._wrong), None)
        if read is not None:
            return self._blamed(read)
        sources = self._readers_of(wrong.kind).sources(wrong.node, self._relations, moved=True)
        other = next((node for node in sources if self._over_others.get(node)), None)
        if other is not None:
            return replace(wrong, node=other, equals=self._over_others[other])
        own = self._relations.get(wrong.node)
        if own is not None and own.words:
            return replace(wrong, equals=f"it is {own.words}")
        one = ReadOnOne(self._one, self._identities)
        return misplaced(wrong, self._readers_of(wrong.kind), self._relations, one) or wrong

    def _readers_of(self, kind: RankKind) -> Readers:
        if id(kind) not in self._readers:
            self._readers[id(kind)] = Readers(kind.graph)
        return self._readers[id(kind)]

    def __call__(
        self, kind: RankKind, node: Node, result: Any, around: tuple[int, ...], operands: Sequence[Any]
    ) -> None:
        if len(self._wrong) >= (MAX_WRONG_PAIRED if self._are_paired else MAX_WRONG):
            return
        parts = parts_of(result)
        if isinstance(node.op, AllReduce | ReduceScatter) and node.op.op == "sum":
            self._note_sum(kind, node, operands, parts)
        right: list[bool] = []
        for candidates in self._candidates.get((id(kind), node)) or self._inherited(kind, node):
            number = candidates.number
            if isinstance(parts[number], list) or not _is_compared(parts[number], kind, candidates):
                continue
            for value in self._families.together(kind, node, number, parts[number], around):
                fitting = list(self._fitting(value.value.shape[value.kind.depth :], candidates, around))
                sizes = [np.max(np.abs(value.value), initial=0.0), *(pieces.largest for _, pieces in fitting)]
                if fitting and not all(size <= ROUNDING for size in sizes):
                    right.append(self._look(value, fitting, candidates, operands))
        if any(right) and not all(right):
            self._aside.add(node)

    def _inherited(self, kind: RankKind, node: Node) -> list[ReferenceCandidates]:
        """Return candidates of the tensors that a collective, of which one device has none, hands on: the values of one
        device of which its operands are slices or parts of sums. None if these are not known of all."""
        if not isinstance(node.op, MOVES_PIECES) or not self.is_alone(kind) or self._are_paired:
            return []
        made: list[ReferenceCandidates] = []
        for number, value in enumerate(node.inputs):
            source, place = tensor_of(value)
            found = self._relations.get(source) if isinstance(source, Node) else None
            wholes = () if found is None or found.how == "mean" else self._identities.of_tensor(source, place)
            known = [turn for whole, _ in wholes for turn in self._values[whole].values()]
            if len(wholes) != 1 or any(len(parts_of(turn)[0]) > 1 for turn in known):  # or ranks have their own rows
                return []
            made.append(ReferenceCandidates(number, [*wholes]))
        return made

    def _note_sum(self, kind: RankKind, node: Node, operands: Sequence[Any], results: Sequence[Any]) -> None:
        if not self.is_alone(kind):
            return
        self._taken.note(node, kind)
        if isinstance(node.op, AllReduce):
            self._over_others[node] = sum_over_others(node, kind, operands, results, self._relations)

    def _look(
        self, value: Together, fitting: Sequence[Fitting], candidates: ReferenceCandidates, operands: Sequence[Any]
    ) -> bool:
        """Relate a value to those of one device that have pieces of its shape; return whether it is any. candidates: of
        the tensor. operands: its node's."""
        mean = any(isinstance(op, ReduceMean) for _, node in value.nodes for op in lines_of(node.op))
        means = self._means(candidates)
        relations = ((of, relation(value.value, pieces, value.kind, mean, means)) for of, pieces in fitting)
        of, found = next(((of, each) for of, each in relations if each is not None), (None, None))
        if candidates.micro_batches > 1 and found is None:
            key = id(value.kind), id(candidates.wholes), value.value.shape
            self._partial_sums.setdefault(key, []).append((value, fitting, candidates))
            for _, node in value.nodes:
                self._order.setdefault(node, len(self._order))
            return True
        wholes = [pieces for _, pieces in fitting]
        for kind, node in value.nodes:
            if of is not None and found is not None:
                self.right.add(node)
                self._identities.note(node, candidates, of)
                if not self._wrong or node not in self._relations:
                    self._relations[node] = found
                    self._taken.tell(node, candidates.number, found)
                if candidates.own not in (None, of) and node not in self._order:
                    self._order[node] = len(self._order)
                    self._other[node] = self._described(kind, node, value, wholes[0])
            elif self._are_paired and isinstance(node.op, Gather) and any(
                pieces.are_on_some_rank(value.value, value.kind) for pieces in wholes
            ):  # a mask leaves out what ranks have of others
                self._aside.add(node)
            elif node not in self._wrong and (candidates.own is not None or not self._are_paired):
                described = self._described(kind, node, value, wholes[0])
                if said := self._over_others.get(node) or gathered_otherwise(node, kind):
                    described = replace(described, equals=said)
                elif len(value.nodes) == 1 and self._can_be_tried(node, value.kind, operands):
                    described = self._tried(described, value.kind, wholes, candidates, operands)
                (self._unsure if candidates.more else self._wrong).setdefault(node, described)
                self._order.setdefault(node, len(self._order))
        return found is not None

    def _means(self, candidates: ReferenceCandidates) -> set[int]:
        """Return the numbers of ranks and micro-batches over which the loss of one device may be a mean."""
        return {self._batches, candidates.micro_batches, self._batches * candidates.micro_batches} - {1}

    def settle(self) -> None:
        """Decide at the end of a step which values are wrong: of those held, these of some micro-batches alone, else
        the last parts of sums. A value that is wrong in one turn of a loop is not right."""
        wrong: list[tuple[Together, Pieces]] = []
        alone: list[tuple[Together, Pieces]] = []
        for held in self._partial_sums.values():
            micro_batches = held[0][2].micro_batches
            if len(held) % micro_batches:
                alone += [(value, fitting[0][1]) for value, fitting, _ in held]
                continue
            own = len(held) // micro_batches  # operators of each micro-batch, which run in one order
            for parts in (held[number::own] for number in range(own)):
                value, fitting, candidates = parts[-1]
                total, means = sum(each.value for each, *_ in parts), self._means(candidates)
                if any(relation(total, pieces, value.kind, False, means) is not None for _, pieces in fitting):
                    self.right.update(node for each, *_ in parts for _, node in each.nodes)
                else:
                    wrong.append((value, fitting[0][1]))
        for value, pieces in alone or wrong:
            for kind, node in value.nodes:
                self._wrong.setdefault(node, self._described(kind, node, value, pieces))
        self._partial_sums.clear()
        self.right -= self._wrong.keys() - self._aside

    def _can_be_tried(self, node: Node, kind: RankKind, operands: Sequence[Any]) -> bool:
        """Return whether a node can be computed again with other operands."""
        if len(kind.ops_of(node.op)) > 1 or node.op.mutates or node.regions or not isinstance(node.op, Op):
            return False
        return all(isinstance(array, np.ndarray) for array in operands)

    def _tried(
        self, wrong: FirstWrong, kind: RankKind, fitting: Sequence[Pieces], candidates: ReferenceCandidates,
        operands: Sequence[Any],
    ) -> FirstWrong:  # fmt: skip
        """Say whether a wrong value would be right were operands that are parts of sums added up before."""

        def is_right(given: list[Array]) -> bool:
            try:
                found = run_on_all(wrong.node.op, NumPyBackend(OneRank()), kind.depth, given)
            except (MspcError, ValueError, TypeError):
                return False
            value, means = parts_of(found)[candidates.number], self._means(candidates)
            relations = (relation(value, pieces, kind, False, means) for pieces in fitting)
            return any(each is not None for each in relations)

        summed = parts_read(wrong.node, self._readers_of(kind), self._relations)
        for count in range(1, min(len(summed), MAX_PARTS) + 1):
            for chosen in itertools.combinations(summed, count):
                given = [added(array, kind, summed[i]) if i in chosen else array for i, array in enumerate(operands)]
                if is_right(given):
                    return replace(wrong, is_of_parts=True)
        return wrong

    def _fitting(
        self, local: tuple[int, ...], candidates: ReferenceCandidates, around: tuple[int, ...]
    ) -> Iterator[Fitting]:
        """Yield the values of one device that have pieces of this shape, its own one first."""
        for of, place in sorted(candidates.wholes, key=lambda whole: whole != candidates.own):
            by_turn = self._values.get(of, {})
            turn = around if around in by_turn else around[:1]
            key = of, place, turn, local
            if key not in self._pieces:
                part = parts_of(by_turn[turn])[place] if turn in by_turn else []
                self._pieces[key] = None if isinstance(part, list) else Pieces.of(np.asarray(part), local)
            if (pieces := self._pieces[key]) is not None:
                yield (of, place), pieces

    def _described(self, kind: RankKind, node: Node, value: Together, pieces: Pieces) -> FirstWrong:
        known = [(i, self._relations.get(value)) for i, value in enumerate(node.inputs) if isinstance(value, Node)]
        reads = tuple(f"input {i} is {each.words}" for i, each in known if each is not None and each.words)
        factor = scaled(value.value, pieces, value.kind)
        equals = "" if factor is None else f"it is the right value times {times(factor, kind)}"
        ranks = wrong_ranks(value.value, pieces, value.kind)
        return FirstWrong(kind, node, ranks, reads, equals, factor=factor)


def known_values(seen: dict[Node, dict[tuple[int, ...], Any]]) -> Any:
    """Make a recorder of every value of the reference. seen: by node, and by the iterations of the loops around."""

    def note(kind: RankKind, node: Node, result: Any, around: tuple[int, ...], operands: Sequence[Any]) -> None:
        arrays = [operand for operand in operands if isinstance(operand, np.ndarray)]

        def own(array: Array) -> Array:
            """Copy views of operands: parameters are overwritten later in the step."""
            is_view = any(np.may_share_memory(array, operand) for operand in arrays)
            return np.array(array) if is_view else np.asarray(array)

        seen.setdefault(node, {})[around] = mapped(result, own)

    return note
