"""Readers of the commonest texts of a file without grammar.lark: whole lines, attributes, types, layouts and constants.

Making the grammar's parser takes longer than reading most graphs here, and the parser takes ten times as long for the
lines of a large graph. Each function returns None for any text not in the form of `mspc.ir.text.printer`, mistakes
included: the grammar reads those, and its messages explain them.
"""

from __future__ import annotations

import math
import re
from functools import lru_cache
from typing import Any

import numpy as np

from mspc.ir.graph import Constant
from mspc.ir.opaque import Symbol
from mspc.ir.text.limits import LARGEST_CONSTANT
from mspc.ir.text.source_text import Malformed, TextToken, dtype_called, string_of
from mspc.ir.types import DTYPES, DType, real_of

_WORDS: dict[str, Any] = {"true": True, "false": False, "None": None, **DTYPES}
_NUMBERS = ("inf", "nan")
_INTEGER = r"-?\d{1,40}(?![\w.:\-])"
_FLOAT = r"-?\d{1,18}(?:\.\d{0,18}(?:e[+-]?\d{1,3})?|e[+-]?\d{1,3})(?![\w.])"
_VALUE = re.compile(rf'(\()|({_INTEGER})|("(?:[^"\\\n]|\\.)*+")|([A-Za-z_]\w*)(?![\w.\[(:])|({_FLOAT})', re.ASCII)
_KEY = re.compile(r"([A-Za-z_]\w*): ", re.ASCII)
_SIZES = r"\((?:\d{1,18}(?:, \d{1,18})*)?\)"
_TENSOR_TYPE = re.compile(rf"<(?:Ref\[)?Tensor\[(\w+)\](\]?), ({_SIZES})>\Z", re.ASCII)
_ELEMENT = r"Tensor\[(\w+)\](?:\*(\d{1,9}))?"
_ONE_ELEMENT, _ONE_SHAPE, _NUMBER = (re.compile(text, re.ASCII) for text in (_ELEMENT, _SIZES, r"\d+"))
_PLAIN_ELEMENT = _ELEMENT.replace("(\\", "(?:\\")
_TUPLE = re.compile(
    rf"<Tuple\[({_PLAIN_ELEMENT}(?:, ?{_PLAIN_ELEMENT})*)\], TupleShape\(({_SIZES}(?:, {_SIZES})*)\)>\Z", re.ASCII
)
_AXES = r"\d{1,18}(?:\.\d{1,18})*"
_DIMENSION = rf"(?:-|{_AXES})"
_LAYOUT = re.compile(
    rf"\((\d{{1,18}}(?:, \d{{1,18}})*)\) \[((?:{_DIMENSION}(?:, {_DIMENSION})*)?)\]"
    r"(?: ([a-z]+)\[(\d{1,18}(?:, \d{1,18})*)\])?\Z", re.ASCII,
)  # fmt: skip
_DEEP = 8
"""Nesting of brackets from which the grammar reads a value."""


def plain_attributes(text: str) -> dict[str, Any] | None:
    """Return the dict of `{key: value, ...}` with numbers, words, strings, and tuples of these as values."""
    if text == "{}":
        return {}
    found: dict[str, Any] = {}
    at, between = 1 if text.startswith("{") else len(text), ", "
    while between == ", ":
        key = _KEY.match(text, at)
        value = _value(text, key.end(), 0) if key is not None else None
        if key is None or value is None or key[1] in found:
            return None
        found[key[1]], at = value
        between = text[at : at + 2]
        at += 2
    return found if between == "}" else None


def alone_value(text: str) -> Any:
    """Return a tuple with the one value of the text."""
    value = _value(text, 0, 0)
    return (value[0],) if value is not None and value[1] == len(text) else None


def _value(text: str, at: int, depth: int) -> tuple[Any, int] | None:
    """Return (value, end) for the value that begins at `at`, a character index."""
    match = _VALUE.match(text, at)
    if match is None:
        return None
    kind, at = match.lastindex, match.end()
    if kind == 1:
        return _members(text, at, depth + 1) if depth < _DEEP else None
    word = match[kind or 0]
    if kind == 4:
        return None if word in _NUMBERS else (_WORDS[word] if word in _WORDS else Symbol(word), at)
    return int(word) if kind == 2 else string_of(word) if kind == 3 else float(word), at


def _members(text: str, at: int, depth: int) -> tuple[tuple[Any, ...], int] | None:
    """Return (members, end) for a tuple, from the character after its opening bracket."""
    if text.startswith(")", at):
        return (), at + 1
    found: list[Any] = []
    while True:
        value = _value(text, at, depth)
        if value is None:
            return None
        found.append(value[0])
        at = value[1]
        if text.startswith(")", at):
            return tuple(found), at + 1
        if not text.startswith(", ", at):
            return None
        at += 2


def plain_tensor_type(text: str) -> tuple[str, list[str]] | None:
    """Return (element type, sizes) of `<Tensor[Float32], (2, 3)>` and `<Ref[Tensor[Float32]], (2, 3)>`."""
    match = _TENSOR_TYPE.match(text)
    if match is None or (match[2] == "]") != text.startswith("<Ref["):
        return None
    return match[1], _NUMBER.findall(match[3])


def plain_tuple_type(text: str) -> tuple[list[tuple[str, str]], list[list[str]]] | None:
    """Return (elements with repetitions, sizes) of `<Tuple[Tensor[Int8]*2], TupleShape((2), (3))>`; repetitions are ""
    for one."""
    match = _TUPLE.match(text)
    if match is None:
        return None
    return _ONE_ELEMENT.findall(match[1]), [_NUMBER.findall(shape) for shape in _ONE_SHAPE.findall(match[2])]


def plain_layout(text: str) -> tuple[list[str], list[str], str | None, list[str]] | None:
    """Return (mesh, dimensions, reduction, its axes) of `(2, 4) [0, -] sum[1]`; None and no axes for no reduction."""
    match = _LAYOUT.match(text)
    if match is None:
        return None
    mesh, dimensions, reduction, axes = match.groups()
    return mesh.split(", "), dimensions.split(", ") if dimensions else [], reduction, axes.split(", ") if axes else []


_QUOTED = r'"(?:[^"\\\n]|\\.)*+"'
_COMMENTS = r"(?:#[^\n]*(?:\n\s*|$))+"
_GROUPS = rf"(?:(?:\w+: ?)?\{{(?:[^{{}}\"\n]++|{_QUOTED}|\{{(?:[^{{}}\"\n]++|{_QUOTED})*+\}})*+\}}[ ]*)+"
_TYPES = r": \((?:<[^<>\n]*+>(?:\*\d+)?(?:, )?)*+\)(?: -> \(<[^<>\n]*+>\))?\s*"
_REFERENCE = rf"%(?:para\d+_{_QUOTED}|[\w.\-\/\[\]$]+(?:\{{\d+\.\.\d+\}}[\w.\-\/\[\]$]*)?)"
_REFERENCES = rf"{_REFERENCE}(?:, {_REFERENCE})*+"
_TENSOR = r"Tensor\(shape=\[[^\]\n]*\], dtype=\w+, value=[^()]*\)"
_OPERANDS = rf"(?:(?:{_REFERENCE}|{_TENSOR})(?:, (?={_REFERENCE}|{_TENSOR}))?+)*+"
_HEAD = rf"%\d+(?:\((?:{_QUOTED}|[^()\"\n]+)\))? = [A-Za-z_]\w*\("

_ANY_COMMENTS = re.compile(_COMMENTS)
_ATTRIBUTE_LINE = re.compile(rf"(?:{_QUOTED}[ ]*|[A-Za-z_][^:\n]*+):[^\n]*(?:\n\s*)?")
_PARAMETER = re.compile(
    rf"(%para\d+_(?:{_QUOTED}|[^\s:\"]*):)(?=[ ]) (<[^<>\n]*+>)(?:  (:  has_default))? ?({_GROUPS})?\n\s*"
)
_SUBGRAPH = re.compile(rf"(subgraph @(?:{_QUOTED}|[^\s(\"]+)\([^()\n]*\) \{{)\n\s*")
_NODE = re.compile(rf"({_HEAD})({_OPERANDS})\) ?({_GROUPS})?\n\s*({_TYPES})({_COMMENTS})?")
_RESULT = re.compile(rf"(Return\((\(?))({_OPERANDS})\)(\)?)\n\s*({_TYPES})\}}\s*")
_OPERAND = re.compile(rf"({_REFERENCES})|({_TENSOR})")
_FOREIGN = ("jit config {", "[const vector]")
"""Texts with another meaning in MindSpore's dumps."""


def own_items(text: str) -> list[Any] | None:
    """Return the items of a file as the grammar's rule `module` returns them, with an attribute's line as one token;
    None for a file that the grammar must read."""
    if any(words in text for words in _FOREIGN):
        return None
    items: list[Any] = []
    at = len(text) - len(text.lstrip())
    try:
        while at < len(text):
            at = _next_item(text, at, items)
    except (_OfTheGrammar, Malformed):
        return None
    return items


class _OfTheGrammar(Exception):
    """Error: the text differs from the printer's form, so the grammar must read it."""


def _next_item(text: str, at: int, items: list[Any]) -> int:
    """Append the item that begins at character `at`. Return the beginning of the next one."""
    if match := _ANY_COMMENTS.match(text, at):
        items.append(TextToken.of("COMMENTS", match[0], at))
    elif match := _PARAMETER.match(text, at):
        names = ("PARAMETER_HEAD", "TYPE", "HAS_DEFAULT", "GROUPS")
        items.append([_piece(match, group, name) for group, name in enumerate(names, 1)])
    elif match := _SUBGRAPH.match(text, at):
        subgraph: list[Any] = [_piece(match, 1, "SUBGRAPH_HEAD"), None]
        items.append(subgraph)
        return _rest_of_graph(text, match.end(), subgraph)
    elif match := _ATTRIBUTE_LINE.match(text, at):
        items.append(TextToken.of("ATTRIBUTE_LINE", match[0], at))
    else:
        raise _OfTheGrammar
    return match.end()


def _rest_of_graph(text: str, at: int, subgraph: list[Any]) -> int:
    """Append the nodes and the result. Return the beginning of the item after the graph."""
    while match := _NODE.match(text, at):
        subgraph.append([
            _piece(match, 1, "NODE_HEAD"), _operands(match, 2), _piece(match, 3, "GROUPS"), _piece(match, 4, "TYPES"),
            _piece(match, 5, "COMMENTS"),
        ])  # fmt: skip
        at = match.end()
    match = _RESULT.match(text, at)
    if match is None or len(match[2]) != len(match[4]):
        raise _OfTheGrammar
    head = _piece(match, 1, "RETURN_TUPLE" if match[2] else "RETURN")
    subgraph.append([head, _operands(match, 3), None, _piece(match, 5, "TYPES"), None])
    return match.end()


def _piece(match: re.Match[str], group: int, name: str) -> TextToken | None:
    text = match[group]
    return None if text is None else TextToken.of(name, text, match.start(group))


def _operands(match: re.Match[str], group: int) -> list[Any]:
    """Return the operands; consecutive references are one token."""
    text, at = match[group], match.start(group)
    if not text or "Tensor(" not in text:
        return [TextToken.of("REFERENCES", text, at)] if text else []
    found: list[Any] = []
    for operand in _OPERAND.finditer(text):
        references, tensor = operand.groups()
        found.append(
            TextToken.of("REFERENCES", references, at + operand.start()) if references else read_tensor(tensor)
        )
    return found


_CONSTANT = re.compile(r"Tensor\(shape=\[(.*?)\], ?dtype=(\w+), ?value=(.*)\)\Z", re.DOTALL)
_ONE_NUMBER = r"(?:nan:[0-9a-f]+|-?(?:inf|nan|\d+(?:\.\d*)?(?:e[+-]?\d+)?))"
_CONSTANT_ELEMENT = re.compile(rf"(?:{_ONE_NUMBER}(?:&{_ONE_NUMBER})?|true|false)\Z")


@lru_cache(maxsize=4096)
def read_tensor(text: str) -> Constant | Symbol:
    """Return the constant of `Tensor(shape=[..], dtype=.., value=..)`; a Symbol if the value is shortened. Raise
    Malformed."""
    match = _CONSTANT.match(text)
    assert match is not None
    dims, name, value = match.groups()
    dtype = dtype_called(name)
    sizes = [d.strip() for d in dims.split(",") if d.strip()]
    if not all(d.isascii() and d.isdigit() and len(d) < 19 for d in sizes):
        raise Malformed(f"[{dims}] is no shape")
    shape = tuple(map(int, sizes))
    if math.prod(shape) > LARGEST_CONSTANT:
        raise Malformed(f"a constant of shape {shape} is too large for a file")
    if "..." in value or "\n" in value:
        return Symbol(" ".join(text.split()))
    elements = value.replace("[", " ").replace("]", " ").replace(",", " ").split()
    if value.count("[") != value.count("]") or not all(map(_CONSTANT_ELEMENT.match, elements)):
        raise Malformed(f"{value} is no value of a constant")
    fill = len(elements) == 1 and "[" not in value
    if not fill and len(elements) != math.prod(shape):
        size = math.prod(shape)
        raise Malformed(f"the constant has {len(elements)} elements, but its shape {shape} has {size}")
    return Constant(_array(elements, dtype, shape, fill))


def _array(elements: list[str], dtype: DType, shape: tuple[int, ...], fill: bool) -> Any:
    try:
        flat = np.array([_element(e, dtype) for e in elements], dtype=dtype.numpy)
    except (OverflowError, ValueError):
        raise Malformed(f"a value of the constant is no {dtype}") from None
    return np.broadcast_to(flat, shape).copy() if fill and shape else flat.reshape(shape)


def _element(text: str, dtype: DType) -> Any:
    if dtype.kind == "b":
        return {"true": True, "1": True, "false": False, "0": False}[text] if text in _BOOLS else _bad(text)
    if dtype.is_complex:
        parts = [_element(part, real_of(dtype)) for part in text.split("&")]
        return np.array(parts, real_of(dtype).numpy).view(dtype.numpy)[0] if len(parts) == 2 else _bad(text)
    if dtype.kind != "f":
        return int(text)
    if text.startswith("nan:"):
        raw = bytes.fromhex(text[4:])[::-1]
        if len(raw) != dtype.itemsize:
            raise ValueError(text)
        return np.frombuffer(raw, dtype.numpy)[0]
    return dtype.numpy.type(float(text))


_BOOLS = frozenset({"true", "false", "1", "0"})


def _bad(text: str) -> Any:
    raise ValueError(text)
