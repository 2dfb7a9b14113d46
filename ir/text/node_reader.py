"""This module makes the nodes and the results of a graph from the items of the grammar."""

from __future__ import annotations

import re
from typing import Any

from mspc.ir.graph import Constant, Graph, Node, Parameter, Value
from mspc.ir.opaque import UNKNOWN_TYPE, GraphReference, Literal, OpaqueOp
from mspc.ir.text.comments import read_trailer
from mspc.ir.text.facts import NODE, PHASES, mistake
from mspc.ir.text.fragments import read_attributes, read_layouts
from mspc.ir.text.reading import GROUP, OPERAND, QUOTED, ForwardReference, GraphTextReader
from mspc.ir.text.source_text import name_of
from mspc.ir.text.values import operand_type_text
from mspc.ir.types import TensorType, Type

_CALLEE = r"(?:PrimFunc_)?(call @[^\s(]+|[A-Za-z_]\w*|%\d+)(?:\[@[^\"\n]*?\])?"
_NODE = re.compile(rf"(%\d+)(?:\(({QUOTED}|[^()\n]+)\))? = {_CALLEE}\(")
_FORWARD = re.compile(rf"\{{gradient_of: (?:@({QUOTED}|[^\s:\"]+):)?(%\d+)(?:\.(\d{{1,9}}))?\}}\Z")
_NO_OP = OpaqueOp("")


class NodeReader:
    """Reads the lines of nodes of one file. Constants that are equal to the bit are one object, as they are behind the
    pass `simplify`: passes recognise operands that are the same by it.

    together: parameters that stand on one line, by how the first is referred to; common: that, by how all are.
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
            notes = ("it stands below the node: `: (<..>) -> (<..>)`",)
            self.reading.fail(f"{callee} has no line of types", at, notes)
        ins, outs = self.reading.read_types(types)
        if outs is None or len(outs) != 1:
            self.reading.fail(f"{callee} needs the type of its one result behind ->", types.start_pos)
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
                value = values.get(match.group()) or self.reading.visible_parameter(match.group())
                if value is None:
                    self.reading.unknown_value(match.group(), item.start_pos + match.start())
                found.append(value)
        return found

    def operand(self, values: dict[str, Value], item: Any, at: int) -> Value:
        if type(item) is str and item.startswith("%"):
            value = values.get(item)
            if value is None:
                self.reading.fail(f"unknown value {item}", at)
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
                self.reading.fail(f"input {i} of {node.label} is {value.type}, but the line of types says {told}", at)

    def read_group(self, graph: Graph, node: Node, label: str | None, text: str, at: int) -> None:
        if label == "cnode_attrs: " or label == "cnode_primal_attrs: ":
            attrs = self.reading.piece(read_attributes, text, at)
            if not self.reading.opaque:
                self.check_facts(attrs, at)
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
            from mspc.ir.text.borders import read_regions

            read_regions(self.reading, graph, node, text, at)
        elif text.startswith("{layout: "):
            layouts = self.reading.piece(read_layouts, text[9:-1], at + 9)
            node.layout = self.reading.placement(layouts, node.type, at + 9)
        elif text.startswith("{in_layouts: "):
            node.in_layouts = self.reading.piece(read_layouts, text[13:-1], at + 13)
            self.check_in_layouts(node, at + 13)
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

    def check_facts(self, attrs: dict[str, Any], at: int) -> None:
        for key, value in attrs.items():
            wrong = mistake(NODE, key, value)
            if wrong:
                self.reading.fail(wrong, at)

    def check_in_layouts(self, node: Node, at: int) -> None:
        layouts = node.in_layouts or ()
        if len(layouts) != len(node.inputs):
            self.reading.fail(f"{len(layouts)} layouts for {len(node.inputs)} operands", at)
        for i, (value, layout) in enumerate(zip(node.inputs, layouts, strict=True)):
            if layout is not None and isinstance(value.type, TensorType):
                self.reading.placement((layout,), value.type, at + i)
