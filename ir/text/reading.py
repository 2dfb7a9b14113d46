"""The readers of one file share this state: its text, its dialect, and the values and types that they have met so far.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, cast

from mspc.ir.graph import Graph, Node, Parameter
from mspc.ir.opaque import GraphReference
from mspc.ir.text.fragments import read_foreign_type, read_type
from mspc.ir.text.limits import LONGEST_LIST, number_of
from mspc.ir.text.operator_reader import OperatorReader, Registry
from mspc.ir.text.source_text import SourceText
from mspc.ir.types import TensorType, TupleType, Type

if TYPE_CHECKING:
    from mspc.ir.text.pieces import TextToken

QUOTED = r'"(?:[^"\\\n]|\\.)*+"'
OPERAND = re.compile(rf"%(?:para\d+_{QUOTED}|[\w.\-/\[\]$]+(?:{{\d+\.\.\d+}}[\w.\-/\[\]$]*)?)")
GROUP = re.compile(r'(\w+: ?)?(\{(?:[^{}"]++|"(?:[^"\\]|\\.)*+"|\{(?:[^{}"]++|"(?:[^"\\]|\\.)*+")*+\})*+\})')
_NUMBER = re.compile(r"(%para\d+)_")
_TYPE = re.compile(r"(<[^<>\n]*>)(?:\*(\d{1,9}))?")
_FOREIGN_HEADER = re.compile(r"^(?:# IR entry:|subgraph instance: )", re.MULTILINE)


class ForwardReference(NamedTuple):
    """What a node says of the node that it is the gradient of: `{gradient_of: @graph:%3.0}`, of the input 0 of the node
    %3 of that graph; without the graph's name one of its own graph. index: -1 where it names no input."""

    node: Node
    graph: str
    number: str
    index: int
    at: int


class GraphTextReader:
    """The state of reading one file from text to graphs.

    foreign: MindSpore wrote it. opaque: its operators, operands and types are not mspc's. frames: source spans are
    read too. parameter_names: of the graph that is read. graphs: so far; heads: where each begins. lines: parameters
    that stand above the next graph. visible: parameters that the graph which is read may name. references, forwards,
    regions: what can be resolved once the whole file is read.
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
        """Parameters that stand on one line, by how they are referred to."""
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

    def visible_parameter(self, reference: str) -> Parameter | None:
        """The parameter that a text of this name means in the graph that is read. MindSpore names one by its number
        where its line has another name."""
        return self.any_parameter(reference) if self.opaque else self.visible.get(reference)

    def any_parameter(self, reference: str) -> Parameter | None:
        """The parameter of any graph that a text of MindSpore's means by this name."""
        found = self.parameters.get(reference)
        if found is None and self.opaque and (number := _NUMBER.match(reference)):
            found = self.numbered.get(number[1])
        return found

    def unknown_value(self, reference: str, at: int) -> NoReturn:
        """Fail at an operand that is nothing in the graph that is read."""
        notes: tuple[str, ...] = ()
        if reference in self.parameters and len(self.graphs) > 1:
            notes = ("it is of another graph; a node hands in what its graphs read from outside, with its operands",)
        self.fail(f"unknown value {reference}", at, notes)

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
        """The layout of a value of this type: one, or a tuple for a tuple."""
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
        """Fail where this is no layout of a tensor of this type."""
        if isinstance(layout, tuple):
            self.fail(f"{len(cast('tuple[Any, ...]', layout))} layouts for one tensor", at)
        if layout is not None and isinstance(type, TensorType) and len(layout.dims) != type.rank:
            self.fail(f"the layout {layout} has {len(layout.dims)} dimensions, the tensor {type.rank}", at)
