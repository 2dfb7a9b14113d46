"""Makes a region of nodes: what they read from outside becomes its parameters, and operands of who runs it."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from mspc.ir.free_names import free_name
from mspc.ir.graph import Constant, Graph, Node, Parameter, Value


def captured_values(nodes: Sequence[Node], results: Sequence[Value], own: Collection[Value] = ()) -> list[Value]:
    """What the nodes and results read that is made outside, but for constants, in the order in which they read it.

    own: values that the region is handed otherwise.
    """
    made = {*nodes, *own}
    read = [*(value for node in nodes for value in node.inputs), *results]
    return list(dict.fromkeys(value for value in read if value not in made and not isinstance(value, Constant)))


def outlined(
    name: str,
    nodes: Sequence[Node],
    results: Sequence[Value],
    own: Sequence[Value] = (),
    captured: Sequence[Value] | None = None,
) -> tuple[Graph, list[Value]]:
    """A region of these nodes, which are its own from now on, and the values that it captures.

    Its parameters stand for `own`, then for what is captured: for the given values, which may be more than it reads,
    or else for those that it reads. Nobody else may read a node of it.
    """
    found = captured_values(nodes, results, own) if captured is None else list(captured)
    region = Graph(name)
    region.returns_tuple = True
    taken: set[str] = set()
    inside: dict[Value, Value] = {}
    for value in (*own, *found):
        wanted = value.name if isinstance(value, Parameter | Node) and value.name else "captured"
        made = Parameter(free_name(wanted, taken), value.type, "input")
        region.parameters.append(made)
        inside[value] = made
    region.nodes = list(nodes)
    region.results = list(results)
    region.replace(inside)
    return region, found


def name_apart(program: Graph) -> None:
    """Give graphs names of their own, where a graph and one made of it are both in a program."""
    taken: set[str] = set()
    for graph in program.graphs():
        name, number = graph.name, 1
        while graph.name in taken:
            number += 1
            graph.name = f"{name}_{number}"
        taken.add(graph.name)
