"""Estimates what a rank would hold through a step, from an assignment alone, as the memory plan will count it.

The step is run through as it will be compiled: values are brought to their readers once, cells are computed again
before the first gradient that reads of them, gradients lie as the operands that they are of, those of parameters are
reduced to the stored slices at once. What is brought somewhere goes there by the steps of the planner of
redistributions, from the nearest copy; results are brought to the caller as soon as they are there.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from itertools import accumulate

from mspc.ir.graph import OFFLOAD, Node, Parameter, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ops.control.borders import MARKS, Keep
from mspc.passes.lib.recomputation import RecomputableCell
from mspc.search.model.step_layouts import StepLayouts, TensorRead
from mspc.search.model.variables import Source


@dataclass(frozen=True)
class StepMoment:
    """A moment of a step. bytes: held there, beside weights, states and inputs. node: the operator that runs then.
    gradients: what is alive of them, the backward operator that has made one, or the parameter that it is of."""

    bytes: float
    node: Node
    gradients: tuple[Node | Parameter, ...]


class Footprint:
    """One run through a step. facts: of the model. recomputed: the cells that are computed again. again: parameters
    that are gathered again for gradients."""

    def __init__(
        self, facts: StepLayouts, values: Sequence[int], recomputed: Collection[RecomputableCell],
        again: Collection[Parameter],
    ) -> None:
        self.facts, self.model, self.values, self.again = facts, facts.model, values, set(again)
        self.inside = {node for block in recomputed for node in block.inside}
        self.operands: list[list[int]] = []
        self.sizes: list[float] = []
        self.works_in_place: list[bool] = []
        self._shown: list[int] = []
        self._of: dict[Value, int] = {}
        self._unreduced: list[int] = []
        self._waits = False
        self._copies: dict[Node, int] = {}
        self._fetched: dict[Node, int] = {}
        self._brought: dict[tuple[object, ...], dict[int, int]] = {}
        self._handed_out: list[int] = []
        self._gradients: dict[int, Node | Parameter] = {}

    def peak(self) -> float:
        """Bytes at the peak, beside weights, states and inputs."""
        return self.moment().bytes

    def moment(self) -> StepMoment:
        """The peak."""
        runs: list[Node] = []
        results = set(self.model.search.graph.results)
        for node in self.model.search.graph.nodes:
            if node.phase == "forward":
                self._of[node] = self._forward(node, first=True)
                if node in results:
                    self._hand_out(node)
            else:
                self._backward(node)
            runs += [node] * (len(self.sizes) - len(runs))
        spans = self._spans()
        change = [0.0] * (len(self.sizes) + 2)
        for size, (begin, end) in zip(self.sizes, spans, strict=True):
            change[begin] += size
            change[end + 1] -= size
        held = list(accumulate(change))
        most = held.index(max(held))
        alive = [made for item, made in self._gradients.items() if spans[item][0] <= most <= spans[item][1]]
        return StepMoment(held[most], runs[min(most, len(runs) - 1)], tuple(alive))

    def _spans(self) -> list[tuple[int, int]]:
        """The first and the last place at which every item is held."""
        sizes, count = self.sizes, len(self.sizes)
        last = list(range(count))
        for i in self._unreduced if not self._waits else ():  # nothing waits for the stream on which sums run
            last[i] = count - 1
        for i in self._handed_out:
            last[i] = count
        for place in range(count - 1, -1, -1):
            until = place if sizes[place] else last[place]
            for i in self.operands[place]:
                if last[i] < until:
                    last[i] = until
        spans: list[tuple[int, int]] = []
        for place, size in enumerate(sizes):
            dying = self.works_in_place[place] and any(
                last[i] == place and sizes[self._shown[i]] >= size for i in self.operands[place]
            )
            begin = place + dying
            spans.append((begin, max(last[place], begin)))
        return spans

    def _add(self, operands: list[int], size: float, in_place: bool = False) -> int:
        count = len(self.sizes)
        self.operands.append(operands)
        self.sizes.append(size)
        self.works_in_place.append(in_place)
        self._shown.append(self._shown[operands[0]] if operands and not size else count)
        return count

    def _forward(self, node: Node, first: bool) -> int:
        """A forward operator, in its place or recomputed."""
        operands = [i for read in self.facts.reads(node) for i in self._item(read, first)]
        if isinstance(node.op, Keep) and operands:
            return self._add(operands, self._shown_size(operands[0]) * self.model.turns.runs(node))
        if node.op.is_view or isinstance(node.op, MARKS) or node not in self.model.of:
            return self._add(operands, 0.0)
        made = self.facts.made(node, self.values[self.model.of[node]])
        return self._add(operands, made, self.facts.is_elementwise(node))

    def _copy(self, node: Node) -> None:
        """Note an operator that is recomputed, after those that it reads."""
        waiting = [node]
        while waiting:
            reads = [read.value for read in self.facts.reads(waiting[-1])]
            missing = [v for v in reads if isinstance(v, Node) and v in self.inside and v not in self._copies]
            if missing:
                waiting += missing
                continue
            last = waiting.pop()
            if last not in self._copies:
                self._copies[last] = self._forward(last, first=False)

    def _item(self, read: TensorRead, first: bool) -> list[int]:
        """What holds a value as an operator of the forward graph, or its gradient, reads it."""
        value = read.value
        if not first and value in self.inside:
            assert isinstance(value, Node)
            self._copy(value)
            item = [self._copies[value]]
        else:
            item = self._there(value, first)
        if read.source is None or not read.needed:
            return item
        own, needed = read.made[self.values[read.own]], read.needed[self.values[read.reader]]
        if needed == own:
            return item
        self._waits |= not first or bool(item)
        return [self._bring(value, item, read.source, own, needed, not first and read.source[0] in self.again)]

    def _there(self, value: Value, first: bool) -> list[int]:
        """What holds a value as it was made; as it was fetched, where gradients read it and it waits on the host."""
        if value not in self._of:
            return []
        if first or not isinstance(value, Node) or value.phase != "forward" or OFFLOAD not in value.attrs:
            return [self._of[value]]
        if value not in self._fetched:
            self._fetched[value] = self._add([], self._shown_size(self._of[value]))
        return [self._fetched[value]]

    def _bring(self, value: Value, item: list[int], source: Source, own: int, needed: int, again: bool = False) -> int:
        """What holds a value in the layout that is needed, by the steps from the nearest of those in which it is."""
        holder: tuple[object, ...] = tuple(self._shown[i] for i in item) or source
        copies = self._brought.setdefault((*holder, again), {})
        if needed in copies:
            return copies[needed]
        distance = self.facts.distance
        far, begin, start = distance(value, own, needed), own, item
        for number, copy in copies.items():
            if (bytes_sent := distance(value, number, needed)) < far:
                far, begin, start = bytes_sent, number, [copy]
        for size, in_place in self.facts.steps(value, begin, needed):
            start = [self._add(start, size, in_place)]
        copies[needed] = start[0]
        return start[0]

    def _hand_out(self, node: Node) -> None:
        """A result of the graph is there until the end, as the caller receives it."""
        source, layout = self.model.source(node), self.model.search.traffic.required.get(node)
        item = [self._of[node]]
        if source is not None and layout is not None and source[0] in self.model.of:
            own, needed = self._number(source), self.model.number(node, layout)
            item = [self._bring(node, item, source, own, needed)] if own != needed else item
        self._handed_out += item

    def _shown_size(self, item: int) -> float:
        """Bytes of what an item is, or shows."""
        return self.sizes[self._shown[item]]

    def _number(self, source: Source) -> int:
        """The layout that a tensor is made or stored in."""
        variable = self.model.of[source[0]]
        return int(self.model.variables[variable].outputs[source[1]][self.values[variable]])

    def _backward(self, node: Node) -> None:
        known, operands = self.facts.backward(node), list[int]()
        forward = known.forward
        summed = self._of.get(known.summand) if forward is None else None
        for read in known.reads:
            if read.source is not None:
                operands += self._item(read, first=False)
            else:
                operands += self._there(read.value, first=False)
        if isinstance(node.op, Keep) and operands:
            self._of[node] = self._add(operands, self._shown_size(operands[0]) * self.model.turns.runs(node))
            return
        if known.makes_nothing or isinstance(node.op, MARKS):
            self._of[node] = self._add(operands, 0.0)
            return
        if summed is None:
            choice = -1 if forward is None else self.values[self.model.of[forward]]
            size = self.facts.gradient(node, forward, choice)
        else:
            size = self.sizes[self._shown[summed]]
        item = self._add(operands, size, known.in_place)
        self._gradients[item] = node
        for parameter in known.trained:
            own = self.facts.stored(parameter, self.values[self.model.of[parameter]])
            if own < self.sizes[item]:
                self._unreduced.append(item)
                item = self._add([item], own)
            self._gradients[item] = parameter
        self._of[node] = item
