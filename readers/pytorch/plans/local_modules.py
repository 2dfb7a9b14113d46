"""Modules that compute with slices of their parameters as if those were all, and give sums of all ranks."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from typing import Protocol

from mspc.ir.graph import Graph, Node, Parameter, Value
from mspc.ops.op import Op
from mspc.readers.pytorch.plans.strategies import parameter_of

VIEWS = frozenset(("Reshape", "BroadcastTo", "Fill"))
"""Kinds that a module asks for by sizes, which are others for slices."""
_PART = re.compile(r"(.*)\[(\d+)\]")
Parts = tuple[tuple[str, int, int], ...]
"""Names of parameters with the dimension that is cut, and of how many weights one behind another each is."""


class Searched(Protocol):
    """What is known of a network's layers. users: of every node. wrong: what cannot be said, at which node."""

    graph: Graph
    users: Mapping[Node, list[Node]]
    wrong: list[tuple[str, Node | None]]

    def cut(self, layout: object) -> list[int]:
        """The dimensions that the axis of layers cuts."""
        ...

    def is_partial(self, layout: object) -> bool:
        """Whether it is a sum over that axis."""
        ...

    def is_of_gradients(self, node: Node) -> bool:
        """Whether gradients alone read it."""
        ...

    @staticmethod
    def moves(node: Node) -> bool:
        """Whether ranks exchange something, or take slices."""
        ...


def local_parts(search: Searched, module: str, scope: str) -> tuple[Parts, set[Node]] | None:
    """The parameters of a module, and its nodes that sum over ranks; None where it cannot be said, which `wrong` has.

    Every rank runs the module's own code with its slices. So nothing is exchanged inside but sums, and what is computed
    of a sum is linear in it, so that it may come last; and the code may ask for no size of a slice.
    """
    nodes = [each for each in search.graph.nodes if each.scope == scope or each.scope.startswith(f"{scope}/")]
    inside, sums = set(nodes), set[Node]()
    for node in nodes:
        problem = _problem(search, module, node, inside)
        if problem:
            search.wrong.append((f"{module}: {problem}", node))
            return None
        if search.moves(node):
            sums.add(node)
    if not any(search.is_partial(node.inputs[0].layout) for node in sums):
        search.wrong.append((f"{module} gives no sum of what ranks have", None))
        return None
    return _parts(search, module), sums


def _problem(search: Searched, module: str, node: Node, inside: Collection[Value]) -> str:
    """Why ranks cannot run a node by themselves; "" where they can."""
    if search.is_of_gradients(node):
        return ""
    for value in node.inputs:
        name = parameter_of(value)
        if name and not (name.rpartition(".")[0] == module and search.cut(value.layout)):
            return f"{name} is whole, beside slices"
        if not name and value not in inside and search.cut(value.layout):
            return "it takes slices of what comes in"
    if search.moves(node):
        if not search.is_partial(node.inputs[0].layout) or search.cut(node.layout):
            return f"{node.op.name} is inside of it"
        return "" if _is_last(search, node, inside) else "what it computes of a sum over ranks is not linear"
    cut = search.cut(node.layout) or any(search.cut(value.layout) for value in node.inputs if not parameter_of(value))
    return f"{node.op.name} asks for sizes, which slices have not" if cut and node.op.name in VIEWS else ""


def _is_last(search: Searched, node: Node, inside: Collection[Value]) -> bool:
    """Whether all that the module makes of a sum is linear in it."""
    pending, seen = [node], set[Node]()
    while pending:
        value = pending.pop()
        for user in search.users.get(value, []):
            if user not in inside or user in seen:
                continue
            seen.add(user)
            places = [number for number, each in enumerate(user.inputs) if each is value]
            op = user.op
            is_linear = isinstance(op, Op) and len(places) == 1 and (places[0] in op.linear_in)
            if not is_linear and not search.moves(user) and user.op.name != "ShardingConstraint":
                return False
            pending.append(user)
    return True


def _parts(search: Searched, module: str) -> Parts:
    found: dict[str, tuple[int, int]] = {}
    for parameter in _own(search.graph.parameters, module):
        dims = search.cut(parameter.layout)
        name = parameter.name.rpartition(".")[2]
        part = _PART.fullmatch(name)
        name = part[1] if part else name
        if dims:
            found[name] = dims[0], found.get(name, (0, 0))[1] + 1
    return tuple((name, dim, count) for name, (dim, count) in found.items())


def _own(parameters: Sequence[Parameter], module: str) -> list[Parameter]:
    return [each for each in parameters if each.name.rpartition(".")[0] == module]
