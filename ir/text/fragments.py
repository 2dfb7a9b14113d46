"""Reading of small texts: attributes, layouts, values and types, with the grammar if the quick readers fail."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from importlib import resources
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast

from mspc.ir.layout import REDUCTIONS, Layout, NamedLayout
from mspc.ir.opaque import GraphReference, Symbol
from mspc.ir.text.limits import DEEPEST, LONGEST_LIST, MAX_LISTED, MAX_RANKS
from mspc.ir.text.own_lines import (
    alone_value,
    plain_attributes,
    plain_layout,
    plain_tensor_type,
    plain_tuple_type,
    read_tensor,
)
from mspc.ir.text.source_text import Malformed, dtype_called, name_of, string_of
from mspc.ir.types import DTYPES, OpaqueType, StackType, TensorType, TupleType, Type, is_too_large, product_exceeds

if TYPE_CHECKING:
    from lark import Lark, Token
    from lark.exceptions import UnexpectedInput


_OWN_TYPE = re.compile(r"<(?:Ref\[|Tensor\[|Stack\[|Tuple\[(?:Tensor|Stack)\[)")
_TYPED_NUMBER = re.compile(r"(Bool|BF16|[IUF]\d+)\((.*)\)\Z")
_WORDS: dict[str, Any] = {"true": True, "false": False, "None": None, **DTYPES}
_PUNCTUATION = {
    "COMMA": "','", "COLON": "':'", "SEMICOLON": "';'", "LPAR": "'('", "RPAR": "')'", "LBRACE": "'{'",
    "RBRACE": "'}'", "LSQB": "'['", "RSQB": "']'", "LESSTHAN": "'<'", "MORETHAN": "'>'", "STAR": "'*'",
    "NONE": "'none'", "TENSOR": "a constant", "$END": "the end",
}  # fmt: skip
_NAMED_LAYOUT_KEYS = ("device_matrix", "tensor_map", "alias_name")


class _Run(NamedTuple):
    """A run of tuple elements that differ only in their shapes."""

    kind: TensorType
    times: int


Rule = Callable[[list[Any]], Any]


class _Actions:
    """Results of the rules of the grammar, one method per rule."""

    integer: Rule = staticmethod(lambda items: int(items[0]))
    float_number: Rule = staticmethod(lambda items: float(items[0]))
    string: Rule = staticmethod(lambda items: string_of(items[0]))
    symbol: Rule = staticmethod(lambda items: Symbol(string_of(items[0][1:])))
    dashed: Rule = staticmethod(lambda items: Symbol(str(items[0])))
    graph_name: Rule = staticmethod(lambda items: GraphReference(name_of(items[0][1:]), at=items[0].start_pos))
    layout_value: Rule = staticmethod(lambda items: _at(items[0], read_layouts, str(items[0][6:]))[0])
    tensor: Rule = staticmethod(lambda items: _at(items[0], read_tensor, str(items[0])))
    type_value: Rule = staticmethod(lambda items: _at(items[0], read_type, str(items[0])))
    pair: Rule = staticmethod(lambda items: (name_of(items[0].strip("'")), items[1]))
    no_layout: Rule = staticmethod(lambda items: None)
    layouts: Rule = staticmethod(lambda items: _shallow(tuple(items)))
    nested_layouts: Rule = staticmethod(lambda items: items[0])
    no_pairs: Rule = staticmethod(lambda items: Symbol("{}"))
    tensor_type: Rule = staticmethod(lambda items: TensorType(dtype_called(items[0]), items[1]))
    stack_type: Rule = staticmethod(lambda items: items[0].with_shape(items[1]))

    def __init__(self) -> None:
        self.begin()

    def begin(self) -> None:
        """Restart the count of list members for a new file."""
        self._lists: dict[str, tuple[int, ...]] = {}
        self._listed = 0

    def word(self, items: list[Any]) -> Any:
        text = str(items[0])
        return _WORDS[text] if text in _WORDS else Symbol(text)

    def typed_number(self, items: list[Any]) -> Any:
        match = _TYPED_NUMBER.match(items[0])
        assert match is not None
        kind, text = match.groups()
        try:
            if kind == "Bool":
                return bool(int(text))
            return int(text) if kind[0] in "IU" else float(text)
        except ValueError:
            raise Malformed(f"{items[0]} is no number", items[0].start_pos) from None

    def progression(self, items: list[Any]) -> tuple[int, ...]:
        text = str(items[0])
        found = self._lists.get(text)
        if found is None:
            start, stop, step = map(int, text.split(":"))
            count = -(-(stop - start) // step) if step else LONGEST_LIST + 1
            if count > LONGEST_LIST:
                message = f"{text} is no list start:stop:step of at most {LONGEST_LIST} integers"
                raise Malformed(message, items[0].start_pos)
            self._listed += max(0, count)
            if self._listed > MAX_LISTED:
                raise Malformed(f"lists start:stop:step of more than {MAX_LISTED} integers", items[0].start_pos)
            found = self._lists[text] = tuple(range(start, stop, step))
        return found

    def other_graph(self, items: list[Any]) -> GraphReference:
        graph, _, value = items[0][3:-1].partition(":")
        return GraphReference(graph, value, items[0].start_pos)

    def attributes(self, items: list[Any]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key, value in items:
            if key in found:
                raise Malformed(f"the attribute '{key}' stands twice", code="E0904")
            found[key] = value
        return found

    def named_layout(self, items: list[Any]) -> NamedLayout:
        fields = dict(items)
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

    def axes(self, items: list[Any]) -> tuple[int, ...]:
        if any("." in item for item in items):
            raise Malformed("a list of numbers separated by commas is needed here")
        return tuple(map(int, items))

    def layout(self, items: list[Any]) -> Layout:
        mesh = items[0]
        reduction, partial = (items[-2], items[-1]) if items[-1] is not None else (None, ())
        dims = [() if d == "-" else tuple(map(int, d.split("."))) for d in items[1:-2]]
        used = [a for axes in dims for a in axes] + list(partial)
        if 0 in mesh:
            raise Malformed(f"the mesh {mesh} has an axis of size 0")
        if product_exceeds(mesh, MAX_RANKS):
            raise Malformed(f"the mesh {mesh} has more than {MAX_RANKS} ranks")
        if any(a >= len(mesh) for a in used):
            raise Malformed(f"the mesh {mesh} has no axis {max(used)}")
        if len(used) != len(set(used)):
            raise Malformed("a mesh axis is used twice")
        if reduction is not None and reduction not in REDUCTIONS:
            raise Malformed(f"{reduction} is no reduction; known are {', '.join(REDUCTIONS)}")
        return Layout.of(mesh, dims, partial, str(reduction or "sum"))

    def operands(self, items: list[Any]) -> list[Any]:
        return items

    subgraph = node = single_result = tuple_result = parameter = operands

    def shape(self, items: list[Any]) -> tuple[int, ...]:
        sizes = tuple(map(int, items))
        if any(n < 0 for n in sizes):
            raise Malformed(f"the shape {sizes} has a negative dimension")
        if is_too_large(sizes):
            raise Malformed(f"the shape {sizes} has more elements than any memory holds")
        return sizes

    def stack(self, items: list[Any]) -> StackType:
        (entry,) = items
        return StackType.of(entry if isinstance(entry, StackType) else TensorType(dtype_called(entry), ()))

    def element(self, items: list[Any]) -> _Run:
        return self.stack_element([TensorType(dtype_called(items[0]), ()), items[1]])

    def stack_element(self, items: list[Any]) -> _Run:
        kind, times = items
        return _Run(kind, 1 if times is None else int(times))

    def tuple_type(self, items: list[Any]) -> TupleType:
        runs = [item for item in items if isinstance(item, _Run)]
        shapes = [item for item in items if not isinstance(item, _Run)]
        if sum(run.times for run in runs) != len(shapes) or any(run.times < 1 for run in runs):
            raise Malformed(f"the tuple has {sum(run.times for run in runs)} elements but {len(shapes)} shapes")
        kinds = [run.kind for run in runs for _ in range(run.times)]
        return TupleType(tuple(run.with_shape(shape) for run, shape in zip(kinds, shapes, strict=True)))

    def tuple_of_values(self, items: list[Any]) -> tuple[Any, ...]:
        if sum(len(_entries(item)) for item in items) > LONGEST_LIST:
            raise Malformed(f"a tuple whose members have more than {LONGEST_LIST} members")
        return _shallow(tuple(items))


_ACTIONS = _Actions()
begin_file = _ACTIONS.begin


def _at(token: Token, read: Callable[[str], Any], text: str) -> Any:
    try:
        return read(text)
    except Malformed as error:
        raise Malformed(error.message, token.start_pos or 0) from None


def _shallow(value: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the tuple. Raise Malformed if its tuples nest deeper than DEEPEST."""
    level: list[Any] = [value]
    for _ in range(DEEPEST):
        level = [member for entry in level for member in entry if isinstance(member, tuple)]
        if not level:
            return value
    raise Malformed(f"brackets stand more than {DEEPEST} deep in brackets")


def _entries(value: Any) -> tuple[Any, ...]:
    """Return the members of a tuple; any other value becomes the only member."""
    return cast("tuple[Any, ...]", value) if isinstance(value, tuple) else (value,)


def _are_integers(value: Any) -> bool:
    return isinstance(value, tuple) and all(type(v) is int for v in _entries(value))


@lru_cache(maxsize=1)
def grammar() -> Lark:
    """Return the parser of grammar.lark; made once, at the first text that needs it: it costs a tenth of a second."""
    from lark import Lark

    text = resources.files("mspc.ir.text").joinpath("grammar.lark").read_text("utf-8")
    starts = ["module", "attributes", "layouts", "type", "value"]
    return Lark(text, parser="lalr", lexer="contextual", start=starts, maybe_placeholders=True, transformer=_ACTIONS)


def parse_text(text: str, start: str) -> Any:
    """Return the result of a start rule of the grammar. Raise lark's UnexpectedInput or VisitError, or Malformed."""
    return cast(Any, grammar()).parse(text, start=start)


def _read(text: str, start: str) -> Any:
    from lark.exceptions import UnexpectedInput, VisitError

    try:
        return parse_text(text, start)
    except VisitError as error:
        raise error.orig_exc from None
    except UnexpectedInput as error:
        at = error.pos_in_stream or len(text)
        raise Malformed(unexpected(error, text), at, expected(error), "E0902") from None


def unexpected(error: UnexpectedInput, text: str) -> str:
    """Return a message with the text at the position at which the grammar expects another token."""
    at = error.pos_in_stream
    if at is None or at < 0 or at >= len(text):
        return "the text ends too early"
    line = text[at : at + 24].split("\n")[0]
    return f"unexpected {line!r}" if line else "unexpected end of line"


def expected(error: UnexpectedInput) -> tuple[str, ...]:
    """Return the names of the tokens that the grammar allows, as words."""
    names: Iterable[str] = getattr(error, "allowed", None) or getattr(error, "accepts", None) or ()
    words = [_PUNCTUATION.get(name, name.lower().replace("_", " ")) for name in names]
    return tuple(sorted(word for word in words if not word.startswith(" ")))


@lru_cache(maxsize=16384)
def read_attributes(text: str) -> dict[str, Any]:
    """Return the dict of `{key: value, ...}`; it is shared, so callers must not change it. Raise Malformed."""
    found = plain_attributes(text)
    return _read(text, "attributes") if found is None else found


@lru_cache(maxsize=16384)
def read_layouts(text: str) -> tuple[Any, ...]:
    """Return layouts separated by `;`, with None for `none`. Raise Malformed."""
    if not text.strip():
        return ()
    found = [_plain_layout(each) for each in text.split("; ")]
    return _read(text, "layouts") if any(layout is False for layout in found) else tuple(found)


def _plain_layout(text: str) -> Layout | Literal[False] | None:
    """Return a layout, None for `none`, or False if the grammar must read it. Raise Malformed."""
    parts = plain_layout(text)
    if parts is None:
        return None if text == "none" else False
    mesh, dims, reduction, partial = parts
    axes = _ACTIONS.axes(partial) if reduction is not None else None
    return _ACTIONS.layout([_ACTIONS.axes(mesh), *dims, reduction, axes])


@lru_cache(maxsize=4096)
def read_value(text: str) -> Any:
    """Return one value. Raise Malformed."""
    found = alone_value(text)
    return _read(text, "value") if found is None else found[0]


@lru_cache(maxsize=16384)
def read_type(text: str) -> Type:
    """Return the type of `<...>`: a type of mspc, or an OpaqueType for a text that does not begin like one. Raise
    Malformed."""
    found = _plain_type(text)
    if found is not None:
        return found
    if _OWN_TYPE.match(text) or text == "<Tuple[], TupleShape()>":
        return _read(text, "type")
    return OpaqueType(text)


def _plain_type(text: str) -> Type | None:
    """Return the type of a text that needs no grammar, else None. Raise Malformed."""
    tensor = plain_tensor_type(text)
    if tensor is not None:
        return TensorType(dtype_called(tensor[0]), _ACTIONS.shape(tensor[1]))
    parts = plain_tuple_type(text)
    if parts is None:
        return None
    runs = [_ACTIONS.element([dtype, times or None]) for dtype, times in parts[0]]
    return _ACTIONS.tuple_type([*runs, *map(_ACTIONS.shape, parts[1])])


def read_foreign_type(text: str) -> Type:
    """Return the type in another compiler's text; types that mspc cannot express are opaque."""
    try:
        return read_type(text)
    except Malformed:
        return OpaqueType(text)
