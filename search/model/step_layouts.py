"""What runs through one model's step ask again and again: how its operators read tensors, and by the choices that they
depend on the bytes of what is made, is brought and flows back."""

from __future__ import annotations

import math

from mspc.ir.graph import Constant, Node, Parameter, Value, element_types
from mspc.ir.late_dataclass import dataclass
from mspc.ir.text.families import gradient_names
from mspc.ops.collective.collectives import AllReduce
from mspc.passes.lib.choices import ShardingChoice
from mspc.passes.lib.placement import bytes_between
from mspc.passes.lib.propagation import elementwise
from mspc.passes.lib.redistribution import plan
from mspc.search.model.model import CostModel
from mspc.search.model.variables import Source


@dataclass(frozen=True, slots=True, eq=False)
class TensorRead:
    """One reading of a value. source: where its tensor comes from, None where nothing is decided about that. made: the
    numbers of the layouts in which the tensor is made or stored, by the choice of the variable `own`. needed: of those
    in which it is read, by the choice of the variable `reader`; () where it is read as it was made."""

    value: Value
    source: Source | None
    own: int = -1
    made: tuple[int, ...] = ()
    reader: int = -1
    needed: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, eq=False)
class BackwardOperator:
    """A backward operator. forward: the decided operator that it belongs to. reads: its operands. summand: what a sum
    lies as, of any other operator itself. makes_nothing: it is a view, or part of an update. trained: the parameters
    whose whole gradient it makes."""

    forward: Node | None
    reads: tuple[TensorRead, ...]
    summand: Node
    makes_nothing: bool
    in_place: bool
    trained: tuple[Parameter, ...]


class StepLayouts:
    """The facts of one model's step."""

    def __init__(self, model: CostModel) -> None:
        self.model = model
        self._made: dict[tuple[Node, int], float] = {}
        self._stored: dict[tuple[Parameter, int], float] = {}
        self._gradients: dict[tuple[Node, int], float] = {}
        self._elementwise: dict[Node, bool] = {}
        self._reads: dict[Node, tuple[TensorRead, ...]] = {}
        self._backward: dict[Node, BackwardOperator] = {}
        self._distances: dict[tuple[Value, int, int], float] = {}
        self._steps: dict[tuple[Value, int, int], list[tuple[float, bool]]] = {}
        self._parameters = {p.name: p for p in model.search.graph.parameters}

    def made(self, node: Node, choice: int) -> float:
        """Bytes of a rank's slices of what a forward operator makes."""
        if (node, choice) not in self._made:
            outputs = self.model.variables[self.model.of[node]].outputs
            self._made[node, choice] = sum(
                float(self.model.held(numbers[choice][None], type)[0])
                for numbers, type in zip(outputs, element_types(node.type), strict=True)
            )
        return self._made[node, choice]

    def stored(self, parameter: Parameter, choice: int) -> float:
        """Bytes of a rank's slice of a parameter."""
        if (parameter, choice) not in self._stored:
            numbers = self.model.variables[self.model.of[parameter]].outputs[0][choice]
            self._stored[parameter, choice] = float(self.model.held(numbers[None], parameter.tensor_type)[0])
        return self._stored[parameter, choice]

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

    def reads(self, node: Node) -> tuple[TensorRead, ...]:
        """How a forward operator reads its operands, constants aside."""
        if node not in self._reads:
            reader = node if node in self.model.of else None
            self._reads[node] = tuple(
                self._read(value, reader, place)
                for place, value in enumerate(node.inputs)
                if not isinstance(value, Constant)
            )
        return self._reads[node]

    def backward(self, node: Node) -> BackwardOperator:
        """A backward operator, or one of an update."""
        if node not in self._backward:
            forward = node.forward if node.forward in self.model.of else None
            pairs = zip(node.inputs, self._places(node, forward), strict=True)
            trained = [self._parameters[name] for name in gradient_names(node) if name in self._parameters]
            self._backward[node] = BackwardOperator(
                forward,
                tuple(self._read(value, forward, at) for value, at in pairs if not isinstance(value, Constant)),
                summand(node) or node,
                node.op.is_view or bool(node.op.mutates) or node.phase == "update",
                self.is_elementwise(node),
                tuple(parameter for parameter in trained if parameter in self.model.of),
            )
        return self._backward[node]

    def distance(self, value: Value, begin: int, end: int) -> float:
        """Bytes that bring a value from one layout to another."""
        key = (value, begin, end)
        if key not in self._distances:
            layouts = self.model.layout(value, begin), self.model.layout(value, end)
            self._distances[key] = bytes_between(*layouts, value.tensor_type)
        return self._distances[key]

    def steps(self, value: Value, begin: int, end: int) -> list[tuple[float, bool]]:
        """(bytes of a rank's slice behind it, whether it works in place) of every step between two layouts."""
        key, type = (value, begin, end), value.tensor_type
        if key not in self._steps:
            layouts = self.model.layout(value, begin), self.model.layout(value, end)
            self._steps[key] = [
                (type.nbytes / math.prod(step.layout.strategy), isinstance(step.op, AllReduce))
                for step in plan(*layouts, type.shape, type.dtype.itemsize).steps
            ]
        return self._steps[key]

    def _read(self, value: Value, reader: Node | None, place: int) -> TensorRead:
        source, of = self.model.source(value), self.model.of
        if source is None or reader is None or place < 0 or source[0] not in of:
            return TensorRead(value, source)
        own, variable = of[source[0]], of[reader]
        made, needed = self.model.variables[own].outputs[source[1]], self.model.variables[variable].operands[place]
        return TensorRead(value, source, own, tuple(made.tolist()), variable, tuple(needed.tolist()))

    def _places(self, node: Node, forward: Node | None) -> list[int]:
        """For every operand of a backward operator the operand of the forward one that is the same tensor, else -1."""
        source = self.model.source
        there = [] if forward is None else [source(value) for value in forward.inputs]
        wanted = [source(value) for value in node.inputs]
        return [there.index(each) if each is not None and each in there else -1 for each in wanted]


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
