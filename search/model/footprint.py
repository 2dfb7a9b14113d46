"""Estimates what a rank would hold through a step, from an assignment alone, as the memory plan will count it.

The step is run through as it will be compiled: values are brought to their readers once, cells are computed again
before the first gradient that reads of them, gradients lie as the operands that they are of, those of parameters are
reduced to the stored slices at once. What is brought somewhere goes there by the steps of the planner of
redistributions, from the nearest copy; results are brought to the caller as soon as they are there.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence

import numpy as np

from mspc.ir.graph import Constant, Node, Parameter, Value, element_types
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Layout
from mspc.ir.types import TensorType
from mspc.ops.collective.collectives import AllReduce
from mspc.passes.autodiff.recomputable_cells import RecomputableCell
from mspc.passes.communication.redistribution_plan import plan
from mspc.passes.sharding.choices import ShardingChoice
from mspc.passes.sharding.traffic import bytes_between
from mspc.passes.sharding.update_layouts import elementwise
from mspc.search.model.model import CostModel, Source


@dataclass(frozen=True)
class StepMoment:
    """A moment of a step. bytes: held there, beside weights, states and inputs. node: the operator that runs then.
    gradients: what is alive of them, the backward operator that has made one, or the parameter that it is of."""

    bytes: float
    node: Node
    gradients: tuple[Node | Parameter, ...]


class StepLayouts:
    """What runs through one model's step ask again and again, by the choices that it depends on."""

    def __init__(self, model: CostModel) -> None:
        self.model = model
        self._made: dict[tuple[Node, int], float] = {}
        self._gradients: dict[tuple[Node, int], float] = {}
        self._elementwise: dict[Node, bool] = {}
        self._places: dict[Node, list[int]] = {}

    def made(self, node: Node, choice: int) -> float:
        """Bytes of a rank's slices of what a forward operator makes."""
        if (node, choice) not in self._made:
            outputs = self.model.variables[self.model.of[node]].outputs
            self._made[node, choice] = sum(
                float(self.model.held(numbers[choice][None], type)[0])
                for numbers, type in zip(outputs, element_types(node.type), strict=True)
            )
        return self._made[node, choice]

    def gradient(self, node: Node, forward: Node | None, choice: int) -> float:
        """Bytes of a gradient, by the choice of the forward operator that it belongs to."""
        if (node, choice) not in self._gradients:
            choices = () if forward is None else self.model.variables[self.model.of[forward]].choices
            self._gradients[node, choice] = gradient_bytes(node, forward, choices[choice] if choices else None)
        return self._gradients[node, choice]

    def is_elementwise(self, node: Node) -> bool:
        """Whether an operator may work in place."""
        if node not in self._elementwise:
            rule = self.model.search.rules.get(node)
            self._elementwise[node] = rule is not None and elementwise(rule)
        return self._elementwise[node]

    def places(self, node: Node, forward: Node | None) -> list[int]:
        """For every operand of a backward operator the operand of the forward one that is the same tensor, else -1."""
        if node not in self._places:
            source = self.model.source
            there = [] if forward is None else [source(value) for value in forward.inputs]
            wanted = [source(value) for value in node.inputs]
            self._places[node] = [there.index(each) if each is not None and each in there else -1 for each in wanted]
        return self._places[node]


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
        self._brought: dict[tuple[object, ...], dict[int, int]] = {}
        self._handed_out: list[int] = []
        self._gradients: dict[int, Node | Parameter] = {}
        self._results = set(self.model.search.graph.results)
        self._trained = {p.name: p for p in self.model.search.graph.parameters}

    def peak(self) -> float:
        """Bytes at the peak, beside weights, states and inputs."""
        return self.moment().bytes

    def moment(self) -> StepMoment:
        """The peak."""
        runs: list[Node] = []
        for node in self.model.search.graph.nodes:
            if node.phase == "forward":
                self._of[node] = self._forward(node, first=True)
                self._hand_out(node)
            else:
                self._backward(node)
            runs += [node] * (len(self.sizes) - len(runs))
        count = len(self.sizes)
        last = list(range(count))
        for i in self._unreduced if not self._waits else ():  # nothing waits for the stream on which sums run
            last[i] = count - 1
        for i in self._handed_out:
            last[i] = count
        for place in range(count - 1, -1, -1):
            for i in self.operands[place]:
                last[i] = max(last[i], place if self.sizes[place] else last[place])
        change, spans = np.zeros(count + 2), list[tuple[int, int]]()
        for place, size in enumerate(self.sizes):
            dying = self.works_in_place[place] and any(
                last[i] == place and self.sizes[self._shown[i]] >= size for i in self.operands[place]
            )
            spans.append((place + dying, max(last[place], place + dying)))
            change[spans[-1][0]] += size
            change[spans[-1][1] + 1] -= size
        held = np.cumsum(change)
        most = int(held.argmax())
        alive = [made for item, made in self._gradients.items() if spans[item][0] <= most <= spans[item][1]]
        return StepMoment(float(held[most]), runs[min(most, len(runs) - 1)], tuple(alive))

    def _add(self, operands: Sequence[int], size: float, in_place: bool = False) -> int:
        self.operands.append(list(operands))
        self.sizes.append(size)
        self.works_in_place.append(in_place)
        self._shown.append(self._shown[operands[0]] if operands and not size else len(self._shown))
        return len(self.sizes) - 1

    def _forward(self, node: Node, first: bool) -> int:
        """A forward operator, in its place or recomputed."""
        if node not in self.model.of:
            return self._add([i for value in node.inputs for i in self._item(value, None, -1, first)], 0.0)
        operands = [i for place, value in enumerate(node.inputs) for i in self._item(value, node, place, first)]
        if node.op.is_view:
            return self._add(operands, 0.0)
        return self._add(operands, self._made(node), self.facts.is_elementwise(node))

    def _item(self, value: Value, reader: Node | None, place: int, first: bool) -> list[int]:
        """What holds a value as an operator of the forward graph, or its gradient, reads it."""
        if isinstance(value, Constant):
            return []
        item: list[int] = []
        if isinstance(value, Node):
            if not first and value in self.inside:
                if value not in self._copies:
                    self._copies[value] = self._forward(value, first=False)
                item = [self._copies[value]]
            elif value in self._of:
                item = [self._of[value]]
        source = self.model.source(value)
        known = self.model.of
        if source is None or reader is None or place < 0 or reader not in known or source[0] not in known:
            return item
        own = self._number(source)
        needed = int(self.model.variables[self.model.of[reader]].operands[place][self.values[self.model.of[reader]]])
        if needed == own:
            return item
        self._waits |= not first or bool(item)
        return [self._bring(value, item, source, own, needed, not first and source[0] in self.again)]

    def _bring(self, value: Value, item: list[int], source: Source, own: int, needed: int, again: bool = False) -> int:
        """What holds a value in the layout that is needed, by the steps from the nearest of those in which it is."""
        holder: tuple[object, ...] = tuple(self._shown[i] for i in item) or source
        copies = self._brought.setdefault((*holder, again), {})
        if needed in copies:
            return copies[needed]
        type, target = value.tensor_type, self.model.layout(value, needed)
        far, begin, start = bytes_between(self.model.layout(value, own), target, type), own, item
        for number, copy in copies.items():
            if (bytes_sent := bytes_between(self.model.layout(value, number), target, type)) < far:
                far, begin, start = bytes_sent, number, [copy]
        for size, in_place in _steps(self.model.layout(value, begin), target, type):
            start = [self._add(start, size, in_place)]
        copies[needed] = start[0]
        return start[0]

    def _hand_out(self, node: Node) -> None:
        """A result of the graph is there until the end, as the caller receives it."""
        if node not in self._results:
            return
        source, layout = self.model.source(node), self.model.search.traffic.required.get(node)
        item = [self._of[node]]
        if source is not None and layout is not None and source[0] in self.model.of:
            own, needed = self._number(source), self.model.number(node, layout)
            item = [self._bring(node, item, source, own, needed)] if own != needed else item
        self._handed_out += item

    def _number(self, source: Source) -> int:
        """The layout that a tensor is made or stored in."""
        variable = self.model.of[source[0]]
        return int(self.model.variables[variable].outputs[source[1]][self.values[variable]])

    def _made(self, node: Node) -> float:
        return self.facts.made(node, self.values[self.model.of[node]])

    def _backward(self, node: Node) -> None:
        operands: list[int] = []
        forward = node.forward if node.forward in self.model.of else None
        summed = None if forward is not None else self._of.get(summand(node) or node)
        for value, place in zip(node.inputs, self.facts.places(node, forward), strict=True):
            if self.model.source(value) is not None:
                operands += self._item(value, forward, place, first=False)
            elif value in self._of:
                operands.append(self._of[value])
        if node.op.is_view or node.op.mutates or node.phase == "update":
            self._of[node] = self._add(operands, 0.0)
            return
        size = self._gradient(node, forward) if summed is None else self.sizes[self._shown[summed]]
        item = self._add(operands, size, self.facts.is_elementwise(node))
        self._gradients[item] = node
        for name in filter(None, str(node.attrs.get("gradient_for", "")).split(",")):
            parameter = self._trained.get(name)
            if parameter in self.model.of:
                own = float(self.model.held(self._stored(parameter), parameter.tensor_type)[0])
                if own < self.sizes[item]:
                    self._unreduced.append(item)
                    item = self._add([item], own)
                self._gradients[item] = parameter
        self._of[node] = item

    def _gradient(self, node: Node, forward: Node | None) -> float:
        return self.facts.gradient(node, forward, -1 if forward is None else self.values[self.model.of[forward]])

    def _stored(self, parameter: Parameter) -> object:
        variable = self.model.of[parameter]
        return self.model.variables[variable].outputs[0][self.values[variable]][None]


def _steps(source: Layout, target: Layout, type: TensorType) -> list[tuple[float, bool]]:
    """(bytes of a rank's slice behind it, whether it works in place) of every step between two layouts."""
    steps = plan(source, target, type.shape, type.dtype.itemsize).steps
    return [(type.nbytes / math.prod(step.layout.strategy), isinstance(step.op, AllReduce)) for step in steps]


def summand(node: Node) -> Node | None:
    """The first of the gradients that a backward operator adds, which the sum lies as; None where it is no sum."""
    alike = (value for value in node.inputs if isinstance(value, Node) and value.phase == "backward")
    return next((value for value in alike if value.type == node.type), None) if node.op.name == "AddN" else None


def gradient_bytes(node: Node, forward: Node | None, choice: ShardingChoice | None) -> float:
    """Bytes of a gradient, which lies as the operand that it is of; what is in between as a tensor of its shape; all of
    it where no operator or no choice is known."""
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
