"""Adds the gradients of a weight that several stages read up on each stage, and over the stages once, behind the loop.

Input:  a loop over micro-batches that carries `%9 = AddN(%total, %5, %8)`, where %5 is of stage 0 and %8 of stage 3
Output: it carries a total for each, `%9 = AddN(%total, %5)` and `%10 = AddN(%total_1, %8)`, and `AddN` of both follows.
"""

from __future__ import annotations

from collections.abc import Generator
from dataclasses import replace
from typing import Any

from mspc.ir.copies import copied_node
from mspc.ir.graph import STAGE, Graph, Node, Parameter, Value
from mspc.ir.iterative import iterative
from mspc.ops.control.loops import Scan, body_of
from mspc.ops.control.regions import with_effects
from mspc.ops.control.structural import TupleGetItem
from mspc.ops.math.arithmetic import AddN
from mspc.ops.tensor.cast import Cast
from mspc.passes.run_order import in_order


def split_sums(graph: Graph, loop: Node, inside: dict[Value, int]) -> None:
    """Split what a loop adds up over several stages; `inside` has the stages of its operators, and gets those of new
    ones."""
    op, body = loop.op, body_of(loop)
    assert isinstance(op, Scan)
    users = {value for node in body.nodes for value in node.inputs}
    more: list[tuple[int, Parameter, Node]] = []
    for number in range(op.carried):
        total, result = body.parameters[number], body.results[number]
        if not isinstance(result, Node) or not isinstance(result.op, AddN) or total not in result.inputs:
            continue
        if result in users:
            continue
        terms = [term for value in result.inputs if value is not total for term in _terms(body, value, inside)]
        stages = sorted({inside[term] for term in terms if term in inside})
        if len(stages) < 2:
            continue
        first, *others = stages
        for stage in others:
            own = Parameter(f"{total.name}_of_stage_{stage}", total.type, "input", layout=total.layout)
            made = copied_node(result, [own, *(t for t in terms if inside.get(t) == stage)])
            made.attrs[STAGE] = inside[made] = stage
            body.nodes.append(made)
            more.append((number, own, made))
        result.inputs = [total, *(t for t in terms if inside.get(t, first) == first)]
        result.attrs[STAGE] = inside[result] = first
    if more:
        _carry(graph, loop, more)
    body.nodes = _used(body)


@iterative
def _terms(body: Graph, value: Value, inside: dict[Value, int]) -> Generator[Any, list[Value], list[Value]]:
    """What a value is the sum of, as far as it is of several stages."""
    if not isinstance(value, Node):
        return [value]
    if isinstance(value.op, AddN) and len({inside[v] for v in value.inputs if v in inside}) > 1:
        found: list[Value] = []
        for each in value.inputs:
            found += yield body, each, inside
        return found
    if isinstance(value.op, Cast):
        terms = yield body, value.inputs[0], inside
        if len(terms) > 1:
            made: list[Value] = []
            for term in terms:
                cast = copied_node(value, [term])
                if term in inside:
                    cast.attrs[STAGE] = inside[cast] = inside[term]
                body.nodes.append(cast)
                made.append(cast)
            return made
    return [value]


def _used(body: Graph) -> list[Node]:
    """The nodes that have to run, each behind what it reads."""
    in_order(body)
    needed: set[Value] = set(body.results)
    kept: list[Node] = []
    for node in reversed(body.nodes):
        if node in needed or node.op.has_side_effect or node.op.mutates:
            needed.update(node.inputs)
            kept.append(node)
    return kept[::-1]


def _carry(graph: Graph, loop: Node, more: list[tuple[int, Parameter, Node]]) -> None:
    """Let the loop carry further totals, which begin as those that they are of, and add all up behind it."""
    op, body = loop.op, body_of(loop)
    assert isinstance(op, Scan)
    at, layouts = op.carried, loop.layout if isinstance(loop.layout, tuple) else ()
    needed = loop.in_layouts
    for k, (number, own, made) in enumerate(more):
        body.parameters.insert(at + k, own)
        body.results.insert(at + k, made)
        loop.inputs.insert(at + k, loop.inputs[number])
        if layouts:
            layouts = (*layouts[: at + k], layouts[number], *layouts[at + k :])
        if needed is not None:
            needed = (*needed[: at + k], needed[number], *needed[at + k :])
    changed = replace(op, carried=op.carried + len(more))
    loop.op = with_effects(changed, loop.inputs, loop.regions)  # type: ignore[assignment]  # fields, see RegionOp
    loop.type = changed.results_of(loop.regions, [v.type for v in loop.inputs])
    loop.layout, loop.in_layouts = layouts or loop.layout, needed
    nodes: list[Node] = []
    sums: dict[Value, Value] = {}
    for node in graph.nodes:
        node.inputs = [sums.get(v, v) for v in node.inputs]
        nodes.append(node)
        if node.inputs[:1] != [loop]:
            continue
        assert isinstance(node.op, TupleGetItem)
        index = node.op.index
        if index >= at:
            node.op = TupleGetItem(index + len(more))
        parts: list[Value] = [node]
        for k, (number, _, _) in enumerate(more):
            if number == index:
                part = copied_node(node, [loop], TupleGetItem(at + k))
                part.attrs.pop("gradient_for", None)
                nodes.append(part)
                parts.append(part)
        if len(parts) > 1:
            total = copied_node(node, parts, AddN())
            node.attrs.pop("gradient_for", None)
            total.attrs["reason"] = "stages add up the gradient of what all of them read"
            nodes.append(total)
            sums[node] = total
    graph.nodes = nodes
    graph.results = [sums.get(v, v) for v in graph.results]
