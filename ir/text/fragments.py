"""Reading of small texts: attributes, layouts, values and types."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import lru_cache
from typing import Any, NamedTuple, cast

from mspc.ir.layout import REDUCTIONS, Layout, NamedLayout
from mspc.ir.opaque import GraphReference, Symbol
from mspc.ir.text.constants import read_tensor
from mspc.ir.text.limits import DEEPEST, LONGEST_LIST, MOST_LISTED, MOST_RANKS
from mspc.ir.text.scanner import QUOTED, Scanner, Token, mark, token, whole
from mspc.ir.text.source_text import Malformed, dtype_called, name_of, string_of
from mspc.ir.types import (
    DTYPES,
    OpaqueType,
    StackType,
    TensorType,
    TupleType,
    Type,
    is_too_large,
    product_exceeds,
)

COMMA, _SEMICOLON, _OPEN, CLOSE, _OPEN_BRACE, CLOSE_BRACE = map(mark, ",;(){}")
_OPEN_BRACKET, _CLOSE_BRACKET, _END_OF_TYPE, _COLON, _UNSHARDED = map(mark, "[]>:-")
_NO_LAYOUT = mark("none")

# Values


_KINDS = {
    "layout": r"Layout\([\d, ]*\) \[[\d., \-]*\](?: [a-z]+\[[\d, ]*\])?",
    "tensor": r"Tensor\(shape=\[[^\]\n]*\], ?dtype=\w+, ?value=[^()]*\)",
    "float": r"-?(?:\d+\.\d*(?:e[+-]?\d+)?|\d+e[+-]?\d+|inf|nan)(?![\w.])",
    "typed_number": r"(?:Bool|BF16|[IUF]\d+)\([^()\n]*\)",
    "dashed": r"\d+(?:-\d+)+",
    "progression": r"-?\d{1,18}:-?\d{1,18}:-?\d{1,18}",
    "integer": r"-?\d{1,40}(?![\w.:])",
    "string": QUOTED,
    "word": r"[A-Za-z_][\w.]*+(?:\[[^\[\]\n]*\])?",
    "symbol": f"`{QUOTED}",
    "graph_name": rf"@(?:{QUOTED}|[^\s,(){{}}\"]+)",
    "other_graph": r"\$\(@[^\s:()]+:[^\s()]+\)",
    "type": r"<[^<>\n]*+>",
    "brackets": r"[(\[{]",
}
"""Patterns of the kinds of values, in the order in which they are tried."""
_VALUE = Token(
    "a value", re.compile(rf"\s*(?:{'|'.join(f'(?P<{kind}>{pattern})' for kind, pattern in _KINDS.items())})")
)
_KEY = token("key", rf"'?[A-Za-z_]\w*+'?(?=:)|{QUOTED}(?=:)")
_TYPED_NUMBER = re.compile(r"(Bool|BF16|[IUF]\d+)\((.*)\)\Z")
_WORDS: dict[str, Any] = {"true": True, "false": False, "None": None, **DTYPES}
_NAMED_LAYOUT_KEYS = ("device_matrix", "tensor_map", "alias_name")


def read_next_value(scanner: Scanner, depth: int = 0) -> Any:
    """Return the value at the scanner's position. depth: the number of brackets around it. Raise Malformed."""
    found = scanner.need(_VALUE)
    kind = str(found.lastgroup)
    text, at = found[kind], found.start(kind)
    if kind != "brackets":
        return _VALUES[kind](text, at)
    if text == "{":
        return _named_layout(dict(_pairs(scanner))) if not scanner.match(CLOSE_BRACE) else Symbol("{}")
    if depth == DEEPEST:
        raise Malformed(_TOO_DEEP, at)
    return _members(scanner, CLOSE if text == "(" else _CLOSE_BRACKET, depth + 1)


_TOO_DEEP = f"brackets stand more than {DEEPEST} deep in brackets"


def _members(scanner: Scanner, close: Token, depth: int) -> tuple[Any, ...]:
    found: list[Any] = []
    while not scanner.match(close):
        if found:
            scanner.need(COMMA)
        found.append(read_next_value(scanner, depth))
    if sum(len(_entries(item)) for item in found) > LONGEST_LIST:
        raise Malformed(f"a tuple whose members have more than {LONGEST_LIST} members")
    return tuple(found)


def _pairs(scanner: Scanner) -> list[tuple[str, Any]]:
    """Return the pairs of key and value up to the closing brace."""
    found: list[tuple[str, Any]] = []
    while not found or scanner.match(COMMA):
        key = name_of(scanner.need(_KEY)[1].strip("'"))
        scanner.need(_COLON)
        found.append((key, read_next_value(scanner)))
    scanner.need(CLOSE_BRACE)
    return found


def _typed_number(text: str, at: int) -> Any:
    match = _TYPED_NUMBER.match(text)
    assert match is not None
    kind, digits = match.groups()
    try:
        if kind == "Bool":
            return bool(int(digits))
        return int(digits) if kind[0] in "IU" else float(digits)
    except ValueError:
        raise Malformed(f"{text} is no number", at) from None


class _Progressions:
    """The lists start:stop:step of one file, and the number of their members."""

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Restart the count for a new file."""
        self._known: dict[str, tuple[int, ...]] = {}
        self._listed = 0

    def read(self, text: str, at: int) -> tuple[int, ...]:
        found = self._known.get(text)
        if found is None:
            start, stop, step = map(int, text.split(":"))
            count = -(-(stop - start) // step) if step else LONGEST_LIST + 1
            if count > LONGEST_LIST:
                raise Malformed(f"{text} is no list start:stop:step of at most {LONGEST_LIST} integers", at)
            self._listed += max(0, count)
            if self._listed > MOST_LISTED:
                raise Malformed(f"lists start:stop:step of more than {MOST_LISTED} integers", at)
            found = self._known[text] = tuple(range(start, stop, step))
        return found


_PROGRESSIONS = _Progressions()
begin_file = _PROGRESSIONS.begin


def _other_graph(text: str, at: int) -> GraphReference:
    graph, _, value = text[3:-1].partition(":")
    return GraphReference(graph, value, at)


def _named_layout(fields: dict[str, Any]) -> NamedLayout:
    missing = [key for key in _NAMED_LAYOUT_KEYS if key not in fields]
    if missing:
        raise Malformed(f"a layout needs {', '.join(_NAMED_LAYOUT_KEYS)}; there is no {missing[0]}")
    matrix, places, names = (fields[key] for key in _NAMED_LAYOUT_KEYS)
    if not _are_integers(matrix) or min(matrix, default=0) < 1:
        raise Malformed(f"device_matrix is {matrix}; it must be a tuple of positive integers")
    axes = [a for entry in _entries(places) for a in _entries(entry)]
    fit = isinstance(places, tuple) and _are_integers(tuple(axes))
    if not fit or any(not -1 <= a < len(matrix) for a in axes):
        raise Malformed(f"tensor_map is {places}; it must hold axes of the device_matrix, or -1")
    aliases = tuple(name.text if isinstance(name, Symbol) else name for name in _entries(names))
    if len(aliases) != len(matrix) or not all(isinstance(name, str) for name in aliases):
        raise Malformed(f"alias_name is {names}; it must name every axis of the device_matrix")
    return NamedLayout(matrix, aliases, cast(Any, places))


def _entries(value: Any) -> tuple[Any, ...]:
    """Return the members of a tuple; any other value becomes the only member."""
    return cast("tuple[Any, ...]", value) if isinstance(value, tuple) else (value,)


def _are_integers(value: Any) -> bool:
    return isinstance(value, tuple) and all(type(v) is int for v in _entries(value))


def _at(read: Callable[[str], Any], text: str, at: int) -> Any:
    try:
        return read(text)
    except Malformed as error:
        raise Malformed(error.message, at) from None


_VALUES: dict[str, Callable[[str, int], Any]] = {
    "layout": lambda text, at: _at(read_layouts, text[6:], at)[0],
    "tensor": lambda text, at: _at(read_tensor, text, at),
    "float": lambda text, at: float(text),
    "typed_number": _typed_number,
    "dashed": lambda text, at: Symbol(text),
    "progression": _PROGRESSIONS.read,
    "integer": lambda text, at: int(text),
    "string": lambda text, at: string_of(text),
    "word": lambda text, at: _WORDS[text] if text in _WORDS else Symbol(text),
    "symbol": lambda text, at: Symbol(string_of(text[1:])),
    "graph_name": lambda text, at: GraphReference(name_of(text[1:]), at=at),
    "other_graph": _other_graph,
    "type": lambda text, at: _at(read_type, text, at),
}
"""The readers of values by their kinds, from the text and its position."""


@lru_cache(maxsize=4096)
def read_value(text: str) -> Any:
    """Return one value. Raise Malformed."""
    return whole(text, read_next_value)


@lru_cache(maxsize=16384)
def read_attributes(text: str) -> dict[str, Any]:
    """Return the dict of `{key: value, ...}`; it is shared, so callers must not change it. Raise Malformed."""
    return whole(text, _attributes)


def _attributes(scanner: Scanner) -> dict[str, Any]:
    scanner.need(_OPEN_BRACE)
    found: dict[str, Any] = {}
    for key, value in [] if scanner.match(CLOSE_BRACE) else _pairs(scanner):
        if key in found:
            raise Malformed(f"the attribute '{key}' stands twice")
        found[key] = value
    return found


# Layouts


_AXES = token("axes", r"\d{1,18}(?:\.\d{1,18})*")
_REDUCTION = token("reduction", r"[a-z]+(?=\[)")


@lru_cache(maxsize=16384)
def read_layouts(text: str) -> tuple[Any, ...]:
    """Return layouts separated by `;`, with None for `none`. Raise Malformed."""
    return whole(text, _layouts) if text.strip() else ()


def _layouts(scanner: Scanner, depth: int = 0) -> tuple[Any, ...]:
    if depth > DEEPEST:
        raise Malformed(_TOO_DEEP)
    found: list[Any] = []
    while not found or scanner.match(_SEMICOLON):
        found.append(_placement(scanner, depth))
    return tuple(found)


def _placement(scanner: Scanner, depth: int) -> Any:
    """Return a layout, None for `none`, or the layouts in parentheses."""
    if scanner.match(_NO_LAYOUT):
        return None
    scanner.need(_OPEN)
    if scanner.match(CLOSE):
        return ()
    first = scanner.match(_AXES)
    if first is None:
        nested = _layouts(scanner, depth + 1)
        scanner.need(CLOSE)
        return nested
    mesh = _axes(scanner, first[1], CLOSE)
    scanner.need(_OPEN_BRACKET)
    dims: list[tuple[int, ...]] = []
    while not scanner.match(_CLOSE_BRACKET):
        if dims:
            scanner.need(COMMA)
        dims.append(() if scanner.match(_UNSHARDED) else tuple(map(int, scanner.need(_AXES)[1].split("."))))
    reduction = scanner.match(_REDUCTION)
    if reduction is None:
        return _layout(mesh, dims, None, ())
    scanner.need(_OPEN_BRACKET)
    return _layout(mesh, dims, reduction[1], _axes(scanner, scanner.need(_AXES)[1], _CLOSE_BRACKET))


def _axes(scanner: Scanner, first: str, close: Token) -> tuple[int, ...]:
    """Return the numbers of a list up to its closing bracket, after the first of them."""
    found = [first]
    while not scanner.match(close):
        scanner.need(COMMA)
        found.append(scanner.need(_AXES)[1])
    if any("." in item for item in found):
        raise Malformed("a list of numbers separated by commas is needed here")
    return tuple(map(int, found))


def _layout(
    mesh: tuple[int, ...], dims: list[tuple[int, ...]], reduction: str | None, partial: tuple[int, ...]
) -> Layout:
    used = [a for axes in dims for a in axes] + list(partial)
    if 0 in mesh:
        raise Malformed(f"the mesh {mesh} has an axis of size 0")
    if product_exceeds(mesh, MOST_RANKS):
        raise Malformed(f"the mesh {mesh} has more than {MOST_RANKS} ranks")
    if any(a >= len(mesh) for a in used):
        raise Malformed(f"the mesh {mesh} has no axis {max(used)}")
    if len(used) != len(set(used)):
        raise Malformed("a mesh axis is used twice")
    if reduction is not None and reduction not in REDUCTIONS:
        raise Malformed(f"{reduction} is no reduction; known are {', '.join(REDUCTIONS)}")
    return Layout.of(mesh, dims, partial, reduction or "sum")


# Types


_OWN_TYPE = re.compile(r"<(?:Ref\[|Tensor\[|Stack\[|Tuple\[(?:Tensor|Stack)\[|Tuple\[\], TupleShape\(\)>\Z)")
_TUPLE = token("Tuple", r"<Tuple\[")
_ONE = token("Tensor", r"<(?P<reference>Ref\[(?=Tensor))?(?=Tensor\[|Stack\[)")
_ELEMENT = token("element", r"(?P<head>Tensor\[|(?:Stack\[)+)(?P<dtype>\w+)")
_TIMES = token("'*'", r"\*\s*(?P<times>-?\d{1,40})")
_SHAPES = token("TupleShape", r"\]\s*,\s*TupleShape\(")
_SIZE = token("integer", r"-?\d{1,40}(?![\w.:])")
_DETAILS = token("details", r",[^<>]+")


class _Run(NamedTuple):
    """A run of tuple elements that differ only in their shapes."""

    kind: TensorType
    times: int


@lru_cache(maxsize=16384)
def read_type(text: str) -> Type:
    """Return the type of `<...>`: a type of mspc, or an OpaqueType for a text that does not begin like one. Raise
    Malformed."""
    return whole(text, _type) if _OWN_TYPE.match(text) else OpaqueType(text)


def read_foreign_type(text: str) -> Type:
    """Return the type in another compiler's text; types that mspc cannot express are opaque."""
    try:
        return read_type(text)
    except Malformed:
        return OpaqueType(text)


def _type(scanner: Scanner) -> Type:
    found: Type
    if scanner.match(_TUPLE):
        found = _tuple_type(scanner)
    else:
        reference = scanner.need(_ONE)["reference"]
        element = _element(scanner)
        if reference:
            scanner.need(_CLOSE_BRACKET)
        scanner.need(COMMA)
        found = element.with_shape(_shape(scanner))
    scanner.match(_DETAILS)
    scanner.need(_END_OF_TYPE)
    return found


def _tuple_type(scanner: Scanner) -> TupleType:
    runs: list[_Run] = []
    shapes: list[tuple[int, ...]] = []
    while not scanner.match(_SHAPES):
        if runs:
            scanner.need(COMMA)
        runs.append(_run(scanner))
    while not scanner.match(CLOSE):
        if shapes:
            scanner.need(COMMA)
        shapes.append(_shape(scanner))
    if sum(run.times for run in runs) != len(shapes) or any(run.times < 1 for run in runs):
        raise Malformed(f"the tuple has {sum(run.times for run in runs)} elements but {len(shapes)} shapes")
    kinds = [run.kind for run in runs for _ in range(run.times)]
    return TupleType(tuple(kind.with_shape(shape) for kind, shape in zip(kinds, shapes, strict=True)))


def _run(scanner: Scanner) -> _Run:
    element = _element(scanner)
    match = scanner.match(_TIMES)
    return _Run(element, 1 if match is None else int(match["times"]))


def _element(scanner: Scanner) -> TensorType:
    """Return the type of an element, without its shape."""
    match = scanner.need(_ELEMENT)
    found = TensorType(dtype_called(match["dtype"]), ())
    levels = match["head"].count("Stack")
    for _ in range(max(1, levels)):
        scanner.need(_CLOSE_BRACKET)
    return StackType(found.dtype, (), levels) if levels else found


def _shape(scanner: Scanner) -> tuple[int, ...]:
    scanner.need(_OPEN)
    found: list[int] = []
    while not scanner.match(CLOSE):
        if found:
            scanner.need(COMMA)
        found.append(int(scanner.need(_SIZE)[1]))
    sizes = tuple(found)
    if any(n < 0 for n in sizes):
        raise Malformed(f"the shape {sizes} has a negative dimension")
    if is_too_large(sizes):
        raise Malformed(f"the shape {sizes} has more elements than any memory holds")
    return sizes
