"""This module makes a loop of the graphs of a `.mindir` file that call each other as their last step, as `mindir_tails`
finds them.

Every turn begins with the head. A turn ends with a call of the head, which begins the next one, or of a graph behind
the loop. Where the head alone chooses between the two, its condition becomes that of the loop. Else (`break`, `return`)
the loop carries a number that says which graph comes next, -1 for another turn, and what that graph is given.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Sequence
from typing import Any

import numpy as np

from mspc.checkpoint.mindir_graph import CHOICE, ITEM, LOOP, MindirBlock, MindirGraph, MindirNode
from mspc.checkpoint.mindir_tails import Graphs, MindirLoop, last_call, loop_of, tails_of
from mspc.ir.late_dataclass import dataclass

Steps = Generator["Steps", Any, Any]
"""Work that hands over what has to be done first, and is handed its result: loops are deeper than Python's stack."""
NEXT_TURN = -1
_MARK = "#order"
"""A constant that stands for MindSpore's marks of the order of effects."""


class HasLoop(Exception):
    """A graph calls itself."""


class HasRecursion(Exception):
    """A graph calls itself ahead of its last step."""


@dataclass(frozen=True)
class Partial:
    """A graph and its first inputs."""

    graph: str
    inputs: tuple[str, ...]


@dataclass(frozen=True)
class ConditionalCall:
    """The result of one of two calls."""

    condition: str
    calls: tuple[Partial, Partial]


@dataclass(frozen=True)
class CallerGraphs:
    """Graphs in which one is called. direct: since the last choice. choosing: by choices that are not known."""

    direct: tuple[str, ...] = ()
    choosing: tuple[str, ...] = ()


@dataclass(frozen=True)
class LoopIteration:
    """A turn that is being made. given: the names of the head's inputs. carried: numbers of those that turns change.
    slots: for each graph behind the loop the numbers of its inputs that a turn computes, where the loop counts by
    numbers; None where its condition is the head's. kept: the names of these slots ahead of the turn, in order."""

    loop: MindirLoop
    given: tuple[str, ...]
    carried: tuple[int, ...]
    slots: dict[str, tuple[int, ...]] | None = None
    kept: tuple[str, ...] = ()


class LoopMaker(ABC):
    """What makes one graph of several, as far as loops are concerned. nodes: of the block that is being made. heads:
    graphs that loops are known to be around. active: heads of the loops that are being made."""

    def __init__(self, graphs: Graphs, constants: dict[str, Any], heads: frozenset[str]) -> None:
        self.nodes: list[MindirNode] = []
        self.constants = constants
        self.graphs = graphs
        self.heads = heads
        self.active: tuple[str, ...] = ()

    @abstractmethod
    def new_name(self, name: str) -> str:
        """A name that nothing has. Raises ValueError where there are too many."""

    @abstractmethod
    def add_nodes(self, graph: MindirGraph, given: Sequence[str], around: CallerGraphs, last: str) -> Steps:
        """Add a graph's nodes but for the node `last` and what follows from it. Returns (the names of its values, the
        parts and choices of calls by name)."""

    @abstractmethod
    def called(self, known: Any, name: str) -> Partial | ConditionalCall:
        """What a name calls. Raises ValueError."""

    @abstractmethod
    def followed(self, call: Partial, inputs: Sequence[str], around: CallerGraphs) -> Steps:
        """The name of what a graph gives."""

    @abstractmethod
    def known(self, name: str) -> Any:
        """The scalar that a name is known to be, else None."""

    # Parts ----------------------------------------------------------------------------------------------

    def block(self, work: Steps) -> Steps:
        """A block with the nodes that some work adds and the names that it returns."""
        kept, self.nodes = self.nodes, []
        outputs = yield work
        made = MindirBlock(tuple(self.nodes), tuple(outputs))
        self.nodes = kept
        return made

    def chosen(self, condition: str, works: Sequence[Callable[[], Steps]]) -> Steps:
        """The names of the results of one of two works, by a condition."""
        blocks: list[MindirBlock] = []
        for work in works:
            blocks.append((yield self.block(work())))
        name = self.new_name(condition)
        self.nodes.append(MindirNode(name, CHOICE, (condition,), {"then": blocks[0], "else": blocks[1]}))
        return self._items(name, len(blocks[0].outputs))

    def constant(self, value: Any) -> str:
        name = self.new_name("constant")
        self.constants[name] = value
        return name

    def _items(self, node: str, count: int) -> tuple[str, ...]:
        return tuple(self._node(ITEM, node, self.constant(i)) for i in range(count))

    def _node(self, operator: str, *inputs: str) -> str:
        name = self.new_name(operator)
        self.nodes.append(MindirNode(name, operator, inputs, {}))
        return name

    # Loops ----------------------------------------------------------------------------------------------

    def looped(self, head: str, given: Sequence[str], outer: LoopIteration | None, around: CallerGraphs) -> Steps:
        """Add a loop and what comes behind it: the names of its results, of a turn of the loop around it those of that
        turn."""
        if head in self.active:
            raise HasRecursion(head)
        loop = loop_of(head, self.graphs, frozenset(self.active))
        if not loop.again:
            raise HasRecursion(head)
        if not loop.exits:
            raise ValueError(f"graph {head!r} calls itself without end")
        kept, self.active = self.active, (*self.active, head)
        carried = tuple(i for i in range(len(given)) if i not in loop.fixed and not self._is_mark(given[i]))
        work = self._by_condition if self._chooses_alone(loop) else self._by_number
        number, final, slots = yield work(LoopIteration(loop, tuple(given), carried))
        self.active = kept
        values = [final[i] if i in final else given[i] for i in range(len(given))]
        behind = [(name, self._given_to(name, loop, values, slots)) for name in loop.exits]
        return (yield self._leave(behind, 0, number, outer, around))

    def _is_mark(self, name: str) -> bool:
        """Whether a value is a mark of MindSpore's for the order of effects."""
        return name in self.constants and self.constants[name] is None

    def _chooses_alone(self, loop: MindirLoop) -> bool:
        """Whether the head's choice alone ends the loop, and what comes behind takes what it carries."""
        leaving = [
            (name, tail.graph) for name in loop.members for tail in tails_of(self.graphs[name], self.graphs)
            if tail.graph not in loop.members
        ]  # fmt: skip
        return (
            len(leaving) == 1
            and leaving[0][0] == loop.head
            and len(tails_of(self.graphs[loop.head], self.graphs)) == 2
            and not self._slots(loop)[loop.exits[0]]
        )

    def _slots(self, loop: MindirLoop) -> dict[str, tuple[int, ...]]:
        """For the graphs behind a loop the numbers of their inputs that are none of the head's."""
        found: dict[str, tuple[int, ...]] = {}
        for name in loop.exits:
            graph = self.graphs[name]
            stands = zip(graph.inputs, loop.stands[name], strict=False)
            found[name] = tuple(i for i, (own, k) in enumerate(stands) if k is None and own not in graph.marks)
        return found

    def _by_condition(self, turn: LoopIteration) -> Steps:
        """A loop that ends by the head's condition: (nothing, the last values of what it carries, no slots)."""
        names, inside = self._carried(turn)
        condition: MindirBlock = yield self.block(self._condition(inside))
        body: MindirBlock = yield self.block(self._turn(inside.loop.head, inside.given, inside, CallerGraphs()))
        first = tuple(turn.given[i] for i in turn.carried)
        final = self._loop(names, first, condition, body)
        return "", dict(zip(turn.carried, final, strict=True)), {}

    def _by_number(self, turn: LoopIteration) -> Steps:
        """A loop that carries which graph comes next: (the name of that number, the last values of what else it
        carries, those of the slots by graph)."""
        slots = self._slots(turn.loop)
        names, inside = self._carried(turn)
        number = self.new_name("next")
        kept = tuple(self.new_name("slot") for each in slots.values() for _ in each)
        inside = LoopIteration(inside.loop, inside.given, inside.carried, slots, kept)
        condition: MindirBlock = yield self.block(self._is_below(number))
        body: MindirBlock = yield self.block(self._turn(turn.loop.head, inside.given, inside, CallerGraphs()))
        first = [self.constant(np.array(NEXT_TURN, np.int32)), *(turn.given[i] for i in turn.carried)]
        first += [self._zeros(name, i) for name, each in slots.items() for i in each]
        final = self._loop((number, *names, *kept), first, condition, body)
        count = 1 + len(turn.carried)
        left = list(final[count:])
        last = {name: {i: left.pop(0) for i in each} for name, each in slots.items()}
        return final[0], dict(zip(turn.carried, final[1:count], strict=True)), last

    def _carried(self, turn: LoopIteration) -> tuple[tuple[str, ...], LoopIteration]:
        """(the names in a turn of what it carries, the turn with these)"""
        inside = list(turn.given)
        for i in turn.carried:
            inside[i] = self.new_name(turn.given[i])
        return tuple(inside[i] for i in turn.carried), LoopIteration(turn.loop, tuple(inside), turn.carried)

    def _loop(
        self, carried: Sequence[str], first: Sequence[str], condition: MindirBlock, body: MindirBlock
    ) -> tuple[str, ...]:
        name = self.new_name("loop")
        attributes = {"carried": tuple(carried), "condition": condition, "body": body}
        self.nodes.append(MindirNode(name, LOOP, tuple(first), attributes))
        return self._items(name, len(carried))

    def _zeros(self, name: str, number: int) -> str:
        """What a slot holds before a turn fills it."""
        graph = self.graphs[name]
        type = graph.types.get(graph.inputs[number])
        if type is None:
            raise ValueError(f"the type of {graph.inputs[number]!r}, which a loop computes, is not told")
        return self.constant(np.zeros(type.shape, type.dtype.numpy))

    def _is_below(self, number: str) -> Steps:
        return (self._node("Less", number, self.constant(np.array(0, np.int32))),)
        yield

    # Turns ----------------------------------------------------------------------------------------------

    def _condition(self, turn: LoopIteration) -> Steps:
        """The name of whether the head chooses another turn."""
        head = self.graphs[turn.loop.head]
        last = last_call(head)
        _, parts = yield self.add_nodes(head, turn.given, CallerGraphs(), last)
        call = self.called(parts, next(node for node in head.nodes if node.name == last).inputs[0])
        assert isinstance(call, ConditionalCall)
        stays = call.calls[0].graph in turn.loop.members
        return (call.condition if stays else self._node("LogicalNot", call.condition),)

    def _turn(self, name: str, given: Sequence[str], turn: LoopIteration, around: CallerGraphs) -> Steps:
        """Add what a graph of a turn does from its begin to the end of the turn; the names of the turn's results."""
        graph = self.graphs[name]
        if len(given) != len(graph.inputs):
            raise ValueError(f"graph {name!r} takes {len(graph.inputs)} inputs, not {len(given)}")
        last = last_call(graph)
        names, parts = yield self.add_nodes(graph, given, around, last)
        node = next(node for node in graph.nodes if node.name == last)
        call, inputs = self.called(parts, node.inputs[0]), tuple(names.get(each, each) for each in node.inputs[1:])
        inside = CallerGraphs((*around.direct, name), around.choosing)
        if isinstance(call, Partial):
            return (yield self._ended(call.graph, (*call.inputs, *inputs), turn, inside))
        each, other = ((one.graph, (*one.inputs, *inputs)) for one in call.calls)
        if name == turn.loop.head and turn.slots is None:
            stays = each if each[0] in turn.loop.members else other
            return (yield self._ended(*stays, turn, inside))
        condition = self.known(call.condition)
        if condition is not None:
            return (yield self._ended(*(each if condition else other), turn, inside))
        works = [lambda to=to: self._ended(*to, turn, inside) for to in (each, other)]
        return (yield self.chosen(call.condition, works))

    def _ended(self, name: str, given: Sequence[str], turn: LoopIteration, around: CallerGraphs) -> Steps:
        """The names of a turn's results where a graph is called as the last step of one."""
        loop = turn.loop
        if name == loop.head:
            if len(given) != len(turn.given):
                raise ValueError(f"graph {name!r} takes {len(turn.given)} inputs, not {len(given)}")
            own = tuple(given[i] for i in turn.carried)
            return own if turn.slots is None else (self.constant(np.array(NEXT_TURN, np.int32)), *own, *turn.kept)
        if name in loop.members:
            if name in self.heads:
                return (yield self.looped(name, given, turn, around))
            if name in around.direct:
                raise HasLoop(name)
            return (yield self._turn(name, given, turn, around))
        assert turn.slots is not None
        own = tuple(turn.given[i] for i in turn.carried)
        kept = list(turn.kept)
        place = 0
        for each, numbers in turn.slots.items():
            for i in numbers:
                kept[place] = given[i] if each == name else kept[place]
                place += 1
        return (self.constant(np.array(loop.exits.index(name), np.int32)), *own, *kept)

    def _given_to(
        self, name: str, loop: MindirLoop, values: Sequence[str], slots: dict[str, dict[int, str]]
    ) -> tuple[str, ...]:
        """What a graph behind a loop is given."""
        own = slots.get(name, {})
        self.constants.setdefault(_MARK, None)
        return tuple(
            own[i] if i in own else _MARK if number is None else values[number]
            for i, number in enumerate(loop.stands[name])
        )

    def _leave(
        self,
        behind: Sequence[tuple[str, tuple[str, ...]]],
        place: int,
        number: str,
        outer: LoopIteration | None,
        around: CallerGraphs,
    ) -> Steps:
        """The names of the results behind a loop: of the graph in `behind` whose place the number says, from one place
        on."""
        name, given = behind[place]

        def this() -> Steps:
            return self._value(name, given, around) if outer is None else self._ended(name, given, outer, around)

        if place == len(behind) - 1:
            return (yield this())
        condition = self._node("Equal", number, self.constant(np.array(place, np.int32)))
        return (yield self.chosen(condition, [this, lambda: self._leave(behind, place + 1, number, outer, around)]))

    def _value(self, name: str, given: Sequence[str], around: CallerGraphs) -> Steps:
        return ((yield self.followed(Partial(name, ()), given, around)),)
