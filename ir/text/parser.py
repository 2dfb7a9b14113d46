"""Text -> graphs: what `mspc.ir.text.printer` writes, and MindSpore's own dumps, as docs/ir-format.md specifies.

Nothing of a file is evaluated or imported: operators are looked up in the registry that the caller hands in.
"""

from __future__ import annotations

import re
from typing import Any, cast

from lark import Token, Tree
from lark.exceptions import UnexpectedInput, VisitError

from mspc.ir.graph import Constant, Graph, Node, Parameter, Value
from mspc.ir.opaque import UNKNOWN_TYPE, Literal, Module, OpaqueOp, Reference
from mspc.ir.text.comments import header_facts, parameter_types, read_trailer
from mspc.ir.text.fragments import (
    Malformed,
    expected,
    name_of,
    parse_text,
    read_attributes,
    read_foreign_type,
    read_layouts,
    read_type,
    read_value,
    unexpected,
)
from mspc.ir.text.operator_reader import OperatorReader, Registry
from mspc.ir.text.source_text import SourceText, expectation
from mspc.ir.types import TensorType, TupleType, Type

_QUOTED = r'"(?:[^"\\\n]|\\.)*+"'
_PARAMETER = re.compile(rf"(%para\d+_({_QUOTED}|[^\s:]+))\s*:")
_CALLEE = r"(?:PrimFunc_)?(call @[^\s(]+|[A-Za-z_]\w*|%\d+)"
_NODE = re.compile(rf"(%\d+)(?:\(({_QUOTED}|[^()\n]+)\))? = {_CALLEE}\(")
_SUBGRAPH = re.compile(rf"subgraph @({_QUOTED}|[^\s(]+)[^(]*\(([^()]*)\)")
_GROUP = re.compile(r'(\w+: ?)?(\{(?:[^{}"]++|"(?:[^"\\]|\\.)*+"|\{(?:[^{}"]++|"(?:[^"\\]|\\.)*+")*+\})*+\})')
_OPERAND = re.compile(rf"%(?:para\d+_{_QUOTED}|[\w.\-/\[\]$]+)")
_TYPE = re.compile(r"<[^<>\n]*>")
_REF_KEY = re.compile(rf", ref_key=({_QUOTED}|[^,>]*)(.*)>\Z")
_FORWARD = re.compile(r"\{gradient_of: (%\d+)(?:\.(\d{1,9}))?\}\Z")
_FOREIGN_HEADER = re.compile(r"^(?:# IR entry:|subgraph instance: )", re.MULTILINE)
_NO_ATTRIBUTES = (
    "Total number of nodes", "Total number of cnodes", "Node counting information", "subgraph instance",
)  # fmt: skip
_KINDS = ("input", "parameter", "constant")


def parse(text: str, registry: Registry, file: str = "<text>", frames: bool = True) -> Module:
    """The graphs of a file.

    Args:
        text: the whole file.
        registry: operators that become real ones; every other name becomes an `OpaqueOp`. In MindSpore's own
            dumps all stay opaque, because their operands and attributes mean something else.
        file: how messages name the file.
        frames: whether the source spans are read too; scopes always are.

    Raises:
        MspcError: the file is damaged; the message names line and column.
    """
    return _Reader(text, registry, file, frames).module()


class _Reader:
    """One file on its way from text to graphs."""

    def __init__(self, text: str, registry: Registry, file: str, frames: bool) -> None:
        self.text = text
        self.source = SourceText(text, file)
        self.fail = self.source.fail
        self.piece = self.source.piece
        self.frames = frames
        self.foreign = _FOREIGN_HEADER.search(text) is not None
        self.opaque = self.foreign
        self.operators = OperatorReader(self.source, {} if self.foreign else registry)
        self.facts: dict[str, str] = {}
        self.attrs: dict[str, Any] = {}
        self.parameters: dict[str, Parameter] = {}
        self.header: list[Parameter] = []
        self.graphs: list[Graph] = []
        self.names: dict[str, set[str]] = {}
        self.references: list[Reference] = []
        self.forwards: list[tuple[Node, str, int, dict[str, Value], int]] = []
        self.types_before: list[str] | None = None
        self.graph_attrs: dict[str, Any] | None = None
        self.type_lines: dict[str, tuple[tuple[Type, ...], tuple[Type, ...] | None]] = {}

    # The file --------------------------------------------------------------------------------------------

    def module(self) -> Module:
        for item in self.items():
            if isinstance(item, Token):
                self.read_comments(item)
            elif isinstance(item, Tree):
                self.read_attribute_line(cast("Tree[Token]", item))
            elif item[0].type == "PARAMETER_HEAD":
                self.read_header_parameter(item)
            else:
                self.read_subgraph(item)
        if not self.graphs:
            notes = ("a graph begins with `subgraph @name() {`",)
            self.fail("the file holds no graph", len(self.text), notes)
        entry = self.facts.get("IR entry")
        entry = self.graphs[-1].name if entry is None else name_of(entry)
        module = Module(entry, self.graphs, "mindspore" if self.opaque else "")
        self.finish(module)
        return module

    def items(self) -> list[Any]:
        try:
            tree = parse_text(self.text, "module")
        except UnexpectedInput as error:
            at = error.pos_in_stream if error.pos_in_stream is not None else len(self.text)
            notes = expectation(expected(error))
            if getattr(getattr(error, "token", None), "type", "") == "$END":
                self.fail("the text ends too early", len(self.text), notes)
            self.fail(unexpected(error, self.text), at, notes)
        except VisitError as error:
            if not isinstance(error.orig_exc, Malformed):
                raise error.orig_exc from None
            self.fail(error.orig_exc.message, error.orig_exc.offset)
        except Malformed as error:
            self.fail(error.message, error.offset)
        return tree.children

    def finish(self, module: Module) -> None:
        """Check what only the whole file can tell; resolve references that may point forward."""
        main = next((graph for graph in self.graphs if graph.name == module.entry), None)
        if main is None:
            self.fail(f"the entry is @{module.entry}, but there is no such graph", self.text.find("IR entry"))
        main.attrs = self.attrs
        main.parameters = self.header
        for fact, count in (("Total subgraph", len(self.graphs)), ("Total params", len(self.header))):
            told = self.facts.get(fact, str(count))
            if told != str(count):
                message = f"the header says '{fact}: {told}', but the file has {count}"
                self.fail(message, self.text.find(fact))
        for reference in self.references:
            graph, value = reference.graph, reference.value
            if graph not in self.names:
                self.fail(f"unknown graph @{graph}", reference.at)
            if value and value not in self.names[graph] and f"%{value}" not in self.parameters:
                self.fail(f"the graph @{graph} has no value {value}", reference.at)
        for node, name, index, values, at in self.forwards:
            forward = values.get(name)
            if not isinstance(forward, Node):
                self.fail(f"unknown node {name}", at)
            if index >= max(1, len(forward.inputs)):
                self.fail(f"{name} has no input {index}", at)
            node.forward, node.forward_input = forward, index

    def read_comments(self, token: Token) -> None:
        for fact, value in header_facts(token).items():
            self.facts.setdefault(fact, value)
        if self.facts.get("IR dialect") == "mindspore":
            self.opaque = True
            self.operators.registry = {}
        self.types_before = parameter_types(token)

    def read_attribute_line(self, tree: Tree[Token]) -> None:
        if tree.data == "configuration":
            return
        (token,) = tree.children
        assert isinstance(token, Token)
        match = re.match(rf"({_QUOTED}|[^:\n]*?)\s*:[ ]*(.*)", token)
        assert match is not None
        word, text = match.group(1), match.group(2).rstrip()
        key = name_of(word)
        if word == "subgraph attr":
            self.graph_attrs = {}
        elif word not in _NO_ATTRIBUTES:
            at = (token.start_pos or 0) + match.start(2)
            attrs = self.attrs if self.graph_attrs is None else self.graph_attrs
            if key in attrs:
                self.fail(f"the attribute '{key}' stands twice", token.start_pos or 0)
            attrs[key] = _foreign_value(text) if self.foreign else self.piece(read_value, text, at)

    # Parameters ------------------------------------------------------------------------------------------

    def read_header_parameter(self, item: list[Any]) -> None:
        head, type_token, default, groups = item
        match = _PARAMETER.match(head)
        assert match is not None
        reference, name = match.group(1), name_of(match.group(2))
        text = str(type_token)
        is_reference = text.startswith("<Ref[")
        facts: dict[str, Any] = {}
        key = _REF_KEY.search(text) if is_reference else None
        if key:
            told = name_of(key.group(1))
            if told != name and not self.opaque:
                self.fail(f"the parameter {name} says ref_key={told}", type_token.start_pos)
            facts = {word: True for word in key.group(2).replace(",", " ").split() if word != "is_parameter"}
        if is_reference and not self.opaque and (key is None or default is None):
            self.fail(f"the parameter {name} needs ref_key={name} and `:  has_default`", type_token.start_pos)
        plain = text[: key.start()] + ">" if key else text
        type = self.type_of(plain, type_token.start_pos)
        parameter = self.new_parameter(reference, name, type, head.start_pos)
        parameter.kind = "parameter" if is_reference else "input"
        parameter.attrs = facts
        self.header.append(parameter)
        if groups is not None:
            self.read_parameter_groups(parameter, groups)

    def new_parameter(self, reference: str, name: str, type: Type, at: int) -> Parameter:
        number = f"%para{len(self.parameters) + 1}"
        if not reference.startswith(f"{number}_"):
            self.fail(f"{reference} should be {number}_{name}: parameters are numbered in order", at)
        if any(p.name == name for p in self.header) and not self.opaque:
            self.fail(f"two parameters are called {name}", at)
        parameter = Parameter(name, type)
        self.parameters[reference] = parameter
        return parameter

    def read_parameter_groups(self, parameter: Parameter, groups: Token) -> None:
        for match in _GROUP.finditer(groups):
            label, text = match.groups()
            at = (groups.start_pos or 0) + match.start(2)
            if label:
                parameter.attrs = dict(self.piece(read_attributes, text, at))
            elif text.startswith("{layout: "):
                placements = self.piece(read_layouts, text[9:-1], at + 9)
                parameter.layout = self.placement(placements, parameter.type, at + 9)
            elif text.startswith("{global: "):
                parameter.global_type = self.type_of(text[9:-1], at + 9)
            else:
                self.read_parameter_facts(parameter, self.piece(read_attributes, text, at), at)

    def read_parameter_facts(self, parameter: Parameter, facts: dict[str, Any], at: int) -> None:
        for key, value in facts.items():
            if key == "kind" and str(value) in _KINDS:
                parameter.kind = str(value)
            elif key == "trainable" and isinstance(value, bool):
                parameter.trainable = value
            else:
                self.fail(f"a parameter has no fact '{key}: {value}'", at)

    # Graphs ----------------------------------------------------------------------------------------------

    def read_subgraph(self, item: list[Any]) -> None:
        head, _, *nodes, result = item
        match = _SUBGRAPH.match(head)
        assert match is not None
        graph = Graph(name_of(match.group(1)))
        if any(g.name == graph.name for g in self.graphs):
            self.fail(f"the graph @{graph.name} stands twice", head.start_pos)
        if self.graph_attrs:
            graph.attrs = self.graph_attrs
        self.graph_attrs = None
        self.graphs.append(graph)
        references = _OPERAND.findall(match.group(2))
        types = self.types_before or []
        for i, reference in enumerate(references):
            type = read_foreign_type(types[i]) if i < len(types) else UNKNOWN_TYPE
            name = name_of(reference.split("_", 1)[1]) if "_" in reference else reference
            graph.parameters.append(self.new_parameter(reference, name, type, head.start_pos))
        values: dict[str, Value] = dict(self.parameters)
        for node in nodes:
            self.read_node(graph, values, node)
        self.read_result(graph, values, result)
        self.names[graph.name] = {node.name for node in graph.nodes}

    def read_node(self, graph: Graph, values: dict[str, Value], item: list[Any]) -> None:
        head, operands, groups, types, comments = item
        at = head.start_pos
        match = _NODE.match(head)
        assert match is not None
        number, name, callee = match.groups()
        inputs = self.operands(values, operands)
        if not callee[0].isidentifier() or callee.startswith("call @"):
            place = at + match.start(3)
            first = Reference(callee[6:], at=place) if callee[0] == "c" else callee
            inputs.insert(0, self.operand(values, first, place))
            callee = "call"
        if types is None:
            notes = ("it stands below the node: `: (<..>) -> (<..>)`",)
            self.fail(f"{callee} has no line of types", at, notes)
        ins, outs = self.read_types(types)
        if outs is None or len(outs) != 1:
            self.fail(f"{callee} needs the type of its one result behind ->", types.start_pos)
        scope, frames = read_trailer(str(comments), self.frames) if comments is not None else ("", ())
        node = Node(_NO_OP, inputs, outs[0], name_of(name) if name else "", "", scope, frames)
        attributes, attributes_at = "{}", at
        groups_at = groups.start_pos if groups is not None else at
        for group in _GROUP.finditer(groups or ""):
            label, text = group.groups()
            place = groups_at + group.start(2)
            if label == "primitive_attrs: ":
                attributes, attributes_at = text, place
            else:
                self.read_group(node, values, label, text, place)
        node.op, node.in_strategy, node.out_strategy = self.operators.read(
            callee, attributes, attributes_at
        )
        self.check_operands(node, ins, types.start_pos)
        if number in values:
            self.fail(f"{number} stands twice", at)
        values[number] = node
        graph.nodes.append(node)

    def read_result(self, graph: Graph, values: dict[str, Value], item: list[Any]) -> None:
        head, operands, _, types, _ = item
        graph.results = self.operands(values, operands)
        graph.returns_tuple = head == "Return(("
        if len(graph.results) > 1 and not graph.returns_tuple and not self.opaque:
            message = "a graph returns one value, or a tuple in parentheses: `Return((%1, %2))`"
            self.fail(message, head.start_pos)
        if types is None:
            return
        ins, _ = self.read_types(types)
        told = [v.type for v in graph.results]
        if list(ins) != told and not self.opaque:
            listed = ", ".join(map(str, told)) or "nothing"
            self.fail(f"Return has {listed}, but its line of types says otherwise", types.start_pos)

    # Operands and types ----------------------------------------------------------------------------------

    def operands(self, values: dict[str, Value], items: list[Any]) -> list[Value]:
        found: list[Value] = []
        for item in items:
            if type(item) is not Token:
                found.append(self.operand(values, item, 0))
                continue
            for match in _OPERAND.finditer(item):
                value = values.get(match.group())
                if value is None:
                    self.fail(f"unknown value {match.group()}", (item.start_pos or 0) + match.start())
                found.append(value)
        return found

    def operand(self, values: dict[str, Value], item: Any, at: int) -> Value:
        if type(item) is str and item.startswith("%"):
            if item not in values:
                self.fail(f"unknown value {item}", at)
            return values[item]
        if isinstance(item, Constant):
            return Constant(item.value)
        if isinstance(item, Reference):
            self.references.append(item)
        return Literal(item)

    def type_of(self, text: str, at: int) -> Type:
        return read_foreign_type(text) if self.opaque else self.piece(read_type, text, at)

    def read_types(self, token: Token) -> tuple[tuple[Type, ...], tuple[Type, ...] | None]:
        known = self.type_lines.get(token)
        if known is None:
            left, arrow, _ = token.partition(" -> ")
            ins = self.types_in(token, 0, len(left))
            outs = self.types_in(token, len(left), len(token)) if arrow else None
            known = self.type_lines[str(token)] = (ins, outs)
        return known

    def types_in(self, token: Token, start: int, stop: int) -> tuple[Type, ...]:
        at = token.start_pos or 0
        return tuple(self.type_of(m.group(), at + m.start()) for m in _TYPE.finditer(token, start, stop))

    def check_operands(self, node: Node, ins: tuple[Type, ...], at: int) -> None:
        if self.opaque and node.op.name == "call" and len(ins) == len(node.inputs) - 1:
            ins = (UNKNOWN_TYPE, *ins)
        if len(ins) != len(node.inputs):
            if self.opaque:
                return
            counts = f"{len(node.inputs)} operands, but its line of types has {len(ins)}"
            self.fail(f"{node.label} has {counts}", at)
        for i, (value, told) in enumerate(zip(node.inputs, ins, strict=True)):
            if isinstance(value, Literal):
                value.type = told
                if not isinstance(node.op, OpaqueOp):
                    self.fail(f"input {i} of {node.label} is {value.value!r}, not a tensor", at)
            elif value.type is not told and value.type != told and not self.opaque:
                self.fail(f"input {i} of {node.label} is {value.type}, but the line of types says {told}", at)

    def placement(self, layouts: tuple[Any, ...], type: Type, at: int) -> Any:
        """The layout of a value of this type: one, or a tuple for a tuple."""
        if isinstance(type, TupleType):
            return layouts
        if len(layouts) != 1 or isinstance(layouts[0], tuple):
            self.fail(f"{len(layouts)} layouts for one tensor", at)
        if isinstance(type, TensorType) and layouts[0] and len(layouts[0].dims) != type.rank:
            ranks = f"{len(layouts[0].dims)} dimensions, the tensor {type.rank}"
            self.fail(f"the layout {layouts[0]} has {ranks}", at)
        return layouts[0]

    # Groups behind a node --------------------------------------------------------------------------------

    def read_group(self, node: Node, values: dict[str, Value], label: str | None, text: str, at: int) -> None:
        if label == "cnode_attrs: " or label == "cnode_primal_attrs: ":
            attrs = self.piece(read_attributes, text, at)
            node.attrs = {**node.attrs, **attrs}
            phase = node.attrs.pop("phase", None)
            if phase is not None:
                node.phase = str(phase)
        elif label:
            self.fail(f"unknown group {label.strip()}", at)
        elif text.startswith("{instance name: "):
            node.instance = self.piece(name_of, text[16:-1], at + 16)
        elif text.startswith("{layout: "):
            node.layout = self.placement(self.piece(read_layouts, text[9:-1], at + 9), node.type, at + 9)
        elif text.startswith("{in_layouts: "):
            node.in_layouts = self.piece(read_layouts, text[13:-1], at + 13)
            self.check_in_layouts(node, at + 13)
        elif text.startswith("{in_strategy: "):
            node.strategy = self.piece(read_attributes, text, at)["in_strategy"]
        elif match := _FORWARD.match(text):
            index = -1 if match.group(2) is None else int(match.group(2))
            self.forwards.append((node, match.group(1), index, values, at + match.start(1)))
        elif not self.opaque:
            self.fail(f"unknown group {text}", at)

    def check_in_layouts(self, node: Node, at: int) -> None:
        layouts = node.in_layouts or ()
        if len(layouts) != len(node.inputs):
            self.fail(f"{len(layouts)} layouts for {len(node.inputs)} operands", at)
        for i, (value, layout) in enumerate(zip(node.inputs, layouts, strict=True)):
            if layout is not None and isinstance(value.type, TensorType):
                self.placement((layout,), value.type, at + i)


_NO_OP = OpaqueOp("")


def _foreign_value(text: str) -> Any:
    return int(text) if text.isascii() and text.isdigit() and len(text) < 19 else text
