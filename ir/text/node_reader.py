"""Readers of nodes for `mspc.ir.text.parser`: operators and the user's strategies from primitive_attrs, node lines, and
the graphs that nodes run."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, cast

from mspc.ir.diagnostics import MspcError, did_you_mean
from mspc.ir.graph import Constant, Graph, Node, OpLike, Parameter, Value
from mspc.ir.iterative import reached
from mspc.ir.layout import NamedLayout
from mspc.ir.opaque import UNKNOWN_TYPE, GraphReference, Literal, OpaqueOp
from mspc.ir.text.facts import NODE, PHASES, fields_of, mistake
from mspc.ir.text.fragments import read_attributes, read_foreign_type, read_layouts, read_type
from mspc.ir.text.limits import DEEPEST_REGIONS, LONGEST_LIST, number_of
from mspc.ir.text.printer import operand_type_text
from mspc.ir.text.source_text import SourceText, name_of, read_trailer
from mspc.ir.types import TensorType, TupleType, Type

if TYPE_CHECKING:
    from mspc.ir.text.source_text import TextToken

Registry = Mapping[str, Callable[..., OpLike]]
"""Operator classes (frozen dataclasses) by their names in the text."""


class OperatorReader:
    """Reader of the operators of one file; nodes with the same text share one, since operators never change."""

    def __init__(self, source: SourceText, registry: Registry) -> None:
        self.source = source
        self.registry = registry
        self.known: dict[tuple[str, str], tuple[OpLike, Any, Any]] = {}

    def read(self, name: str, text: str, at: int) -> tuple[OpLike, Any, Any]:
        """Return (operator, in strategy, out strategy). text: the attributes in braces. at: their character in the
        file."""
        found = self.known.get((name, text))
        if found is None:
            attributes = dict(self.source.piece(read_attributes, text, at))
            inner, outer = (_take_strategy(attributes, side) for side in ("in", "out"))
            found = self.known[name, text] = (self.operator(name, attributes, at), inner, outer)
        return found

    def operator(self, name: str, attributes: dict[str, Any], at: int) -> OpLike:
        """Return the registered operator with these attributes, which must be all its fields except `omitted` ones, or
        an `OpaqueOp` if the name is not registered."""
        cls = self.registry.get(name)
        if cls is None:
            return OpaqueOp(name, attributes)
        fields = fields_of(cls)  # type: ignore[arg-type]  # a registry holds classes
        notes = (f"its attributes are: {', '.join(fields)}",) if fields else ("it has no attributes",)
        for key, value in attributes.items():
            field = fields.get(key)
            if field is None:
                self.source.fail(f"{name} has no attribute '{key}'", at, notes, code="E0904")
            if not field.fits(value):
                self.source.fail(f"{name}: attribute '{key}' is {value!r}, not {field.annotation}", at, code="E0904")
        omitted = getattr(cls, "omitted", ())
        for key in fields:
            if key not in attributes and key not in omitted:
                self.source.fail(f"{name} lacks the attribute '{key}'", at, notes, code="E0904")
        try:
            return cls(**attributes)
        except MspcError as error:
            self.source.fail(error.message, at, error.notes)
        except (TypeError, ValueError, ArithmeticError, LookupError, AssertionError) as error:
            self.source.fail(f"{name} cannot have these attributes: {error}", at)


def _take_strategy(attributes: dict[str, Any], side: str) -> Any:
    """Remove the user's strategy of one side from the attributes and return it, or None."""
    for key in (f"{side}_strategy", f"{side}_layout"):
        value: Any = attributes.get(key)
        if isinstance(value, tuple) and all(
            entry is None or isinstance(entry, (tuple, NamedLayout)) for entry in cast("tuple[Any, ...]", value)
        ):
            return attributes.pop(key)
    return None


QUOTED = r'"(?:[^"\\\n]|\\.)*+"'
OPERAND = re.compile(rf"%(?:para\d+_{QUOTED}|[\w.\-/\[\]$]+(?:{{\d+\.\.\d+}}[\w.\-/\[\]$]*)?)")
GROUP = re.compile(r'(\w+: ?)?(\{(?:[^{}"]++|"(?:[^"\\]|\\.)*+"|\{(?:[^{}"]++|"(?:[^"\\]|\\.)*+")*+\})*+\})')
_NUMBER = re.compile(r"(%para\d+)_")
_TYPE = re.compile(r"(<[^<>\n]*>)(?:\*(\d{1,9}))?")
_FOREIGN_HEADER = re.compile(r"^(?:# IR entry:|subgraph instance: )", re.MULTILINE)


class ForwardReference(NamedTuple):
    """Reference of a gradient node to its forward node: `{gradient_of: @graph:%3.0}` is input 0 of node %3 of that
    graph; without a graph's name it is the node's own graph. index: -1 if no input is named."""

    node: Node
    graph: str
    number: str
    index: int
    at: int


class GraphTextReader:
    """The state of reading one file from text to graphs.

    foreign: MindSpore wrote the file. opaque: its operators, operands and types are not mspc's. frames: source spans
    are read. parameter_names: names in the current graph. graphs: those read so far; heads: their first characters.
    lines: parameters with lines above the next graph. visible: parameters that the current graph may name. references,
    forwards, regions: entries that can only be resolved after the whole file is read.
    """

    def __init__(self, text: str, registry: Registry, file: str, frames: bool) -> None:
        self.text = text
        self.source = SourceText(text, file)
        self.fail = self.source.fail
        self.piece = self.source.piece
        self.frames = frames
        self.foreign = _FOREIGN_HEADER.search(text) is not None
        self.opaque = self.foreign
        self.operators = OperatorReader(self.source, {} if self.foreign else registry)
        self.parameters: dict[str, Parameter] = {}
        self.numbered: dict[str, Parameter] = {}
        self.parameter_names: set[str] = set()
        self.header: list[Parameter] = []
        self.graphs: list[Graph] = []
        self.heads: dict[Graph, int] = {}
        """The character at which each graph begins."""
        self.lines: dict[str, Parameter] = {}
        self.visible: dict[str, Parameter] = self.parameters
        self.references: list[GraphReference] = []
        self.forwards: list[ForwardReference] = []
        self.regions: list[tuple[Graph, Node, list[tuple[str, int]]]] = []
        self.type_lines: dict[str, tuple[tuple[Type, ...], tuple[Type, ...] | None]] = {}

    def new_parameter(self, reference: str, name: str, type: Type, at: int) -> Parameter:
        number = f"%para{len(self.parameters) + 1}"
        if not reference.startswith(f"{number}_"):
            self.fail(f"{reference} should be {number}_{name}: parameters are numbered in order", at)
        if name in self.parameter_names and not self.opaque:
            self.fail(f"two parameters are called {name}", at)
        self.parameter_names.add(name)
        parameter = Parameter(name, type)
        self.parameters[reference] = parameter
        self.numbered[number] = parameter
        return parameter

    def any_parameter(self, reference: str) -> Parameter | None:
        """Return the parameter of any graph that a reference denotes, in MindSpore's texts also by number, or None."""
        found = self.parameters.get(reference)
        if found is None and self.opaque and (number := _NUMBER.match(reference)):
            found = self.numbered.get(number[1])
        return found

    def unknown_value(self, reference: str, at: int) -> NoReturn:
        """Raise MspcError for an operand that is no value of the current graph."""
        notes: tuple[str, ...] = ()
        if reference in self.parameters and len(self.graphs) > 1:
            notes = ("it is in another graph; values from outside are operands of the node that runs a graph",)
        self.fail(f"unknown value {reference}", at, notes, code="E0901")

    def type_of(self, text: str, at: int) -> Type:
        return read_foreign_type(text) if self.opaque else self.piece(read_type, text, at)

    def read_types(self, token: TextToken) -> tuple[tuple[Type, ...], tuple[Type, ...] | None]:
        known = self.type_lines.get(token)
        if known is None:
            left, arrow, _ = token.partition(" -> ")
            ins = self.types_in(token, 0, len(left))
            outs = self.types_in(token, len(left), len(token)) if arrow else None
            known = self.type_lines[str(token)] = (ins, outs)
        return known

    def types_in(self, token: TextToken, start: int, stop: int) -> tuple[Type, ...]:
        at = token.start_pos
        found: list[Type] = []
        for match in _TYPE.finditer(token, start, stop):
            times = number_of(match.group(2) or "1", LONGEST_LIST - len(found))
            if times is None:
                self.fail(f"more than {LONGEST_LIST} types of one node", at + match.start())
            found += [self.type_of(match.group(1), at + match.start())] * times
        return tuple(found)

    def placement(self, layouts: tuple[Any, ...], type: Type, at: int) -> Any:
        """Return the layout of a value of this type: one, or a tuple for a tuple. Raise MspcError for others."""
        if isinstance(type, TupleType):
            if len(layouts) != len(type.elements):
                self.fail(f"{len(layouts)} layouts for a tuple of {len(type.elements)} tensors", at)
            for layout, element in zip(layouts, type.elements, strict=True):
                self.check_layout(layout, element, at)
            return layouts
        if len(layouts) != 1:
            self.fail(f"{len(layouts)} layouts for one tensor", at)
        self.check_layout(layouts[0], type, at)
        return layouts[0]

    def check_layout(self, layout: Any, type: Type, at: int) -> None:
        """Raise MspcError if this is no layout for a tensor of this type."""
        if isinstance(layout, tuple):
            self.fail(f"{len(cast('tuple[Any, ...]', layout))} layouts for one tensor", at)
        if layout is not None and isinstance(type, TensorType) and len(layout.dims) != type.rank:
            self.fail(f"the layout {layout} has {len(layout.dims)} dimensions, the tensor {type.rank}", at)


_NAME = rf"@({QUOTED}|[^\s,}}\"]+)"
_REGIONS = re.compile(rf"\{{regions: {_NAME}(?:, {_NAME})*\}}\Z")
_GRAPH_NAME = re.compile(_NAME)
_ABOVE = "it is above the graph: `{}: <Tensor[...], (...)>`"


def read_regions(reading: GraphTextReader, graph: Graph, node: Node, text: str, at: int) -> None:
    """Note the graphs that a node of `graph` runs: `{regions: @while_1_condition, @while_1_body}`. Raise MspcError for
    another text."""
    if not _REGIONS.match(text):
        reading.fail(f"unknown group {text}", at, ("graphs that a node runs stand as `{regions: @name, @name}`",))
    names = [(name_of(match.group(1)), at + match.start()) for match in _GRAPH_NAME.finditer(text)]
    reading.regions.append((graph, node, names))


def check_parameters(
    reading: GraphTextReader, graph: Graph, references: Sequence[str], lines: Mapping[str, Parameter], at: int
) -> None:
    """Raise MspcError if the head of a graph, at character `at` of the text, does not name the parameters in the lines
    above it, or names one that is no input. The head of the first graph names none."""
    if graph is reading.graphs[0]:
        notes = (f"the head of the first graph names none: `subgraph @{graph.name}() {{`",)
        reading.fail(f"the parameters of @{graph.name} are the lines above it", at, notes)
    for reference in references:
        if reference not in lines:
            notes = (_ABOVE.format(reference),)
            reading.fail(f"the parameter {reference} of @{graph.name} has no line of its own", at, notes)
    if list(lines) != list(references):
        told, written = (", ".join(names) or "nothing" for names in (references, lines))
        reading.fail(f"@{graph.name} takes {told}, but the lines above it are of {written}", at)
    for parameter in lines.values():
        if parameter.kind != "input":
            notes = (f"its argument stands for it: `<Tensor[...], (...)>`, not a {parameter.kind}",)
            reading.fail(f"the parameter {parameter.name} of @{graph.name} is no input", at, notes)


def resolve_regions(reading: GraphTextReader, main: Graph) -> None:
    """Give every node the graphs that it names. Raise MspcError if a graph is unknown, runs itself, is run by no node,
    or is the main graph but not the first one; or no graph takes a parameter."""
    if main is not reading.graphs[0]:
        notes = ("its parameters are those above all graphs",)
        reading.fail(f"@{main.name}, which runs first, does not stand first in the file", reading.heads[main], notes)
    if reading.lines:
        parameter = next(iter(reading.lines.values()))
        reading.fail(f"no graph takes the parameter {parameter.name}", len(reading.text))
    graphs = {graph.name: graph for graph in reading.graphs}
    runs: dict[Graph, dict[Graph, int]] = {graph: {} for graph in reading.graphs}
    for graph, node, names in reading.regions:
        for name, at in names:
            if name not in graphs:
                notes = tuple(did_you_mean(name, graphs))
                reading.fail(f"{node.label} runs the unknown graph @{name}", at, notes)
            runs[graph].setdefault(graphs[name], at)
        node.regions = tuple(graphs[name] for name, _ in names)
    levels: dict[Graph, int] = {}
    for graph in (main, *reading.graphs):
        if graph not in levels:
            _count_levels(reading, graph, runs, [], levels)
    inside = {*reached([main], runs.__getitem__)}
    for graph in reading.graphs:
        if graph not in inside:
            notes = ("a node runs it with `{regions: @" + graph.name + "}`",)
            reading.fail(f"no node runs the graph @{graph.name}", reading.heads[graph], notes)


def _count_levels(
    reading: GraphTextReader, graph: Graph, runs: dict[Graph, dict[Graph, int]], around: list[Graph],
    levels: dict[Graph, int],
) -> int:  # fmt: skip
    """Return the depth of nested graphs in a graph, and note it in `levels`. around: the graphs that run it, the
    outermost first. Raise MspcError if a graph runs itself, or they nest too deep."""
    around.append(graph)
    deepest = 0
    for inner, at in runs[graph].items():
        if inner in around:
            chain = " -> ".join(f"@{each.name}" for each in [*around[around.index(inner) :], inner])
            reading.fail(f"the graph @{inner.name} runs itself without end: {chain}", at)
        known = levels.get(inner)
        if len(around) + (known or 0) > DEEPEST_REGIONS:
            reading.fail(f"graphs nest more than {DEEPEST_REGIONS} deep", at)
        deepest = max(deepest, 1 + (_count_levels(reading, inner, runs, around, levels) if known is None else known))
    around.pop()
    levels[graph] = deepest
    return deepest


_CALLEE = r"(?:PrimFunc_)?(call @[^\s(]+|[A-Za-z_]\w*|%\d+)(?:\[@[^\"\n]*?\])?"
_NODE = re.compile(rf"(%\d+)(?:\(({QUOTED}|[^()\n]+)\))? = {_CALLEE}\(")
_FORWARD = re.compile(rf"\{{gradient_of: (?:@({QUOTED}|[^\s:\"]+):)?(%\d+)(?:\.(\d{{1,9}}))?\}}\Z")
_NO_OP = OpaqueOp("")


class NodeReader:
    """Reader of the node lines of one file. Bitwise equal constants become one object, as they are after the
    pass `simplify`: passes recognise equal operands by identity.

    together: parameters on one line, by the reference of the first; common: that reference, by the reference of all.
    """

    def __init__(self, reading: GraphTextReader) -> None:
        self.reading = reading
        self.together: dict[str, list[Parameter]] = {}
        self.common: dict[str, str] = {}
        self.constants: dict[tuple[Type, bytes], Constant] = {}

    def read_node(self, graph: Graph, values: dict[str, Value], item: list[Any]) -> None:
        head, operands, groups, types, comments = item
        at = head.start_pos
        match = _NODE.match(head)
        assert match is not None
        number, name, callee = match.groups()
        inputs = self.operands(values, operands)
        if not callee[0].isidentifier() or callee.startswith("call @"):
            place = at + match.start(3)
            first = GraphReference(callee[6:], at=place) if callee[0] == "c" else callee
            inputs.insert(0, self.operand(values, first, place))
            callee = "call"
        if types is None:
            notes = ("it is below the node: `: (<..>) -> (<..>)`",)
            self.reading.fail(f"{callee} has no line of types", at, notes)
        ins, outs = self.reading.read_types(types)
        if outs is None or len(outs) != 1:
            self.reading.fail(f"{callee} needs the type of its one result after ->", types.start_pos)
        scope, frames = read_trailer(str(comments), self.reading.frames) if comments is not None else ("", ())
        node = Node(_NO_OP, inputs, outs[0], name_of(name) if name else "", "", scope, frames)
        attributes, attributes_at = "{}", at
        groups_at = groups.start_pos if groups is not None else at
        for group in GROUP.finditer(groups or ""):
            label, text = group.groups()
            place = groups_at + group.start(2)
            if label == "primitive_attrs: ":
                attributes, attributes_at = text, place
            else:
                self.read_group(graph, node, label, text, place)
        node.op, node.in_strategy, node.out_strategy = self.reading.operators.read(callee, attributes, attributes_at)
        self.check_operands(node, ins, types.start_pos)
        if number in values:
            self.reading.fail(f"{number} stands twice", at)
        values[number] = node
        graph.nodes.append(node)

    def read_result(self, graph: Graph, values: dict[str, Value], item: list[Any]) -> None:
        head, operands, _, types, _ = item
        graph.results = self.operands(values, operands)
        graph.returns_tuple = head == "Return(("
        if len(graph.results) > 1 and not graph.returns_tuple and not self.reading.opaque:
            message = "a graph returns one value, or a tuple in parentheses: `Return((%1, %2))`"
            self.reading.fail(message, head.start_pos)
        if types is None:
            return
        ins, _ = self.reading.read_types(types)
        told = [v.type for v in graph.results]
        if list(ins) != told and not self.reading.opaque:
            listed = ", ".join(map(str, told)) or "nothing"
            self.reading.fail(f"Return has {listed}, but its line of types says otherwise", types.start_pos)

    def operands(self, values: dict[str, Value], items: list[Any]) -> list[Value]:
        found: list[Value] = []
        for item in items:
            if getattr(item, "start_pos", None) is None:  # a value
                found.append(self.operand(values, item, 0))
                continue
            for match in OPERAND.finditer(item):
                first = self.common.get(match.group())
                if first is not None and first in self.reading.visible:
                    found += self.together[first]
                    continue
                denoted = self.reading.any_parameter if self.reading.opaque else self.reading.visible.get
                value = values.get(match.group()) or denoted(match.group())
                if value is None:
                    self.reading.unknown_value(match.group(), item.start_pos + match.start())
                found.append(value)
        return found

    def operand(self, values: dict[str, Value], item: Any, at: int) -> Value:
        if type(item) is str and item.startswith("%"):
            value = values.get(item)
            if value is None:
                self.reading.fail(f"unknown value {item}", at, code="E0901")
            return value
        if isinstance(item, Constant):
            return self.constants.setdefault((item.type, item.value.tobytes()), Constant(item.value))
        if isinstance(item, GraphReference):
            self.reading.references.append(item)
        return Literal(item)

    def check_operands(self, node: Node, ins: tuple[Type, ...], at: int) -> None:
        if self.reading.opaque and node.op.name == "call" and len(ins) == len(node.inputs) - 1:
            ins = (UNKNOWN_TYPE, *ins)
        if len(ins) != len(node.inputs):
            if self.reading.opaque:
                return
            counts = f"{len(node.inputs)} operands, but its line of types has {len(ins)}"
            self.reading.fail(f"{node.label} has {counts}", at)
        for i, (value, told) in enumerate(zip(node.inputs, ins, strict=True)):
            if isinstance(value, Literal):
                value.type = told
                if not isinstance(node.op, OpaqueOp):
                    self.reading.fail(f"input {i} of {node.label} is {value.value!r}, not a tensor", at)
            elif value.type is told or value.type == told or str(told) == operand_type_text(value.type):
                continue
            elif not self.reading.opaque:
                self.reading.fail(
                    f"input {i} of {node.label} is {value.type}, but the line of types says {told}", at, code="E0905"
                )

    def read_group(self, graph: Graph, node: Node, label: str | None, text: str, at: int) -> None:
        if label == "cnode_attrs: " or label == "cnode_primal_attrs: ":
            attrs = self.reading.piece(read_attributes, text, at)
            for key, value in () if self.reading.opaque else attrs.items():
                wrong = mistake(NODE, key, value)
                if wrong:
                    self.reading.fail(wrong, at)
            node.attrs = {**node.attrs, **attrs}
            phase = node.attrs.pop("phase", None)
            if phase is not None:
                node.phase = str(phase)
                if node.phase not in PHASES and not self.reading.opaque:
                    self.reading.fail(f"the phase is {node.phase}, not {' or '.join(PHASES)}", at)
        elif label:
            self.reading.fail(f"unknown group {label.strip()}", at)
        elif text.startswith("{instance name: "):
            node.instance = self.reading.piece(name_of, text[16:-1], at + 16)
        elif text.startswith("{regions: ") and not self.reading.opaque:
            read_regions(self.reading, graph, node, text, at)
        elif text.startswith("{layout: "):
            layouts = self.reading.piece(read_layouts, text[9:-1], at + 9)
            node.layout = self.reading.placement(layouts, node.type, at + 9)
        elif text.startswith("{in_layouts: "):
            place = at + 13
            node.in_layouts = layouts = self.reading.piece(read_layouts, text[13:-1], place)
            if len(layouts) != len(node.inputs):
                self.reading.fail(f"{len(layouts)} layouts for {len(node.inputs)} operands", place)
            for i, (value, layout) in enumerate(zip(node.inputs, layouts, strict=True)):
                if layout is not None and isinstance(value.type, TensorType):
                    self.reading.placement((layout,), value.type, place + i)
        elif text.startswith("{in_strategy: "):
            node.strategy = self.reading.piece(read_attributes, text, at)["in_strategy"]
        elif text.startswith("{place: "):
            node.place = self.reading.piece(name_of, text[8:-1], at + 8)
        elif match := _FORWARD.match(text):
            named, number, index = match.groups()
            place = at + match.start(1 if named else 2)
            named = name_of(named) if named else graph.name
            self.reading.forwards.append(
                ForwardReference(node, named, number, -1 if index is None else int(index), place)
            )
        elif not self.reading.opaque:
            self.reading.fail(f"unknown group {text}", at)
