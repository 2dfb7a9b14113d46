"""Classes of the bytes of a step: parameters are optimizer states or not, results are gradients, activations or
temporary buffers.

Operators declare the operands that they overwrite, nodes their phase. The rest follows from the readers of a value:

- A state is a parameter that updates of a training step write and that is not trained, or not read outside updates:
  moments, counters, sums of gradients. Untrained parameters that only updates read, such as a learning rate, are states
  too. Statistics that a forward operator updates, and caches of a network that is not trained, are not.
- A gradient is a value from which a new value of a parameter is computed elementwise and from gradients alone (scaled,
  clipped, unscaled), back to the backward operator that made it. Before that operator its summands, and partial sums
  over ranks, are gradients too, as long as they have no other reader. If nothing is differentiated, it is the operand
  that an update calls gradient.
- An activation is any other result of the forward pass, or of recomputation, that does not depend on parameters alone
  and from which gradients or results of the graph are computed.
- All other results are temporary buffers: gathered or converted parameters, gradients of activations, intermediate
  values of updates.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from mspc.ir.graph import Constant, Graph, Node, Parameter, Value, element_types
from mspc.ops.collective.base import Collective
from mspc.ops.fused.updates import gradient_index, member_of
from mspc.ops.op import Op

ACTIVATIONS, GRADIENTS, TEMPORARY = CLASSES = ("activations", "gradients", "temporary")
"""Classes of the results in the arena."""

Part = Value | int
"""Memory of a tensor: a parameter or constant, or the number of a result."""
Parts = Mapping[Value, tuple[Part, ...]]
Sources = Callable[[Node, int], Sequence[Sequence[Value]]]
"""For a node and its number of results, the operands from which every result is computed."""


def optimizer_states(graph: Graph, parts: Parts) -> set[Parameter]:
    """Return the parameters that only updates of a training step read and write."""
    after: set[Part] = set()  # memory that depends on gradients
    for node in graph.nodes:
        if node.phase == "backward" or not all([after.isdisjoint(parts[value]) for value in node.inputs]):
            after.update((*parts[node], *_written(node, parts)))
    passed = _passed(graph, parts)
    read: set[Part] = set()
    training: set[Node] = set()
    for node in reversed(graph.nodes):
        written = _written(node, parts)
        trains = any(part in after or (isinstance(part, Parameter) and part.trainable) for part in written)
        if trains or (_updates(node) and not read.isdisjoint(parts[node])):
            training.add(node)
            read.update(part for value in node.inputs for part in parts[value])
    found = {p for p in read - passed if isinstance(p, Parameter) and p.kind != "input" and not p.trainable}
    for node in graph.nodes:
        written = _written(node, parts)
        if node in training or any(part in read for part in written):
            found.update(
                p for p in written
                if isinstance(p, Parameter) and (not p.trainable or (p in after and p not in passed))
            )  # fmt: skip
    return found


def _passed(graph: Graph, parts: Parts) -> set[Part]:
    """Return the memory from which the results of the graph and the gradients are computed, outside updates."""
    found = {part for value in graph.results for part in parts[value]}
    for node in reversed(graph.nodes):
        wanted = node.phase == "backward" or not found.isdisjoint(parts[node])
        if wanted and not _updates(node) and not node.op.is_view:
            found.update(part for value in node.inputs for part in parts[value])
    return found


def _updates(node: Node) -> bool:
    return node.phase == "update" or bool(node.op.mutates and not node.op.updates_aside)


def _written(node: Node, parts: Parts) -> list[Part]:
    """Return the memory that an update overwrites."""
    if node.op.updates_aside:
        return []
    return [parts[node.inputs[i]][0] for i in node.op.mutates]


def constant_bytes(graph: Graph) -> int:
    """Return the bytes of the constants that are read or returned, in the graph and its regions."""
    graphs = graph.graphs()
    found = {v for each in graphs for node in each.nodes for v in node.inputs if isinstance(v, Constant)}
    found.update(v for each in graphs for v in each.results if isinstance(v, Constant))
    return sum(constant.type.nbytes for constant in found)


class StepClasses:
    """Classes of the results of a step, by number. parts: memory of every value; for a view that of its operand. runs:
    whether a node makes results. sources: see `Sources`."""

    def __init__(self, graph: Graph, parts: Parts, runs: Callable[[Node], bool], sources: Sources) -> None:
        self.parts, self._sources = parts, sources
        self.nodes = [node for node in graph.nodes if runs(node)]
        self.made: dict[int, tuple[Node, int]] = {}
        for node in self.nodes:
            for place, part in enumerate(parts[node]):
                if isinstance(part, int):
                    self.made.setdefault(part, (node, place))
        self.readers: dict[int, list[Node]] = {}
        for node in self.nodes:
            for part in dict.fromkeys(part for value in node.inputs for part in parts[value]):
                if isinstance(part, int):
                    self.readers.setdefault(part, []).append(node)
        self._differentiated = any(node.phase == "backward" for node in self.nodes)
        self.gradients = self._gradients()
        self.passed = _passed(graph, parts)

    def of_all(self) -> dict[int, str]:
        """Return the class of every result."""
        found: dict[int, str] = {}
        of_parameters: set[Part] = set()
        for node in self.nodes:
            sources = {part for value in node.inputs for part in self.parts[value] if not isinstance(part, Constant)}
            alone = bool(sources) and all(
                part in of_parameters or (isinstance(part, Parameter) and part.kind != "input") for part in sources
            )
            forward = node.phase == "forward" or bool(node.attrs.get("recomputed"))
            for part in self.parts[node]:
                if not isinstance(part, int) or part in found:
                    continue
                if alone:
                    of_parameters.add(part)
                activation = forward and not alone and part in self.passed
                found[part] = GRADIENTS if part in self.gradients else ACTIVATIONS if activation else TEMPORARY
        return found

    # Gradients

    def _gradients(self) -> set[int]:
        leading = self._leading()
        found: set[int] = set()
        for node in self.nodes:
            mine = [(place, part) for place, part in enumerate(self.parts[node]) if part in leading]
            for place, part in mine:
                assert isinstance(part, int)
                if node.phase == "backward" or (
                    self._of_gradients(node, place, found) if _updates(node) else self._for_updates(part)
                ):
                    found.add(part)
        for node in reversed(self.nodes):
            if node.phase == "backward":
                found.update(p for p in self.parts[node] if isinstance(p, int) and self._is_carried(p, found))
        return found

    def _leading(self) -> set[int]:
        """Return the results from which updates compute new values of parameters elementwise."""
        leading: set[int] = set()
        for node in reversed(self.nodes):
            if node.op.mutates and not node.op.updates_aside:
                leading.update(part for value in self._changing(node) for part in self._results(value))
            if not _updates(node):
                continue
            made_of = self._sources(node, len(self.parts[node]))
            for place, part in enumerate(self.parts[node]):
                if part in leading:
                    size, moves = _size(node, place), _moves(node)
                    leading.update(p for v in made_of[place] if moves or _size(v) == size for p in self._results(v))
        return leading

    def _changing(self, node: Node) -> list[Value]:
        """Return the operands by which an update changes its parameters elementwise."""
        if not self._differentiated:
            member = member_of(node.op)
            index = gradient_index(member) if member is not None else None
            return [] if member is None or index is None else list(node.inputs[index :: len(member.operands)])
        written = frozenset(node.op.mutates)
        any_size = any(_size(node.inputs[i]) == 1 for i in written)
        others = (value for i, value in enumerate(node.inputs) if i not in written and _is_real(value))
        return [value for value in others if any_size or _size(value) > 1]

    def _of_gradients(self, node: Node, place: int, found: set[int]) -> bool:
        """Return whether a result of an update is computed only from gradients and scalars."""
        size = _size(node, place)
        wide = [v for v in self._sources(node, len(self.parts[node]))[place] if _size(v) > 1 or size == 1]
        parts = [part for v in wide if not isinstance(v, Constant) for part in self.parts[v]]
        return bool(parts) and all(part in found for part in parts)

    def _for_updates(self, part: int) -> bool:
        return not self._differentiated and all(_updates(reader) for reader in self.readers.get(part, ()))

    def _is_carried(self, part: int, found: set[int]) -> bool:
        """Return whether every reader of a result outside updates is a backward operator that makes a gradient from it,
        of which the result is a summand or another form."""
        readers = [reader for reader in self.readers.get(part, ()) if not _updates(reader)]
        return bool(readers) and all(self._carries(reader, part, found) for reader in readers)

    def _carries(self, reader: Node, part: int, found: set[int]) -> bool:
        if reader.phase != "backward" or not isinstance(reader.op, Op):
            return False
        if reader.regions and len(reader.inputs) > 1:
            return False  # all results depend on all operands
        made_of = self._sources(reader, len(self.parts[reader]))
        for place, result in enumerate(self.parts[reader]):
            operands = [v for v in made_of[place] if not isinstance(v, Constant)]
            if result not in found or not any(part in self.parts[v] for v in operands):
                continue
            size = _size(reader, place)
            same = all(_size(v) == size for v in operands) and (len(operands) == 1 or reader.op.additive)
            if same or _moves(reader):
                return True
        return False

    def _results(self, value: Value) -> list[int]:
        return [part for part in self.parts[value] if isinstance(part, int)]


def _moves(node: Node) -> bool:
    """Return whether a node passes its operands on, as slices or as their sum over ranks."""
    return isinstance(node.op, Collective) or (isinstance(node.op, Op) and node.op.may_alias)


def _is_real(value: Value) -> bool:
    return all(type.dtype.is_float or type.dtype.is_complex for type in element_types(value.type))


def _size(value: Value, place: int = 0) -> int:
    return element_types(value.type)[place].size
