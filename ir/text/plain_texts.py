"""This module reads the commonest small texts of a file without grammar.lark, by the same terminals: to make the parser
of the grammar takes longer than to read all of most graphs.

Each function has what stands in the text, or None: for anything else, and for mistakes, which the grammar explains.
"""

from __future__ import annotations

import re
from typing import Any

from mspc.ir.opaque import Symbol
from mspc.ir.text.source_text import string_of
from mspc.ir.types import DTYPES

_WORDS: dict[str, Any] = {"true": True, "false": False, "None": None, **DTYPES}
_NUMBERS = ("inf", "nan")
_INTEGER = r"-?\d{1,40}(?![\w.:\-])"
_FLOAT = r"-?\d{1,18}(?:\.\d{0,18}(?:e[+-]?\d{1,3})?|e[+-]?\d{1,3})(?![\w.])"
_VALUE = re.compile(rf'(\()|({_INTEGER})|("(?:[^"\\\n]|\\.)*+")|([A-Za-z_]\w*)(?![\w.\[(:])|({_FLOAT})', re.ASCII)
_KEY = re.compile(r"([A-Za-z_]\w*): ", re.ASCII)
_SIZES = r"\((?:\d{1,18}(?:, \d{1,18})*)?\)"
_TENSOR = re.compile(rf"<(?:Ref\[)?Tensor\[(\w+)\](\]?), ({_SIZES})>\Z", re.ASCII)
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
"""Brackets inside brackets from which on the grammar reads a value."""


def plain_attributes(text: str) -> dict[str, Any] | None:
    """`{key: value, ...}`, whose values are numbers, words, strings, and tuples of these."""
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
    """A tuple of the one value that the text is."""
    value = _value(text, 0, 0)
    return (value[0],) if value is not None and value[1] == len(text) else None


def _value(text: str, at: int, depth: int) -> tuple[Any, int] | None:
    """(the value that begins at a character, where it ends)."""
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
    """The members of a tuple behind its bracket."""
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
    """(element type, sizes) of `<Tensor[Float32], (2, 3)>` and `<Ref[Tensor[Float32]], (2, 3)>`."""
    match = _TENSOR.match(text)
    if match is None or (match[2] == "]") != text.startswith("<Ref["):
        return None
    return match[1], _NUMBER.findall(match[3])


def plain_tuple_type(text: str) -> tuple[list[tuple[str, str]], list[list[str]]] | None:
    """(elements with how often they stand, "" for once; sizes) of `<Tuple[Tensor[Int8]*2], TupleShape((2), (3))>`."""
    match = _TUPLE.match(text)
    if match is None:
        return None
    return _ONE_ELEMENT.findall(match[1]), [_NUMBER.findall(shape) for shape in _ONE_SHAPE.findall(match[2])]


def plain_layout(text: str) -> tuple[list[str], list[str], str | None, list[str]] | None:
    """(mesh, dimensions, reduction, its axes) of `(2, 4) [0, -] sum[1]`; None and no axes for no reduction."""
    match = _LAYOUT.match(text)
    if match is None:
        return None
    mesh, dimensions, reduction, axes = match.groups()
    return mesh.split(", "), dimensions.split(", ") if dimensions else [], reduction, axes.split(", ") if axes else []
