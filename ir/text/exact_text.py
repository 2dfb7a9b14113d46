"""Tells whether a text says all of a graph: most do, but some values are read back as others, equal to them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any, cast

from mspc.ir.graph import Graph, Node
from mspc.ir.layout import Layout
from mspc.ir.location import Frames, Location
from mspc.ir.named_layout import NamedLayout
from mspc.ir.types import DType, StackType, TensorType, TupleType

_EXACT = frozenset({bool, int, float, str, type(None), DType, Layout, NamedLayout, TensorType, TupleType, StackType})
"""Kinds of values that are read back as what they are; a list becomes a tuple, a number of NumPy one of Python, and the
function of a script its name."""
_LIKE_A_LINE = re.compile(r"\(\d+\)/|[\r\n]")
"""What in the name of a file looks like the end of that name."""


def has_exact_text(graph: Graph) -> bool:
    """Whether what is read from the text of a graph with its regions equals it in every value, kind of value and source
    span. Operators and constants are not looked at but for their attributes."""
    known = set[int]()
    for each in graph.graphs():
        parameters = (value.attrs for value in each.parameters)
        if not _are_exact((each.attrs, *parameters)) or not all(_node_is_exact(node, known) for node in each.nodes):
            return False
    return True


def _node_is_exact(node: Node, known: set[int]) -> bool:
    """known: ids of operators and frames that are exact."""
    if id(node.op) not in known:
        if not _are_exact((node.op.attributes(),)):
            return False
        known.add(id(node.op))
    if id(node.frames) not in known:
        if not _frames_are_exact(node.frames):
            return False
        known.add(id(node.frames))
    given: tuple[Any, ...] = (node.in_strategy, node.out_strategy, node.strategy)
    return _are_exact((node.attrs,)) and (given == (None, None, None) or all(map(_is_exact, given)))


def _are_exact(rows: Iterable[Mapping[str, Any]]) -> bool:
    return all(_is_exact(value) for row in rows if row for value in row.values())


def _is_exact(value: Any) -> bool:
    kind = cast("type[Any]", type(value))
    if kind is tuple:
        return all(map(_is_exact, value))
    return kind in _EXACT


def _frames_are_exact(frames: Frames) -> bool:
    return all(_frame_is_exact(frame) for frame in frames)


def _frame_is_exact(frame: Location) -> bool:
    if _LIKE_A_LINE.search(frame.file) or "\n" in frame.text or "\r" in frame.text:
        return False
    return bool(frame.column or frame.end_column or not re.search(r"/ \d+~\d+\Z", frame.text))
