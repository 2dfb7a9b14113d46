"""Follows which of some were chosen: numbers that name places along the dimension of which the best were taken.

That dimension may become smaller only together with all that the numbers name. A reader that is not known may name
anything by them, so that the dimension keeps its size, and so does all else that the numbers name.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mspc.ir.graph import Node, Value, element_types
from mspc.ops.collective.collectives import AllGather, AlltoAll
from mspc.ops.control.structural import Depend, TupleGetItem
from mspc.ops.fused.elementwise import FusedElementwise, steps_of
from mspc.ops.tensor.broadcast import BroadcastTo
from mspc.ops.tensor.embedding import OneHot
from mspc.ops.tensor.moving import Concat, Split, Transpose
from mspc.ops.tensor.reshape import Cast
from mspc.ops.tensor.selection import GatherD, GatherDGrad, TopK
from mspc.ops.tensor.slicing import StridedSlice
from mspc.verify.scale.readers import Readers
from mspc.verify.scale.said_of_sizes import Dim

HANDED_ON = (AllGather, AlltoAll, BroadcastTo, Cast, Concat, Depend, Split, StridedSlice, Transpose)
SORTS = ("Sort", "SortExt", "ArgSort")
"""Operators of which the last result is an order of rows, and the first the numbers themselves."""


def named_by(node: Node, readers: Readers) -> tuple[list[tuple[Node, Dim]], bool]:
    """(The dimensions that the second result of a TopK names places along, each of a node; whether these are all)."""
    found: list[tuple[Node, Dim]] = []
    waiting = [each for each in readers.of(node) if _takes(each, 1)]
    are_all = all(isinstance(each, Node) and isinstance(each.op, TupleGetItem) for each in readers.of(node))
    seen: set[Value] = set()
    while waiting:
        value = waiting.pop()
        if value in seen:
            continue
        seen.add(value)
        for reader in readers.of(value):
            if not isinstance(reader, Node):
                are_all = False
                continue
            op: Any = reader.op
            if isinstance(op, OneHot) and value is reader.inputs[0]:
                found.append((reader, Dim(True, 0, op.axis % len(reader.shape))))
            elif isinstance(op, GatherD) and value is reader.inputs[-1]:
                found.append((reader, Dim(False, 0, op.dim % len(reader.inputs[0].shape))))
            elif isinstance(op, GatherDGrad) and value in reader.inputs[:-1]:
                found.append((reader, Dim(True, 0, op.dim % len(reader.shape))))
            elif op.name in SORTS:
                waiting += [each for each in readers.of(reader) if _takes(each, 0)] if _is_tuple(reader) else []
            elif isinstance(op, HANDED_ON) or op.reshapes or (isinstance(op, FusedElementwise) and _casts(op)):
                waiting.append(reader)
            else:
                are_all = False
    return found, are_all


def choices(nodes: Sequence[Node]) -> list[Node]:
    """The nodes of a graph that choose."""
    return [node for node in nodes if isinstance(node.op, TopK)]


def _takes(value: Value, index: int) -> bool:
    return isinstance(value, Node) and isinstance(value.op, TupleGetItem) and value.op.index == index


def _is_tuple(node: Node) -> bool:
    return len(element_types(node.type)) > 1


def _casts(op: FusedElementwise) -> bool:
    return all(isinstance(step.op, Cast) or step.op.reshapes for step in steps_of(op))
