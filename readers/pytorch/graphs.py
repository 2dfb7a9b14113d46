"""The graph of an exported program is taken from its JSON: nodes with their arguments, the types and sizes of values.

A number that the graph computes from sizes stands in arguments as the expression that it is, not as the name of the
node that computes it. Every operand is looked for among the inputs and the results of earlier nodes.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from mspc.ir.location import Frames
from mspc.readers.pytorch.codes import LAYOUTS, element_type, named
from mspc.readers.pytorch.entries import (
    MOST_DIMENSIONS,
    entry,
    flag_in,
    list_in,
    object_in,
    tagged,
    text_in,
    whole_in,
)  # fmt: skip
from mspc.readers.pytorch.expressions import Expression, parsed
from mspc.readers.pytorch.places import Modules, frames_in, modules_in
from mspc.readers.pytorch.plain_values import PLAIN, plain_number
from mspc.readers.pytorch.program import (
    Argument,
    ExportedGraph,
    ExportedNode,
    ExportedType,
    NodeResult,
    SymbolicSize,
)  # fmt: skip

BY_NAME = 2
"""What says of an argument that it was given by name."""
DEEPEST_GRAPHS = 16
"""Graphs inside of each other."""


class GraphReader:
    """Reads graphs; what they share is kept once: places in sources, paths of modules.

    examples: what symbols were when the program was exported, as far as they were met.
    """

    def __init__(self) -> None:
        self.examples: dict[str, int] = {}
        self._frames: dict[str, Frames] = {}
        self._modules: dict[str, Modules] = {}

    def graph(self, value: Any, where: str = "its graph", depth: int = 0) -> ExportedGraph:
        """A graph. Raises ValueError with what is wrong, and where."""
        if depth > DEEPEST_GRAPHS:
            raise ValueError(f"{where} stands too deep in other graphs")
        return _OneGraph(self, object_in(value, where), where, depth).read()

    def frames(self, text: str) -> Frames:
        found = self._frames.get(text)
        if found is None:
            found = self._frames[text] = frames_in(text)
        return found

    def modules(self, text: str) -> Modules:
        found = self._modules.get(text)
        if found is None:
            found = self._modules[text] = modules_in(text)
        return found


class _OneGraph:
    def __init__(self, reader: GraphReader, owner: dict[str, Any], where: str, depth: int) -> None:
        self.reader = reader
        self.owner = owner
        self.where = where
        self.depth = depth
        self.metas = object_in(entry(owner, "tensor_values", where), f"{where}: tensor_values")
        self.numbers: dict[str, Argument] = {}
        for kind in ("sym_int_values", "sym_float_values", "sym_bool_values"):
            listed = object_in(owner.get(kind) or {}, f"{where}: {kind}")
            for name, value in listed.items():
                self.numbers[name] = self._number(value, f"{where}: number {name!r:.60}")
        self.known: set[str] = set()
        self.types: dict[str, ExportedType] = {}

    def read(self) -> ExportedGraph:
        inputs: list[tuple[str, ExportedType | None]] = []
        for at, value in enumerate(list_in(entry(self.owner, "inputs", self.where), f"{self.where}: inputs")):
            inputs.append(self._input(value, f"{self.where}: input {at}"))
        nodes: list[ExportedNode] = []
        for at, value in enumerate(list_in(entry(self.owner, "nodes", self.where), f"{self.where}: nodes")):
            nodes.append(self._node(value, f"{self.where}: node {at}"))
        outputs = list_in(entry(self.owner, "outputs", self.where), f"{self.where}: outputs")
        given = [self.argument(value, f"{self.where}: output {at}") for at, value in enumerate(outputs)]
        return ExportedGraph(tuple(nodes), tuple(inputs), tuple(given))

    def _input(self, value: Any, where: str) -> tuple[str, ExportedType | None]:
        """Its name, "" for a value that is a constant of the call, and its type."""
        tag, content = tagged(value, where)
        if tag == "as_tensor":
            return self._defined(self._name(content, where), where)
        if tag in ("as_sym_int", "as_sym_float", "as_sym_bool") and isinstance(content, dict) and "as_name" in content:
            name = text_in(content["as_name"], where)
            self._define(name, where)
            return name, None
        if tag == "as_custom_obj":
            raise ValueError(f"{where} is an object of TorchScript ({content!r:.80}), which cannot be read as data")
        return "", None

    def _node(self, value: Any, where: str) -> ExportedNode:
        owner = object_in(value, where)
        target = text_in(entry(owner, "target", where), f"{where}: target").removeprefix("torch.ops.")
        where = f"{where} ({target:.80})"
        arguments: list[tuple[str, Argument]] = []
        by_name = 0
        for at, given in enumerate(list_in(entry(owner, "inputs", where), f"{where}: inputs")):
            place = f"{where}: argument {at}"
            one = object_in(given, place)
            name = text_in(entry(one, "name", place), f"{place}: name")
            by_name += one.get("kind") == BY_NAME
            arguments.append((name, self.argument(entry(one, "arg", place), place)))
        results: list[str] = []
        types: list[ExportedType | None] = []
        for at, given in enumerate(list_in(entry(owner, "outputs", where), f"{where}: outputs")):
            for name, type in self._results(given, f"{where}: result {at}"):
                results.append(name)
                types.append(type)
        about = object_in(owner.get("metadata") or {}, f"{where}: metadata")
        place = self.reader.modules(text_in(about.get("nn_module_stack", ""), f"{where}: nn_module_stack"))
        name = owner.get("name")
        return ExportedNode(
            text_in(name, f"{where}: name") if name is not None else next(iter(results), ""),
            target, tuple(arguments), tuple(results), tuple(types),
            self.reader.frames(text_in(about.get("stack_trace", ""), f"{where}: stack_trace")),
            place.path, place.classes, by_name,
        )  # fmt: skip

    def _results(self, value: Any, where: str) -> list[tuple[str, ExportedType | None]]:
        tag, content = tagged(value, where)
        if tag == "as_none":
            return [("", None)]
        if tag == "as_optional_tensor":
            return self._results(content, where)
        if tag == "as_tensor":
            return [self._defined(self._name(content, where), where)]
        if tag in ("as_tensors", "as_optional_tensors"):
            found: list[tuple[str, ExportedType | None]] = []
            for one in list_in(content, where):
                found += self._results({"as_tensor": one} if tag == "as_tensors" else one, where)
            return found
        if tag in ("as_sym_int", "as_sym_float", "as_sym_bool"):
            one = object_in(content, where)
            if "as_name" not in one:  # a number that no symbol is in
                return [("", None)]
            name = text_in(one["as_name"], where)
            self._define(name, where)
            return [(name, None)]
        if tag in ("as_sym_ints", "as_sym_bools", "as_sym_floats"):
            kind = tag.removesuffix("s")
            return [each for one in list_in(content, where) for each in self._results({kind: one}, where)]
        if tag in ("as_int", "as_float", "as_bool", "as_string"):
            return [("", None)]
        raise ValueError(f"{where} is of kind {tag!r:.40}, which mspc does not know")

    def _defined(self, name: str, where: str) -> tuple[str, ExportedType | None]:
        self._define(name, where)
        if name not in self.metas:
            return name, None  # one of a list that nobody reads
        type = self.types[name] = self.type(self.metas[name], f"{where}: tensor {name!r:.60}")
        return name, type

    def _define(self, name: str, where: str) -> None:
        if name in self.known:
            raise ValueError(f"{where} is called {name!r:.60}, as another value before it")
        self.known.add(name)

    def _name(self, value: Any, where: str) -> str:
        return text_in(entry(object_in(value, where), "name", where), f"{where}: name")

    def operand(self, value: Any, where: str) -> NodeResult:
        """A value that is there already."""
        return self._known(self._name(value, where), where)

    def _known(self, name: str, where: str) -> NodeResult:
        if name not in self.known:
            raise ValueError(f"{where} is {name!r:.60}, which nothing before it gives")
        return NodeResult(name)

    def type(self, value: Any, where: str) -> ExportedType:
        """The type of a tensor. Raises ValueError: it is none, or one of a kind that mspc does not have."""
        owner = object_in(value, where)
        dtype = element_type(entry(owner, "dtype", where), where)
        sizes = list_in(entry(owner, "sizes", where), f"{where}: sizes")
        if len(sizes) > MOST_DIMENSIONS:
            raise ValueError(f"{where} has {len(sizes)} dimensions")
        shape = tuple(self._size(size, f"{where}: sizes") for size in sizes)
        named(owner.get("layout", 7), LAYOUTS, f"{where}: layout")
        return ExportedType(dtype, shape, flag_in(owner.get("requires_grad", False), f"{where}: requires_grad"))

    def _size(self, value: Any, where: str) -> int | SymbolicSize:
        found = self._number(value, where)
        if isinstance(found, SymbolicSize):
            return found
        return whole_in(found, where, 0)

    def _number(self, value: Any, where: str) -> int | float | bool | SymbolicSize:
        """A number that may depend on symbols."""
        tag, content = tagged(value, where)
        if tag == "as_expr":
            owner = object_in(content, where)
            text = text_in(entry(owner, "expr_str", where), where)
            try:
                found = parsed(text)
            except ValueError as error:
                raise ValueError(f"{where}: {error}") from None
            self._note_example(found, owner.get("hint"))
            return found if isinstance(found, int | float) else SymbolicSize(found)
        return plain_number(tag, content, where)

    def _note_example(self, expression: Expression, hint: Any) -> None:
        """What a symbol was in the example that the program was exported with."""
        value = hint.get("as_int") if isinstance(hint, dict) else None
        if isinstance(expression, str) and type(value) is int:
            self.reader.examples.setdefault(expression, value)

    def argument(self, value: Any, where: str) -> Argument:
        """What a node is called with. Raises ValueError."""
        tag, content = tagged(value, where)
        plain = PLAIN.get(tag)
        if plain is not None:
            return plain(content, where)
        special = _SPECIAL.get(tag)
        if special is None:
            raise ValueError(f"{where} is of kind {tag!r:.40}, which mspc does not know")
        return special(self, content, where)

    def symbolic(self, content: Any, where: str) -> Argument:
        """A number by the name of what computes it, or as it is."""
        tag, value = tagged(content, where)
        if tag != "as_name":
            return plain_number(tag, value, where)
        name = text_in(value, where)
        return self.numbers[name] if name in self.numbers else self._known(name, where)

    def several(self, content: Any, where: str, one: Callable[[_OneGraph, Any, str], Argument]) -> Argument:
        return tuple(one(self, value, where) for value in list_in(content, where))

    def pairs(self, content: Any, where: str) -> Argument:
        """What a dictionary holds, as pairs."""
        return tuple((name, self.argument(value, where)) for name, value in object_in(content, where).items())

    def inner_graph(self, content: Any, where: str) -> Argument:
        owner = object_in(content, where)
        name = text_in(entry(owner, "name", where), where)
        return self.reader.graph(entry(owner, "graph", where), f"{where}: graph {name!r:.60}", self.depth + 1)


def _optional(graph: _OneGraph, content: Any, where: str) -> Argument:
    tag, value = tagged(content, where)
    return None if tag == "as_none" else graph.operand(value, where)


_SPECIAL: Mapping[str, Callable[[_OneGraph, Any, str], Argument]] = {
    "as_tensor": _OneGraph.operand,
    "as_tensors": lambda graph, content, where: graph.several(content, where, _OneGraph.operand),
    "as_nested_tensors": lambda graph, content, where: graph.several(
        content, where, lambda _, inner, place: graph.several(inner, place, _OneGraph.operand)
    ),
    "as_optional_tensor": _optional,
    "as_optional_tensors": lambda graph, content, where: graph.several(content, where, _optional),
    "as_sym_int": _OneGraph.symbolic,
    "as_sym_float": _OneGraph.symbolic,
    "as_sym_bool": _OneGraph.symbolic,
    "as_sym_ints": lambda graph, content, where: graph.several(content, where, _OneGraph.symbolic),
    "as_sym_floats": lambda graph, content, where: graph.several(content, where, _OneGraph.symbolic),
    "as_sym_bools": lambda graph, content, where: graph.several(content, where, _OneGraph.symbolic),
    "as_graph": _OneGraph.inner_graph,
    "as_string_to_argument": _OneGraph.pairs,
}
"""Kinds of arguments that name values of the graph."""
