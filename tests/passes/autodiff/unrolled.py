"""A graph with regions as the flat graph of what it does for given arrays: branches taken, loops unrolled.

Its gradients need no rule for regions, so that it is a judge of those which have one.
"""

from collections.abc import Mapping, Sequence
from types import SimpleNamespace
from typing import Any, cast

import numpy as np

from mspc.ir.graph import Builder, Constant, Graph, Node, Parameter, Value, copied_parameter
from mspc.ir.types import INT64, StackType, TupleType
from mspc.ops.control.regions import If, Loop, While
from mspc.ops.op import Op, has_kernel
from tests.operators import MakeTuple, Stack, TupleGetItem, Unstack

Found = Any
"""A value of the flat graph, or a list of them: what a stack or a tuple is there."""


def unrolled(graph: Graph, arrays: Sequence[np.ndarray]) -> Graph:
    """The flat graph for arrays of the graph's parameters."""
    flat = Graph(graph.name)
    flat.parameters = [copied_parameter(parameter) for parameter in graph.parameters]
    flat.attrs, flat.returns_tuple = dict(graph.attrs), graph.returns_tuple
    held = {p: a.copy() for p, a in zip(flat.parameters, arrays, strict=True)}
    inside = dict(zip(graph.parameters, flat.parameters, strict=True))
    flat.results = _Unrolling(flat, held).graph(graph, inside)
    return flat


class _Unrolling:
    def __init__(self, flat: Graph, arrays: Mapping[Parameter, np.ndarray]) -> None:
        self.builder = Builder(flat)
        self.arrays: dict[Value, Any] = dict(arrays)
        self.backend: Any = SimpleNamespace(xp=np, comm=None, step=1, turns=())

    def graph(self, graph: Graph, found: Mapping[Any, Found]) -> list[Found]:
        """The results of a graph for what its parameters are."""
        inside: dict[Value, Found] = dict(found)
        for node in graph.nodes:
            inputs = [inside.get(value, value) for value in node.inputs]
            self.builder.like(node).phase = node.phase
            inside[node] = self.region_node(node, inputs) if node.regions else self.node(node, inputs)
        return [inside.get(value, value) for value in graph.results]

    def node(self, node: Node, inputs: Sequence[Found]) -> Found:
        if isinstance(node.op, TupleGetItem) and isinstance(inputs[0], list):
            return inputs[0][node.op.index]
        if isinstance(node.op, MakeTuple):
            return list(inputs)
        return self.emit(cast(Op, node.op), *inputs)

    def emit(self, op: Op, *inputs: Value) -> Found:
        made = self.builder.emit(op, *inputs)
        result = op.kernel(self.backend)(*map(self.array, inputs)) if has_kernel(op) else None
        if isinstance(made.type, TupleType):
            items = [self.builder.emit(TupleGetItem(i), made) for i in range(len(made.type.elements))]
            for i, item in enumerate(items):
                self.arrays[item] = None if result is None else np.array(result[i])
            return items
        self.arrays[made] = np.array(result)
        return made

    def array(self, value: Value) -> Any:
        return value.value if isinstance(value, Constant) else self.arrays[value]

    def region_node(self, node: Node, inputs: list[Found]) -> list[Found]:
        if isinstance(node.op, Loop):
            return self.loop(node, node.op, inputs)
        if isinstance(node.op, If):
            region = node.regions[0 if self.array(inputs[0]) else 1]
            return self.graph(region, dict(zip(region.parameters, inputs[1:], strict=True)))
        (region,) = node.regions
        return self.graph(region, dict(zip(region.parameters, inputs, strict=True)))

    def loop(self, node: Node, op: Loop, inputs: list[Found]) -> list[Found]:
        first, body = op.first, node.regions[-1]
        carried = inputs[first : first + op.carried]
        behind = first + op.carried + op.scanned
        scanned = [self.entries(value) for value in inputs[first + op.carried : behind]]
        known = op.known_iterations([value.type for value in node.inputs])
        stacks: list[dict[int, Found]] = [{} for _ in range(op.stacked)]
        count = known if known >= 0 else int(self.array(inputs[0])) if first else -1
        turns = 0
        while turns < count or count < 0:
            turn = count - 1 - turns if op.reverse else turns
            read = [*carried, *(entries[turn] for entries in scanned), *inputs[behind:]]
            if isinstance(op, While):
                (goes_on,) = self.graph(node.regions[0], dict(zip(node.regions[0].parameters, read, strict=True)))
                if not self.array(goes_on):
                    break
            lead = [Constant(turn, INT64)] * op.leading
            results = self.graph(body, dict(zip(body.parameters, [*lead, *read], strict=True)))
            carried = results[: op.carried]
            for stack, entry in zip(stacks, results[op.carried :], strict=True):
                stack[turn] = entry
            turns += 1
        kept: list[Found] = [[stack[turn] for turn in range(turns)] for stack in stacks]
        for i, value in enumerate(body.results[op.carried :]):
            if known >= 0 and not isinstance(value.type, StackType):
                kept[i] = self.emit(Stack(), *kept[i])
        counted = [Constant(turns, INT64)] if isinstance(op, While) and op.returns_count else []
        return [*carried, *counted, *kept]

    def entries(self, value: Found) -> list[Found]:
        """The entries along the first dimension, or of a stack."""
        return value if isinstance(value, list) else self.emit(Unstack(num=value.shape[0]), value)
