"""The printer of graphs as text, in the two-line node form of MindSpore's dumps.

docs/reference/ir-format.md specifies it.

The text is deterministic: numbers follow the run order, attributes their declaration; no addresses, no times.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import field
from functools import lru_cache
from itertools import count
from json.encoder import encode_basestring, encode_basestring_ascii
from typing import Any, cast

import numpy as np

from mspc.ir.graph import Constant, Graph, Node, OpLike, Parameter, Value
from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Layout, NamedLayout
from mspc.ir.opaque import GraphReference, Literal, Module, Symbol
from mspc.ir.types import DType, OpaqueType, StackType, TensorType, TupleType, real_of

_INDENT = "      "


@dataclass
class SharedTexts:
    """Texts that graphs share, by the ids of their objects. Each entry holds its object, so that the id is not reused.

    operators: the attributes of operators. nodes: for nodes that are in several graphs unchanged, the rest of the first
    line after the operands, and the other lines.
    """

    operators: dict[int, tuple[OpLike, str]] = field(default_factory=dict[int, "tuple[OpLike, str]"])
    nodes: dict[int, tuple[Node, str, str]] = field(default_factory=dict[int, "tuple[Node, str, str]"])
    _alike: dict[int, tuple[Node, Node]] = field(default_factory=dict[int, "tuple[Node, Node]"])

    def write_alike(self, node: Node, other: Node) -> None:
        """Use the texts of node `other` for `node`."""
        _, first = self._alike.get(id(other), (other, other))
        self._alike[id(node)] = node, first

    def place(self, node: Node) -> int:
        """Return the key in `nodes` for the texts of a node."""
        found = self._alike.get(id(node))
        return id(node if found is None else found[1])


def print_graph(graph: Graph) -> str:
    """Return the text of one graph; `mspc.ir.text.parser.parse` reads it back to an equal graph. Raise TypeError if an
    attribute has a value without a text form, and KeyError if a node reads a value that is not in the graph."""
    return print_module(Module(graph.name, graph.graphs()))


def print_module(module: Module) -> str:
    """Return the text of a file with one or more graphs."""
    return "\n".join(_module_lines(module)[0])


class OpenText:
    """The text of a graph with the graph's attributes and the first lines of some nodes left open, so that graphs that
    differ only there share the rest of the text.

    is_open: whether a node's operator or constants are filled in later; its types and its position are fixed. known:
    texts that other graphs share; new ones are added.
    """

    def __init__(
        self, graph: Graph, is_open: Callable[[Node], bool], known: SharedTexts | None = None
    ) -> None:  # fmt: skip
        lines, writers = _module_lines(Module(graph.name, graph.graphs()), is_open, known)
        self._parts: list[str] = []
        self._open: list[tuple[Node, _GraphWriter] | None] = [None]
        first = 0
        header = writers[0].header
        spaces = [(header, header, None)]
        spaces += [(at, at + 1, (node, writer)) for writer in writers for node, at in writer.left_open.items()]
        for begin, end, place in spaces:
            if place is not None:
                self._open.append(place)
            self._parts.append("".join([f"{line}\n" for line in lines[first:begin]]))
            first = end
        self._last = "\n".join(lines[first:])

    def text(self, attrs: Mapping[str, Any], filled: Callable[[Node], Node]) -> str:
        """Return the text of the graph with these attributes and with every open node replaced by `filled(node)`, which
        has the same operands except for constants."""
        found: list[str] = []
        for part, place in zip(self._parts, self._open, strict=True):
            lines = _attribute_lines(attrs) if place is None else [place[1].head(filled(place[0]), place[0])]
            found += [part, "".join([f"{line}\n" for line in lines])]
        return "".join([*found, self._last])


def _module_lines(
    module: Module, is_open: Callable[[Node], bool] | None = None, known: SharedTexts | None = None
) -> tuple[list[str], list[_GraphWriter]]:
    """Return (the lines of a file, the writers of its graphs). With `is_open` the attributes are left out as well."""
    main = module.main
    texts = SharedTexts() if known is None else known
    lines = [f"#IR entry      : @{name_text(module.entry)}"]
    if module.dialect:
        lines.append(f"#IR dialect    : {module.dialect}")
    lines += [f"#Total subgraph: {len(module.graphs)}", "", "#attrs         :"]
    header = len(lines)
    lines += _attribute_lines(main.attrs) if is_open is None else []
    lines += [f"#Total params  : {len(main.parameters)}", ""]
    numbers_in: dict[Graph, dict[Parameter, int]] = {}
    first = 1
    for graph in [main, *(g for g in module.graphs if g is not main)]:
        numbers_in[graph] = dict(zip(graph.parameters, count(first), strict=False))
        first += len(graph.parameters)
    together: dict[Parameter, list[Parameter]] = {}
    common: dict[Value, str] = {}
    if not module.dialect and any(isinstance(node.type, StackType) for node in main.nodes):
        from mspc.ir.text.families import families  # late: few graphs have stacks

        for first_one, (members, name) in families(main).items():
            together[first_one] = members
            common[first_one] = f"%para{numbers_in[main][first_one]}_{name}"
    hidden = {member for members in together.values() for member in members[1:]}
    for parameter in main.parameters:
        if parameter not in hidden:
            name = common.get(parameter) or _parameter_name(parameter, numbers_in[main][parameter])
            lines.append(f"{name}: {_parameter_text(parameter, name.partition('_')[2])}")
    writers: list[_GraphWriter] = []
    elsewhere: dict[Node, str] = {}  # forward nodes of gradient nodes of other graphs, as `@graph:%3`
    if len(module.graphs) > 1:
        named = {node.forward for graph in module.graphs for node in graph.nodes}
        elsewhere = {
            node: f"@{name_text(graph.name)}:%{number}"
            for graph in module.graphs for number, node in enumerate(graph.nodes) if node in named
        }  # fmt: skip
    for graph in module.graphs:
        lines.append("")
        if graph is not main and graph.attrs:
            lines += ["subgraph attr:", *_attribute_lines(graph.attrs)]
        numbers = numbers_in[graph]
        if graph is not main and not module.dialect:
            lines += [f"{_parameter_name(p, n)}: {_parameter_text(p, name_text(p.name))}" for p, n in numbers.items()]
        if graph is main:
            lines.append(f"subgraph @{name_text(graph.name)}() {{")
        else:
            types = ", ".join(type_text(p.type) for p in graph.parameters)
            operands = ", ".join(_parameter_name(p, numbers[p]) for p in graph.parameters)
            if module.dialect:
                lines.append(f"# Parameters: {len(graph.parameters)}, ({types})")
            lines.append(f"subgraph @{name_text(graph.name)}({operands}) {{")
        every = (item for each in numbers_in.values() for item in each.items())
        seen = dict(every) if module.dialect else numbers
        writer = _GraphWriter(graph, seen, lines, header, elsewhere, together, common, texts)
        writer.write(is_open)
        writers.append(writer)
        lines.append("}")
    lines.append("")
    return lines, writers


def _parameter_name(parameter: Value, number: int) -> str:
    return f"%para{number}_{name_text(parameter.name)}"


class _GraphWriter:
    """Writer of the nodes of one graph to `lines`; it caches the texts of call stacks that nodes share.

    header: the line at which the attributes of the file's main graph begin. left_open: the lines of open nodes.
    elsewhere: names of forward nodes in other graphs. together: parameters on one line, by the first; common: their
    common name, by the first.
    """

    def __init__(
        self, graph: Graph, parameters: Mapping[Parameter, int], lines: list[str], header: int,
        elsewhere: Mapping[Node, str], together: dict[Parameter, list[Parameter]],
        common: Mapping[Value, str], texts: SharedTexts,
    ) -> None:  # fmt: skip
        self.graph = graph
        self.lines = lines
        self.header = header
        self.elsewhere = elsewhere
        self.together = together
        self.common = common
        self.left_open: dict[Node, int] = {}
        self.parameters = parameters
        self.names: dict[Value, str] = {}
        for number, node in enumerate(graph.nodes):
            self.names[node] = f"%{number}"
        self.trailers: dict[tuple[str, int], str] = {}
        self.texts = texts
        self.operand_types: dict[int, str] = {}
        """Texts of the types of operands by the ids of the types, as their hashes are slow."""
        self.result_types: dict[int, str] = {}

    def operand(self, value: Value) -> str:
        name = self.names.get(value)
        if name is not None:
            return name
        if isinstance(value, Parameter) and value in self.parameters:  # lazily: few of thousands are read singly
            name = self.names[value] = _parameter_name(value, self.parameters[value])
            return name
        if isinstance(value, Constant):
            return constant_text(value)
        if isinstance(value, Literal):
            return value_text(value.value)
        raise KeyError(f"{value!r} is not in the graph {self.graph.name}")

    def write(self, is_open: Callable[[Node], bool] | None = None) -> None:
        append = self.lines.append
        written = self.texts.nodes
        for node in self.graph.nodes:
            place = self.texts.place(node)
            known = written.get(place)
            if known is not None:
                groups, others = known[1:]
            elif is_open is not None and is_open(node):
                self.left_open[node] = len(self.lines)
                append("")
                append(self.others(node))
                continue
            else:
                groups, others = self.groups(node), self.others(node)
                if is_open is not None and node.forward is None and not self.together:  # those name other nodes
                    written[place] = node, groups, others
            append(self.beginning(node, node) + groups)
            append(others)
        returned = ", ".join([self.operand(v) for v in self.graph.results])
        append(f"  Return(({returned}))" if self.graph.returns_tuple else f"  Return({returned})")
        append(f"{_INDENT}: ({', '.join(type_text(v.type) for v in self.graph.results)})")

    def others(self, node: Node) -> str:
        """Return the lines of a node after the first one: types, scope, and source."""
        operands, results = self.operand_types, self.result_types
        for value in node.inputs:
            if id(value.type) not in operands:
                operands[id(value.type)] = operand_type_text(value.type)
        if self.together and self.shown_as_one(node):
            types = f"{type_text(node.inputs[0].type)}*{len(node.inputs)}"
        else:
            types = ", ".join([operands[id(v.type)] for v in node.inputs])
        made = results.get(id(node.type))
        if made is None:
            made = results[id(node.type)] = type_text(node.type)
        trailer = self.trailer(node)
        return f"{_INDENT}: ({types}) -> ({made})" + (f"\n{trailer}" if trailer else "")

    def head(self, node: Node, place: Node) -> str:
        """Return the first line of a node that replaces the graph's node `place`."""
        return self.beginning(node, place) + self.groups(node)

    def beginning(self, node: Node, place: Node) -> str:
        """Return the part of this line before the groups in braces."""
        head = f"  {self.names[place]}({name_text(node.name)})" if node.name else f"  {self.names[place]}"
        if self.together and self.shown_as_one(place):
            inputs = self.common[place.inputs[0]]
        else:
            names = self.names
            inputs = ", ".join([names.get(v) or self.operand(v) for v in node.inputs])
        return f"{head} = {node.op.name}({inputs})"

    def shown_as_one(self, node: Node) -> bool:
        """Return whether a node's operands are written as one common name."""
        first = node.inputs[0] if node.inputs and isinstance(node.type, StackType) else None
        return isinstance(first, Parameter) and self.together.get(first) == node.inputs

    def groups(self, node: Node) -> str:
        text = f" {{instance name: {name_text(node.instance)}}}" if node.instance else ""
        if node.regions:
            text += f" {{regions: {', '.join(f'@{name_text(region.name)}' for region in node.regions)}}}"
        attributes = self.attributes(node.op)
        if node.in_strategy is not None or node.out_strategy is not None:
            sides = (("in", node.in_strategy), ("out", node.out_strategy))
            given = [strategy_text(side, strategy) for side, strategy in sides if strategy is not None]
            attributes = ", ".join([*([attributes] if attributes else []), *given])
        if attributes:
            text = f"{text} primitive_attrs: {{{attributes}}}"
        if node.attrs or node.phase != "forward":
            entries = [] if node.phase == "forward" else [f"phase: {name_text(node.phase)}"]
            assert "phase" not in node.attrs, "the phase is a field of the node"
            entries += _attributes_text(node.attrs)
            text = f"{text} cnode_attrs: {{{', '.join(entries)}}}"
        if node.forward is not None and (forward := self.names.get(node.forward) or self.elsewhere.get(node.forward)):
            index = f".{node.forward_input}" if node.forward_input >= 0 else ""
            text += f" {{gradient_of: {forward}{index}}}"
        if node.place:
            text += f" {{place: {name_text(node.place)}}}"
        if node.strategy is not None:
            text += f" {{in_strategy: {value_text(node.strategy)}}}"
        if node.in_layouts is not None:
            text += f" {{in_layouts: {layouts_text(node.in_layouts)}}}"
        if node.layout is not None:
            text += f" {{layout: {layouts_text(node.layout)}}}"
        return text

    def attributes(self, op: OpLike) -> str:
        """Return the text of an operator's attributes, or "". It is cached, since many nodes may share an operator."""
        found = self.texts.operators.get(id(op))
        if found is None:
            found = self.texts.operators[id(op)] = op, ", ".join(_attributes_text(op.attributes()))
        return found[1]

    def trailer(self, node: Node) -> str:
        key = (node.scope, id(node.frames))
        text = self.trailers.get(key)
        if text is None:
            lines = [f"{_INDENT}# scope: ({name_text(node.scope)})"] if node.scope else []
            for frame in node.frames:
                source = frame.text.replace("\n", " ").replace("\r", " ")
                place = f" {frame.column}~{frame.end_column}" if frame.column or frame.end_column else ""
                lines.append(f"{_INDENT}# In file {frame.file}({frame.line})/{source}/{place}")
            text = "\n".join(lines)
            self.trailers[key] = text
        return text


def _attribute_lines(attrs: Mapping[str, Any]) -> list[str]:
    return [f"{key_text(key)} : {value_text(value)}" for key, value in attrs.items()]


def _attributes_text(attributes: Mapping[str, Any]) -> list[str]:
    return [f"{key_text(key)}: {value_text(value)}" for key, value in attributes.items()]


def strategy_text(side: str, strategy: Iterable[Any]) -> str:
    """Return `in_strategy: ((2, 4), (4, 1))`, or `in_layout: ...` for layouts; `side` is "in" or "out"."""
    entries = tuple(strategy)
    kind = "layout" if any(isinstance(entry, NamedLayout) for entry in entries) else "strategy"
    return f"{side}_{kind}: {value_text(entries)}"


def _parameter_text(parameter: Parameter, key: str) -> str:
    tensor = parameter.type
    text = type_text(tensor)
    if parameter.kind != "input" and isinstance(tensor, TensorType):
        shape = ", ".join(map(str, tensor.shape))
        text = f"<Ref[Tensor[{tensor.dtype}]], ({shape}), ref_key={key}>  :  has_default"
    entries: list[str] = []
    if parameter.kind != ("parameter" if "<Ref[" in text else "input"):
        entries.append(f"kind: {name_text(parameter.kind)}")
    if parameter.trainable:
        entries.append("trainable: true")
    groups = f" {{{', '.join(entries)}}}" if entries else ""
    if parameter.attrs:
        groups += f" cnode_attrs: {{{', '.join(_attributes_text(parameter.attrs))}}}"
    if parameter.layout is not None:
        groups += f" {{layout: {layouts_text(parameter.layout)}}}"
    if parameter.global_type is not None:
        groups += f" {{global: {type_text(parameter.global_type)}}}"
    return text + groups


# Writing of attribute values, strings, layouts and constants in the text form -------------------------


LONGEST_PLAIN_LIST = 64
"""A longer list of equally spaced integers is written start:stop:step."""
LARGEST_PLAIN_TENSOR = 16
"""A larger constant with equal elements is written as that one element."""

_WORD = re.compile(r"[A-Za-z_]\w*\Z", re.ASCII)
_NAME = re.compile(r"[\w.\-/\[\]$]+\Z")
_SYMBOL = re.compile(r"[A-Za-z_][\w.\[\]]*\Z", re.ASCII)
_ESCAPES = {ord(c): f"\\u{ord(c):04x}" for c in "{}()<>,"}
"""Characters that are escaped in names, so that a bracket in the text always is structure."""
RESERVED = frozenset({"true", "false", "None", "inf", "nan", "none"})


def quoted(text: str) -> str:
    """Return the text in double quotes, on one line, with the escapes of JSON."""
    plain = encode_basestring(text)
    return plain if plain.isprintable() else encode_basestring_ascii(text)


@lru_cache(maxsize=1 << 16)
def name_text(name: str) -> str:
    """Return the text of a name: bare if it consists of letters, digits and `_ . - / [ ] $`, else quoted."""
    if _NAME.match(name):
        return name
    return quoted(name).translate(_ESCAPES)


@lru_cache(maxsize=1 << 12)
def key_text(key: str) -> str:
    """Return the text of an attribute's key: bare if it is a word, else quoted."""
    return key if _WORD.match(key) else quoted(key)


def value_text(value: Any) -> str:
    """Return the text of an attribute's value; it reads back to an equal value. Raise TypeError if values of this kind
    have no text form."""
    writer = _WRITERS.get(cast("type[Any]", type(value)))
    if writer is not None:
        return writer(value)
    if isinstance(value, np.generic):
        return value_text(value.item())
    for kind, text in _WRITERS.items():
        if isinstance(value, kind):
            return text(value)
    raise TypeError(f"an attribute of type {type(value).__name__} has no text: {value!r}")


def _tuple_text(value: tuple[Any, ...] | list[Any]) -> str:
    if len(value) > LONGEST_PLAIN_LIST and all(type(v) is int for v in value) and (step := value[1] - value[0]):
        stop = value[0] + step * len(value)
        if tuple(value) == tuple(range(value[0], stop, step)):
            return f"{value[0]}:{stop}:{step}"
    return f"({', '.join([value_text(v) for v in value])})"


def _symbol_text(value: Symbol) -> str:
    if _SYMBOL.match(value.text) and value.text not in RESERVED:
        return value.text
    return f"`{quoted(value.text)}"


def _named_layout_text(value: NamedLayout) -> str:
    entries = (("device_matrix", value.device_matrix), ("tensor_map", value.tensor_map))
    names = ", ".join(name_text(name) for name in value.alias_name)
    return "{" + "".join(f"{k}: {value_text(v)}, " for k, v in entries) + f"alias_name: ({names})}}"


def _float_text(value: float) -> str:
    return repr(value) if math.isfinite(value) else str(value)


def _bool_text(value: bool) -> str:
    return "true" if value else "false"


_WRITERS: dict[type, Callable[[Any], str]] = {
    bool: _bool_text, int: str, float: _float_text, str: quoted, tuple: _tuple_text, list: _tuple_text,
    type(None): str, DType: str, NamedLayout: _named_layout_text, Layout: lambda layout: f"Layout{layout_text(layout)}",
    Symbol: _symbol_text, GraphReference: str, TensorType: str, TupleType: str, OpaqueType: str,
    Constant: lambda constant: constant_text(constant), np.ndarray: lambda array: constant_text(Constant(array)),
}  # fmt: skip


@lru_cache(maxsize=65536)
def layout_text(layout: Layout | None) -> str:
    """Return a layout's text, `(2, 4) [0, -] sum[1]`, or `none`."""
    return "none" if layout is None else str(layout)


def layouts_text(layouts: Any) -> str:
    """Return the text of one layout, or of several separated by `;`; an inner tuple is in parentheses."""
    if not isinstance(layouts, tuple):
        return layout_text(layouts)
    entries = cast("tuple[Any, ...]", layouts)
    return "; ".join(f"({layouts_text(e)})" if isinstance(e, tuple) else layout_text(e) for e in entries)


@lru_cache(maxsize=8192)
def type_text(type: Any) -> str:
    """Return the type's text, which is cached because networks repeat the same types."""
    return str(type)


LONG_TUPLE = 32
"""Elements of a tuple from which an operand's type is written as their number only."""


@lru_cache(maxsize=8192)
def operand_type_text(type: Any) -> str:
    """Return the text of an operand's type. A long tuple is written with its number of elements, `<Tuple of 90>`, since
    the line of the node that makes it has them all."""
    if isinstance(type, TupleType) and len(type.elements) >= LONG_TUPLE:
        return f"<Tuple of {len(type.elements)}>"
    return type_text(type)


def constant_text(constant: Constant) -> str:
    """Return `Tensor(shape=[2], dtype=Int32, value=[1, 2])`; all elements read back to the same bits."""
    array = constant.value
    tensor = constant.tensor_type
    shape = ", ".join(map(str, tensor.shape))
    flat = array.reshape(-1)
    is_alike = False
    if flat.size > LARGEST_PLAIN_TENSOR:
        raw = np.ascontiguousarray(flat).view(np.uint8).reshape(flat.size, -1)
        is_alike = bool((raw == raw[0]).all())
    if is_alike:
        value = element_text(flat[0], tensor.dtype)
    else:
        value = _nested_text([element_text(v, tensor.dtype) for v in flat], tensor.shape)
    return f"Tensor(shape=[{shape}], dtype={tensor.dtype}, value={value})"


def _nested_text(elements: list[str], shape: tuple[int, ...]) -> str:
    if not shape:
        return elements[0]
    if len(shape) == 1 or not elements:
        return f"[{', '.join(elements)}]"
    step = len(elements) // shape[0]
    rows = [elements[i : i + step] for i in range(0, len(elements), step)]
    return f"[{', '.join(_nested_text(row, shape[1:]) for row in rows)}]"


def element_text(element: Any, dtype: DType) -> str:
    """Return the shortest text of one element that reads back to the same bits: `nan:HEX` for an unusual NaN, and
    `1.0&-2.0` for the parts of a complex number."""
    if dtype.kind == "b":
        return _bool_text(bool(element))
    if dtype.is_complex:
        part = real_of(dtype)
        return f"{element_text(element.real, part)}&{element_text(element.imag, part)}"
    if dtype.kind != "f":
        return str(int(element))
    bits = element.tobytes()
    if element != element:
        return "nan" if bits == _canonical_nan(dtype) else f"nan:{bits[::-1].hex()}"
    text = _float_text(float(element)) if dtype.itemsize == 8 else _short_float_text(element)
    return text if dtype.numpy.type(float(text)).tobytes() == bits else _float_text(float(element))


@lru_cache(maxsize=8)
def _canonical_nan(dtype: DType) -> bytes:
    return dtype.numpy.type("nan").tobytes()


def _short_float_text(element: Any) -> str:
    text = str(element)
    if element.dtype.name != "bfloat16":
        return text
    for digits in range(1, 5):
        text = repr(float(f"{float(element):.{digits}g}"))
        if element.dtype.type(float(text)) == element:
            break
    return text
