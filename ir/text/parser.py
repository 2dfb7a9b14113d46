"""The parser of texts into graphs, for the output of `mspc.ir.text.printer` and MindSpore's own dumps, as specified in
docs/reference/ir-format.md.

No part of a file is evaluated or imported: operators are looked up in the caller's registry.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

from mspc.ir.diagnostics import did_you_mean
from mspc.ir.graph import Graph, Node, Parameter, Value
from mspc.ir.opaque import UNKNOWN_TYPE, Module
from mspc.ir.text.facts import HEADER, mistake
from mspc.ir.text.families import members_of
from mspc.ir.text.fragments import (
    begin_file,
    expected,
    parse_text,
    read_attributes,
    read_foreign_type,
    read_layouts,
    read_value,
    unexpected,
)
from mspc.ir.text.limits import LONGEST_LIST
from mspc.ir.text.node_reader import (
    GROUP,
    OPERAND,
    QUOTED,
    GraphTextReader,
    NodeReader,
    Registry,
    check_parameters,
    resolve_regions,
)
from mspc.ir.text.own_lines import own_items
from mspc.ir.text.source_text import Malformed, expectation, header_facts, name_of, parameter_types
from mspc.ir.types import Type

if TYPE_CHECKING:
    from mspc.ir.text.source_text import TextToken

_PARAMETER = re.compile(rf"(%para\d+_({QUOTED}|[^\s:]*))\s*:")
_SUBGRAPH = re.compile(rf"subgraph @({QUOTED}|[^\s(]+)[^(]*\(([^()]*)\)")
_REF_KEY = re.compile(rf", ref_key=({QUOTED}|[^,>]*)(.*)>\Z")
_NO_ATTRIBUTES = (
    "Total number of nodes", "Total number of cnodes", "Node counting information", "subgraph instance",
)  # fmt: skip
_KINDS = ("input", "parameter", "constant")


def parse(text: str, registry: Registry, file: str = "<text>", frames: bool = True) -> Module:
    """Return the graphs of a file.

    registry: the known operators; every other name becomes an `OpaqueOp`. In MindSpore's own dumps all operators are
    opaque, because their operands and attributes have other meanings. file: its name in messages. frames: whether
    source spans are read; scopes always are. Raise MspcError with line and column if the file is damaged.
    """
    begin_file()
    return _FileReader(GraphTextReader(text, registry, file, frames)).module()


class _FileReader:
    """Reader of one file from text to graphs, with its state."""

    def __init__(self, reading: GraphTextReader) -> None:
        self.reading = reading
        self.nodes = NodeReader(reading)
        self.facts: dict[str, str] = {}
        self.attrs: dict[str, Any] = {}
        self.graphs = reading.graphs
        self.names: dict[str, set[str]] = {}
        self.values: dict[str, dict[str, Value]] = {}
        self.types_before: list[str] | None = None
        self.graph_attrs: dict[str, Any] | None = None

    # The file --------------------------------------------------------------------------------------------

    def module(self) -> Module:
        found = None if self.reading.foreign else own_items(self.reading.text)
        for item in self.items_by_grammar() if found is None else found:
            if isinstance(item, list):
                if item[0].type == "PARAMETER_HEAD":
                    self.read_header_parameter(item)
                else:
                    self.read_subgraph(item)
            elif item.type == "COMMENTS":
                self.read_comments(item)
            else:
                self.read_attribute_line(item)
        if not self.graphs:
            notes = ("a graph begins with `subgraph @name() {`",)
            self.reading.fail("the file holds no graph", len(self.reading.text), notes)
        entry = self.facts.get("IR entry")
        entry = self.graphs[-1 if self.reading.opaque else 0].name if entry is None else name_of(entry)
        module = Module(entry, self.graphs, "mindspore" if self.reading.opaque else "")
        self.finish(module)
        return module

    def items_by_grammar(self) -> list[Any]:
        """Return the items of the file: lists for parameters and graphs, tokens for comments and attribute lines."""
        from lark.exceptions import UnexpectedInput, VisitError  # late: most files do not need the grammar

        try:
            tree = parse_text(self.reading.text, "module")
        except UnexpectedInput as error:
            at = error.pos_in_stream if error.pos_in_stream is not None else len(self.reading.text)
            notes = expectation(expected(error))
            if getattr(getattr(error, "token", None), "type", "") == "$END":
                self.reading.fail("the text ends too early", len(self.reading.text), notes, "E0902")
            self.reading.fail(unexpected(error, self.reading.text), at, notes, "E0902")
        except VisitError as error:
            if not isinstance(error.orig_exc, Malformed):
                raise error.orig_exc from None
            self.reading.fail(error.orig_exc.message, error.orig_exc.offset, code=error.orig_exc.given_code)
        except Malformed as error:
            self.reading.fail(error.message, error.offset)
        found: list[Any] = []
        for item in tree.children:
            rule = getattr(item, "data", "")  # of a tree: an attribute line, or a configuration, which says nothing
            if not rule or rule == "attribute_line":
                found.append(item.children[0] if rule else item)
        return found

    def finish(self, module: Module) -> None:
        """Do the checks that need the whole file, and resolve references, which may point forward."""
        main = next((graph for graph in self.graphs if graph.name == module.entry), None)
        if main is None:
            message = f"the entry is @{module.entry}, but there is no such graph"
            self.reading.fail(message, self.reading.text.find("IR entry"), code="E0903")
        main.attrs = self.attrs
        main.parameters = self.reading.header
        if not self.reading.opaque and (len(self.graphs) > 1 or self.reading.regions or self.reading.lines):
            resolve_regions(self.reading, main)
        for fact, count in (("Total subgraph", len(self.graphs)), ("Total params", len(self.reading.header))):
            told = self.facts.get(fact, str(count))
            if told != str(count):
                message = f"the header says '{fact}: {told}', but the file has {count}"
                self.reading.fail(message, self.reading.text.find(fact), code="E0903")
        for reference in self.reading.references:
            graph, value = reference.graph, reference.value
            if graph not in self.names:
                self.reading.fail(f"unknown graph @{graph}", reference.at)
            if value and value not in self.names[graph] and self.reading.any_parameter(f"%{value}") is None:
                self.reading.fail(f"the graph @{graph} has no value {value}", reference.at)
        for node, graph, number, index, at in self.reading.forwards:
            if graph not in self.values:
                self.reading.fail(f"unknown graph @{graph}", at, tuple(did_you_mean(graph, self.values)))
            forward = self.values[graph].get(number)
            if not isinstance(forward, Node):
                self.reading.fail(f"unknown node {number}", at, code="E0901")
            if index >= max(1, len(forward.inputs)):
                self.reading.fail(f"{number} has no input {index}", at)
            node.forward, node.forward_input = forward, index

    def read_comments(self, token: TextToken) -> None:
        for fact, value in header_facts(token).items():
            self.facts.setdefault(fact, value)
        if self.facts.get("IR dialect") == "mindspore":
            self.reading.opaque = True
            self.reading.operators.registry = {}
        self.types_before = parameter_types(token)

    def read_attribute_line(self, token: TextToken) -> None:
        match = re.match(rf"({QUOTED}|[^:\n]*?)\s*:[ ]*(.*)", token)
        assert match is not None
        word, text = match.group(1), match.group(2).rstrip()
        key = name_of(word)
        if word == "subgraph attr":
            self.graph_attrs = {}
        elif word not in _NO_ATTRIBUTES:
            at = token.start_pos + match.start(2)
            attrs = self.attrs if self.graph_attrs is None else self.graph_attrs
            if key in attrs and not self.reading.foreign:
                self.reading.fail(f"the attribute '{key}' stands twice", token.start_pos, code="E0904")
            if self.reading.foreign:
                attrs[key] = int(text) if text.isascii() and text.isdigit() and len(text) < 19 else text
            else:
                attrs[key] = self.reading.piece(read_value, text, at)
            wrong = "" if self.reading.opaque else mistake(HEADER, key, attrs[key])
            if wrong:
                self.reading.fail(wrong, at)

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
            if told != name and not self.reading.opaque:
                self.reading.fail(f"the parameter {name} says ref_key={told}", type_token.start_pos)
            facts = {word: True for word in key.group(2).replace(",", " ").split() if word != "is_parameter"}
        if is_reference and not self.reading.opaque and (key is None or default is None):
            self.reading.fail(f"the parameter {name} needs ref_key={name} and `:  has_default`", type_token.start_pos)
        plain = text[: key.start()] + ">" if key else text
        type = self.reading.type_of(plain, type_token.start_pos)
        names = [name] if self.reading.opaque or match.group(2) != name else list(members_of(name))
        if len(self.reading.parameters) + len(names) > LONGEST_LIST:
            self.reading.fail(f"more than {LONGEST_LIST} parameters", head.start_pos)
        if len(names) > 1:
            self.nodes.common[reference] = reference = f"{reference.partition('_')[0]}_{names[0]}"
        parameter = self.new_parameter(reference, names[0], type, head.start_pos)
        parameter.kind = "parameter" if is_reference else "input"
        parameter.attrs = facts
        if groups is not None:
            self.read_parameter_groups(parameter, groups)
        if len(names) > 1:
            self.add_members(reference, parameter, names[1:], head.start_pos)

    def new_parameter(self, reference: str, name: str, type: Type, at: int) -> Parameter:
        parameter = self.reading.new_parameter(reference, name, type, at)
        if not self.reading.opaque:
            self.reading.lines[reference] = parameter
        if not self.graphs:
            self.reading.header.append(parameter)
        return parameter

    def add_members(self, reference: str, first: Parameter, names: list[str], at: int) -> None:
        """Add the other parameters on the line of `first`."""
        members = self.nodes.together[reference] = [first]
        for name in names:
            number = f"%para{len(self.reading.parameters) + 1}"
            member = self.new_parameter(f"{number}_{name}", name, first.type, at)
            member.kind, member.trainable, member.layout = first.kind, first.trainable, first.layout
            member.global_type, member.attrs = first.global_type, dict(first.attrs)
            members.append(member)

    def read_parameter_groups(self, parameter: Parameter, groups: TextToken) -> None:
        for match in GROUP.finditer(groups):
            label, text = match.groups()
            at = groups.start_pos + match.start(2)
            if label:
                parameter.attrs = dict(self.reading.piece(read_attributes, text, at))
            elif text.startswith("{layout: "):
                placements = self.reading.piece(read_layouts, text[9:-1], at + 9)
                parameter.layout = self.reading.placement(placements, parameter.type, at + 9)
            elif text.startswith("{global: "):
                parameter.global_type = self.reading.type_of(text[9:-1], at + 9)
            else:
                self.read_parameter_facts(parameter, self.reading.piece(read_attributes, text, at), at)

    def read_parameter_facts(self, parameter: Parameter, facts: dict[str, Any], at: int) -> None:
        for key, value in facts.items():
            if key == "kind" and str(value) in _KINDS:
                parameter.kind = str(value)
            elif key == "trainable" and isinstance(value, bool):
                parameter.trainable = value
            else:
                self.reading.fail(f"a parameter has no fact '{key}: {value}'", at)

    # Graphs ----------------------------------------------------------------------------------------------

    def read_subgraph(self, item: list[Any]) -> None:
        head, _, *nodes, result = item
        match = _SUBGRAPH.match(head)
        assert match is not None
        graph = Graph(name_of(match.group(1)))
        if graph.name in self.names:
            self.reading.fail(f"the graph @{graph.name} stands twice", head.start_pos)
        if self.graph_attrs:
            graph.attrs = self.graph_attrs
        self.graph_attrs = None
        self.graphs.append(graph)
        self.reading.heads[graph] = head.start_pos
        references = OPERAND.findall(match.group(2))
        types = self.types_before or []
        if not self.reading.opaque:
            self.take_parameters(graph, references, head.start_pos)
            references = list[str]()
        for i, reference in enumerate(references):
            type = read_foreign_type(types[i]) if i < len(types) else UNKNOWN_TYPE
            name = name_of(reference.split("_", 1)[1]) if "_" in reference else reference
            graph.parameters.append(self.reading.new_parameter(reference, name, type, head.start_pos))
        values = self.values[graph.name] = dict[str, Value]()
        for node in nodes:
            self.nodes.read_node(graph, values, node)
        self.nodes.read_result(graph, values, result)
        self.names[graph.name] = {node.name for node in graph.nodes}
        self.reading.parameter_names.clear()

    def take_parameters(self, graph: Graph, references: list[str], at: int) -> None:
        """Give a graph the parameters with lines between the previous graph and its own head."""
        self.reading.visible = lines = self.reading.lines
        self.reading.lines = dict[str, Parameter]()
        if references or len(self.graphs) > 1:
            check_parameters(self.reading, graph, references, lines, at)
        graph.parameters = list(lines.values())
