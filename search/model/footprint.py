"""Estimate of a rank's live bytes through a step from an assignment alone, following the rules of the memory plan.

The step is simulated as it will be compiled. Values are redistributed once for all their readers, cells are recomputed
before the first gradient that reads them, gradients have the layouts of their operands, and gradients of parameters are
reduced to the stored slices at once. A redistribution takes the steps of the planner, from the nearest existing copy.
Results are redistributed for the caller as soon as they exist.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from functools import cache
from itertools import accumulate

from mspc.ir.graph import OFFLOAD, Constant, Node, Parameter, Value, element_types
from mspc.ir.late_dataclass import dataclass
from mspc.ir.text.families import gradient_names
from mspc.ops.collective.collectives import AllReduce
from mspc.ops.control.structural import MARKS, Keep
from mspc.passes.lib.choices import ShardingChoice
from mspc.passes.lib.placement import bytes_between
from mspc.passes.lib.recomputation import RecomputableCell
from mspc.passes.lib.redistribution import plan
from mspc.search.model.model import CostModel, Source


@dataclass(frozen=True, slots=True, eq=False)
class TensorRead:
    """One read of a value. source: producer of its tensor, None if its layout is not decided. made: numbers of the
    layouts in which the tensor is made or stored, indexed by the choice of variable `own`. needed: numbers of the
    layouts in which it is read, indexed by the choice of variable `reader`; () if it is read as it was made."""

    value: Value
    source: Source | None
    own: int = -1
    made: tuple[int, ...] = ()
    reader: int = -1
    needed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class BackwardOperator:
    """Facts of a backward operator. forward: the forward operator whose gradient it computes. reads: its operands.
    summand: the operand that gives a sum its layout; the operator itself if it is not a sum. makes_nothing: it is a
    view, or part of an update. in_place: it may reuse an operand's memory. trained: the parameters whose complete
    gradient it makes."""

    forward: Node | None
    reads: tuple[TensorRead, ...]
    summand: Node
    makes_nothing: bool
    in_place: bool
    trained: tuple[Parameter, ...]


class StepLayouts:
    """Cached facts of the step of one model."""

    def __init__(self, model: CostModel) -> None:
        self.model = model
        self.result_bytes = cache(self._result_bytes)
        self.stored_bytes = cache(self._stored_bytes)
        self.gradient = cache(self._gradient)
        self.is_elementwise = cache(self._is_elementwise)
        self.reads = cache(self._reads)
        self.backward = cache(self._backward)
        self.distance = cache(self._distance)
        self.steps = cache(self._steps)
        self._parameters = {p.name: p for p in model.search.graph.parameters}

    def _result_bytes(self, node: Node, choice: int) -> float:
        """Return the bytes of a rank's slices of a forward operator's results."""
        outputs = self.model.variables[self.model.of[node]].outputs
        return sum(
            float(self.model.slice_bytes(numbers[choice][None], type)[0])
            for numbers, type in zip(outputs, element_types(node.type), strict=True)
        )

    def _stored_bytes(self, parameter: Parameter, choice: int) -> float:
        """Return the bytes of a rank's slice of a parameter."""
        numbers = self.model.variables[self.model.of[parameter]].outputs[0][choice]
        return float(self.model.slice_bytes(numbers[None], parameter.tensor_type)[0])

    def _gradient(self, node: Node, forward: Node | None, choice: int) -> float:
        """Return the bytes of a gradient, given the choice of the forward operator that it belongs to."""
        choices = () if forward is None else self.model.variables[self.model.of[forward]].choices
        return gradient_bytes(node, forward, choices[choice] if choices else None)

    def _is_elementwise(self, node: Node) -> bool:
        """Return whether an operator may work in place."""
        rule = self.model.search.rules.get(node)
        return rule is not None and rule.is_elementwise

    def _reads(self, node: Node) -> tuple[TensorRead, ...]:
        """Return the reads of a forward operator's operands, except for constants."""
        reader = node if node in self.model.of else None
        return tuple(
            self._read(value, reader, place)
            for place, value in enumerate(node.inputs)
            if not isinstance(value, Constant)
        )

    def _backward(self, node: Node) -> BackwardOperator:
        """Return the facts of a backward operator, or of an operator of an update."""
        forward = node.forward if node.forward in self.model.of else None
        pairs = zip(node.inputs, self._places(node, forward), strict=True)
        trained = [self._parameters[name] for name in gradient_names(node) if name in self._parameters]
        return BackwardOperator(
            forward,
            tuple(self._read(value, forward, at) for value, at in pairs if not isinstance(value, Constant)),
            summand(node) or node,
            node.op.is_view or bool(node.op.mutates) or node.phase == "update",
            self.is_elementwise(node),
            tuple(parameter for parameter in trained if parameter in self.model.of),
        )

    def _distance(self, value: Value, begin: int, end: int) -> float:
        """Return the bytes sent to redistribute a value from one layout to another."""
        layouts = self.model.layout(value, begin), self.model.layout(value, end)
        return bytes_between(*layouts, value.tensor_type)

    def _steps(self, value: Value, begin: int, end: int) -> list[tuple[float, bool]]:
        """Return (bytes of a rank's slice after the step, whether it works in place) for every step between two
        layouts."""
        type = value.tensor_type
        layouts = self.model.layout(value, begin), self.model.layout(value, end)
        return [
            (type.nbytes / math.prod(step.layout.strategy), isinstance(step.op, AllReduce))
            for step in plan(*layouts, type.shape, type.dtype.itemsize).steps
        ]

    def _read(self, value: Value, reader: Node | None, place: int) -> TensorRead:
        source, of = self.model.source(value), self.model.of
        if source is None or reader is None or place < 0 or source[0] not in of:
            return TensorRead(value, source)
        own, variable = of[source[0]], of[reader]
        made, needed = self.model.variables[own].outputs[source[1]], self.model.variables[variable].operands[place]
        return TensorRead(value, source, own, tuple(made.tolist()), variable, tuple(needed.tolist()))

    def _places(self, node: Node, forward: Node | None) -> list[int]:
        """Return, for every operand of a backward operator, the index of the same tensor among the forward operands,
        else -1."""
        source = self.model.source
        there = [] if forward is None else [source(value) for value in forward.inputs]
        wanted = [source(value) for value in node.inputs]
        return [there.index(each) if each is not None and each in there else -1 for each in wanted]


def summand(node: Node) -> Node | None:
    """Return the first gradient that a backward sum adds, which gives the sum its layout; None if it is not a sum."""
    alike = (value for value in node.inputs if isinstance(value, Node) and value.phase == "backward")
    return next((value for value in alike if value.type == node.type), None) if node.op.name == "AddN" else None


def gradient_bytes(node: Node, forward: Node | None, choice: ShardingChoice | None) -> float:
    """Return the bytes of a rank's slice of a gradient, which has the layout of its operand; intermediate results have
    the layout of a tensor of the same shape. Return the bytes of the whole tensor if the operator or the choice is
    unknown."""
    total = float(sum(type.nbytes for type in element_types(node.type)))
    if forward is None or choice is None:
        return total
    if 0 <= node.forward_input < len(choice.inputs):
        return total / math.prod(choice.inputs[node.forward_input].strategy)
    tensors = [value.type for value in forward.inputs]
    alike = [
        math.prod(layout.strategy)
        for type, layout in (*zip(element_types(forward.type), choice.outputs, strict=True),
                             *zip(tensors, choice.inputs, strict=False))
        if getattr(type, "shape", None) == getattr(node.type, "shape", ())
    ]  # fmt: skip
    return total / (alike[0] if alike else max(math.prod(each.strategy) for each in choice.outputs))


@dataclass(frozen=True)
class StepMoment:
    """One moment of a step. bytes: live bytes, without weights, states and inputs. node: the operator that runs.
    gradients: the live gradients, each as the backward operator that made it, or as its parameter."""

    bytes: float
    node: Node
    gradients: tuple[Node | Parameter, ...]


class Footprint:
    """Simulation of one step. facts: of the model. recomputed: the recomputed cells. again: the parameters that are
    gathered again for gradients."""

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
        """Return the bytes at the peak, without weights, states and inputs."""
        return self.moment().bytes

    def moment(self) -> StepMoment:
        """Return the moment of the peak."""
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
        """Return the first and the last position at which every item is live."""
        sizes, count = self.sizes, len(self.sizes)
        last = list(range(count))
        for i in self._unreduced if not self._waits else ():  # nothing waits for the stream of the reductions
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
        """Add a forward operator, at its position or recomputed, and return its item."""
        operands = [i for read in self.facts.reads(node) for i in self._item(read, first)]
        if isinstance(node.op, Keep) and operands:
            return self._add(operands, self._shown_size(operands[0]) * self.model.turns.runs(node))
        if node.op.is_view or isinstance(node.op, MARKS) or node not in self.model.of:
            return self._add(operands, 0.0)
        made = self.facts.result_bytes(node, self.values[self.model.of[node]])
        return self._add(operands, made, self.facts.is_elementwise(node))

    def _copy(self, node: Node) -> None:
        """Add a recomputed operator, after its operands."""
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
        """Return the items with an operand of an operator of the forward graph, or of its gradient."""
        value = read.value
        if not first and value in self.inside:
            assert isinstance(value, Node)
            self._copy(value)
            item = [self._copies[value]]
        else:
            item = self._items_of(value, first)
        if read.source is None or not read.needed:
            return item
        own, needed = read.made[self.values[read.own]], read.needed[self.values[read.reader]]
        if needed == own:
            return item
        self._waits |= not first or bool(item)
        return [self._redistribute(value, item, read.source, own, needed, not first and read.source[0] in self.again)]

    def _items_of(self, value: Value, first: bool) -> list[int]:
        """Return the items with a value as it was made, or with its fetched copy if the value is on the host and read
        by gradients."""
        if value not in self._of:
            return []
        if first or not isinstance(value, Node) or value.phase != "forward" or OFFLOAD not in value.attrs:
            return [self._of[value]]
        if value not in self._fetched:
            self._fetched[value] = self._add([], self._shown_size(self._of[value]))
        return [self._fetched[value]]

    def _redistribute(
        self, value: Value, item: list[int], source: Source, own: int, needed: int, again: bool = False
    ) -> int:  # fmt: skip
        """Return the item with a value in the needed layout, redistributed from the nearest live layout."""
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
        """Keep a result of the graph live until the end, in the caller's layout."""
        source, layout = self.model.source(node), self.model.search.traffic.required.get(node)
        item = [self._of[node]]
        if source is not None and layout is not None and source[0] in self.model.of:
            own, needed = self._number(source), self.model.number(node, layout)
            item = [self._redistribute(node, item, source, own, needed)] if own != needed else item
        self._handed_out += item

    def _shown_size(self, item: int) -> float:
        """Return the bytes of an item, or of the item that it is a view of."""
        return self.sizes[self._shown[item]]

    def _number(self, source: Source) -> int:
        """Return the number of the layout in which a tensor is made or stored."""
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
                operands += self._items_of(read.value, first=False)
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
            own = self.facts.stored_bytes(parameter, self.values[self.model.of[parameter]])
            if own < self.sizes[item]:
                self._unreduced.append(item)
                item = self._add([item], own)
            self._gradients[item] = parameter
        self._of[node] = item
