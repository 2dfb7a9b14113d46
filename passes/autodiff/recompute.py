"""Recomputes the inside of marked cells in the backward graph, instead of saving it from the forward one.

Input:  forward operators with `cnode_attrs: {recompute: "call of the cell"}`, read by backward operators
Output: backward copies of them right before their first reader, from what enters the cell; the first results die early.

Values that leave a marked cell are saved: others hold them anyway. So are values that another stage of a pipeline
reads, which must not wait for the gradients of the stage that computes it, and values of a parameter that has changed
since. An operator that is marked itself, `{recompute: true}`, is computed again for every reader. Copies have the
strategy of their original. Facts: MindSpore's `Cell.recompute()` and `Primitive.recompute()`.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Sequence
from typing import Any

from mspc.analysis.aliasing import Updates
from mspc.ir.graph import STAGE, Graph, Node, Value, copied_region
from mspc.ir.iterative import iterative
from mspc.ops.control.structural import TupleGetItem
from mspc.passes.base import WHOLE, Pass


class Recompute(Pass):
    regions = WHOLE

    def run(self, graph: Graph) -> bool:
        copies: dict[Value, Value] = {}
        for each in graph.graphs():
            copies |= _recompute(each)
        if any(value.regions for value in copies if isinstance(value, Node)):
            _save_less(graph, [value for value in copies if isinstance(value, Node) and value.regions])
        return bool(copies)


def _recompute(graph: Graph) -> dict[Value, Value]:
    """Copy marked operators of one graph, and return the copies by their originals."""
    inside = recomputed_values(graph)
    if not inside:
        return {}
    nodes: list[Node] = []
    copies: dict[Value, Value] = {}
    updates = Updates(graph)
    position = {node: number for number, node in enumerate(graph.nodes)}
    for number, node in enumerate(graph.nodes):
        if node.phase == "backward":

            def repeats(value: Node, here: int = number) -> bool:
                return value in inside and not updates.between(value.inputs, position[value], here)

            node.inputs = [_backward_copy(value, repeats, copies, nodes) for value in node.inputs]
        nodes.append(node)
    graph.nodes = nodes
    return copies


def _save_less(program: Graph, forward: Sequence[Node]) -> None:
    """Let forward nodes with regions return only the results that are read: the gradient reads those of their
    copies."""
    from mspc.ops.control.regions import make_names_unique  # late: few networks have regions
    from mspc.passes.cleanup.simplify import in_all_graphs, remove_dead

    own: dict[Graph, Graph] = {}
    for node in forward:
        node.regions = tuple(copied_region(region, known=own) for region in node.regions)
        node.attrs.pop("saved", None)
    in_all_graphs(program, remove_dead)
    make_names_unique(program.graphs())


def recomputed_values(graph: Graph) -> set[Value]:
    """Marked operators whose results do not leave their cell, and those that are marked themselves."""
    marked = [node for node in graph.nodes if _recompute_mark(node) and not node.op.has_side_effect]
    leaving = set(graph.results)
    leaving.update(handed_on(graph) if marked else ())
    for node in graph.nodes:
        if node.phase == "forward":
            read = [value for value in node.inputs if isinstance(value, Node)]
            leaving.update(value for value in read if _recompute_mark(value) not in (True, _recompute_mark(node)))
    return {node for node in marked if node not in leaving}


def handed_on(graph: Graph) -> set[Value]:
    """The forward values that are read elsewhere in a pipeline than they are computed, or in several places.

    A place is a stage and how often values have gone back to an earlier one, which they do if stages have several
    parts of a network. An operator without a stage belongs to the latest place that it reads of: if it reads of
    several, which one that is says `assign_stages`, and all that it reads counts as handed on.
    """
    forward = [node for node in graph.nodes if node.phase == "forward"]
    if not any(STAGE in node.attrs for node in forward):
        return set()
    place: dict[Value, tuple[int, int]] = {}
    read_at: dict[Value, set[tuple[int, int]]] = {}
    found: set[Value] = set()
    for node in forward:
        read = [value for value in node.inputs if value in place]
        rounds, stage = max((place[value] for value in read), default=(0, -1))
        given = node.attrs.get(STAGE, stage)
        if given < 0:
            continue
        place[node] = here = (rounds + (given < stage), given)
        if STAGE not in node.attrs and len({place[value] for value in read}) > 1:
            found.update(read)
        for value in node.inputs:
            read_at.setdefault(value, {place[value]} if value in place else set()).add(here)
    return found | {value for value, places in read_at.items() if len(places) > 1}


def _recompute_mark(node: Node) -> object:
    """Return the call of a marked cell that the operator is in, True if it is marked itself, or None. An element of a
    tuple counts as part of the operator that makes the tuple: gradients take some that no forward operator reads."""
    while isinstance(node.op, TupleGetItem):
        source = node.inputs[0]
        if not isinstance(source, Node) or source.phase != "forward":
            break
        node = source
    return (node.attrs.get("recompute") or None) if node.phase == "forward" else None


@iterative
def _backward_copy(
    value: Value, repeats: Callable[[Node], bool], copies: dict[Value, Value], nodes: list[Node]
) -> Generator[Any, Value, Value]:
    """Return the value, or its backward copy if it `repeats`; operands of the copy are emitted before it."""
    if not isinstance(value, Node) or not repeats(value):
        return value
    if value not in copies:
        inputs: list[Value] = []
        for operand in value.inputs:
            inputs.append((yield operand, repeats, copies, nodes))
        copy = copy_for_gradients(value, inputs)
        nodes.append(copy)
        copies[value] = copy
    return copies[value]


def copy_for_gradients(node: Node, inputs: Iterable[Value]) -> Node:
    """The node that computes a forward one again among backward nodes."""
    scope = f"Gradients/recompute_{node.scope}"
    copy = Node(node.op, inputs, node.type, node.name, node.instance, scope, node.frames, "backward")
    copy.in_strategy, copy.out_strategy, copy.regions = node.in_strategy, node.out_strategy, node.regions
    copy.forward = node
    copy.attrs["recomputed"] = True
    return copy
