"""This module reads MindSpore's `.mindir` files, which are graphs as messages of Protocol Buffers.

The format, as MindSpore 2.10 has it (`mindspore.train.mind_ir_pb2`): a model has its graph in field 7, further graphs
in 8, its primitives in 12. A graph has nodes (1), parameters (3), inputs (5) and outputs (6); a node its inputs (1),
its outputs (2), its operator (4), `REF::` before the name of a primitive, and attributes (5). A constant is a
node, too.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from mspc.checkpoint.mindir_graph import CALL, REFERENCE, MindirGraph, MindirNode
from mspc.checkpoint.mindir_inlining import inlined
from mspc.checkpoint.mindir_loops import HasRecursion
from mspc.ir.diagnostics import MspcError
from mspc.ir.files.atomic_writing import reason_of, shown_path
from mspc.ir.files.protocol_buffers import BYTES, EIGHT, FOUR, WireField, fields, integers, signed, text
from mspc.ir.files.regular import check_regular
from mspc.ir.files.tensors import MOST_DIMENSIONS
from mspc.ir.types import DTYPES, DType, TensorType

_DTYPES = {
    1: "Float32", 2: "UInt8", 3: "Int8", 4: "UInt16", 5: "Int16", 6: "Int32", 7: "Int64", 9: "Bool", 10: "Float16",
    11: "Float64", 12: "UInt32", 13: "UInt64", 16: "BFloat16", 17: "Float64",
}  # fmt: skip
_INTEGERS, _BOOL, _STRING, _FLOAT, _DOUBLE, _TENSORS = (2, 3, 4, 5, 6, 7, 12, 13), 9, 8, 1, 11, (17, 19)
_SEQUENCES, _MONADS, _NONE = (20, 21), (23, 24), 25


def read_mindir(path: Path) -> MindirGraph:
    """The graph of a file.

    Raises:
        MspcError: the file is missing, cannot be read, is damaged, or has what is not read: loops, values in others.
    """
    try:
        check_regular(path)
        data = path.read_bytes()
    except FileNotFoundError:
        raise MspcError(f"there is no file {shown_path(path)!r}") from None
    except OSError as error:
        raise MspcError(f"cannot read {shown_path(path)}: {reason_of(error)}") from None
    try:
        return _model(data)
    except (ValueError, IndexError, KeyError, struct.error) as error:
        raise MspcError(f"{shown_path(path)!r} is no complete MindIR file: {error}") from None
    except RecursionError:
        raise MspcError(f"{shown_path(path)!r} is no complete MindIR file: sequences nest too deep in it") from None
    except HasRecursion as error:
        raise MspcError(
            f"{shown_path(path)!r} has a recursion over contents of tensors, which cannot be compiled: {error} calls "
            "itself ahead of its last step",
            notes=["loops are read: write it as `while`"],
        ) from None


def _model(data: bytes) -> MindirGraph:
    parts = list(fields(data, 0, len(data)))
    primitives = dict(_primitive(data, part) for part in parts if part.number == 12 and part.kind == BYTES)
    graphs = [_graph(data, part, primitives)[1] for part in parts if part.number == 7]
    if len(graphs) != 1:
        raise ValueError(f"it has {len(graphs)} graphs")
    return inlined(graphs[0], dict(_graph(data, part, primitives) for part in parts if part.number == 8))


def _graph(data: bytes, part: WireField, primitives: dict[str, Any]) -> tuple[str, MindirGraph]:
    """(name, graph)"""
    inside = _inside(data, part)
    nodes = [_node(data, each, primitives) for each in inside if each.number == 1]
    name = next((text(data, each) for each in inside if each.number == 2), "")
    return name, MindirGraph(
        name,
        tuple(_named(data, each) for each in inside if each.number == 5),
        tuple(_parameter(data, each) for each in inside if each.number == 3),
        {node.name: node.attributes.get("value") for node in nodes if node.operator == "Constant"},
        tuple(node for node in nodes if node.operator != "Constant"),
        tuple(_named(data, each) for each in inside if each.number == 6),
        dict(found for each in inside if each.number == 5 and (found := _typed(data, each)) is not None),
        frozenset(_named(data, each) for each in inside if each.number == 5 and _is_mark(data, each)),
    )


def _is_mark(data: bytes, part: WireField) -> bool:
    """Whether an input is a mark for the order of effects."""
    told = next((field for field in _inside(data, part) if field.number == 5), None)
    kinds = [] if told is None else [field.value for field in _inside(data, told) if field.number == 16]
    return any(kind in _MONADS for kind in kinds)


def _typed(data: bytes, part: WireField) -> tuple[str, TensorType] | None:
    """(name, type) of an input that is a tensor."""
    inside = _inside(data, part)
    told = next((field for field in inside if field.number == 2 and field.kind == BYTES), None)
    if told is None:
        return None
    parts = _inside(data, told)
    sizes = [size for field in parts if field.number == 1 for size in integers(data, field)]
    dtype = next((_DTYPES.get(signed(field.value), "") for field in parts if field.number == 2), "")
    if dtype not in DTYPES or min(sizes, default=0) < 0 or len(sizes) > MOST_DIMENSIONS:
        return None
    return _text(data, inside, 1), TensorType(DTYPES[dtype], tuple(sizes))


def _inside(data: bytes, part: WireField) -> list[WireField]:
    if part.kind != BYTES:
        raise ValueError(f"field {part.number} at byte {part.begin} is no message")
    return list(fields(data, part.begin, part.end))


def _named(data: bytes, part: WireField) -> str:
    return _text(data, _inside(data, part), 1)


def _text(data: bytes, inside: list[WireField], number: int) -> str:
    """The text of the first field of a number. Raises ValueError where there is none."""
    found = next((field for field in inside if field.number == number), None)
    if found is None:
        raise ValueError(f"a message lacks its field {number}")
    return text(data, found)


def _primitive(data: bytes, part: WireField) -> tuple[str, tuple[str, dict[str, Any]]]:
    inside = _inside(data, part)
    attributes = dict(_attribute(data, field) for field in inside if field.number == 3)
    return _text(data, inside, 1), (_text(data, inside, 2), attributes)


def _node(data: bytes, part: WireField, primitives: dict[str, tuple[str, dict[str, Any]]]) -> MindirNode:
    inside = _inside(data, part)
    operator = next((text(data, field) for field in inside if field.number == 4), "")
    found = {} if operator.startswith(REFERENCE) else dict(_attribute(data, f) for f in inside if f.number == 5)
    inputs = tuple(text(data, field) for field in inside if field.number == 1)
    if operator.startswith(REFERENCE):
        named = operator.removeprefix(REFERENCE)
        operator, found = primitives.get(named, (CALL, {}))
        inputs = (named, *inputs) if named not in primitives else inputs
    return MindirNode(_text(data, inside, 2), operator, inputs, found)


def _attribute(data: bytes, part: WireField) -> tuple[str, Any]:
    """(name, value) of an attribute; of an element of a tuple the name is "". What is of no known kind is None."""
    inside = _inside(data, part)
    kind = next((field.value for field in inside if field.number == 16), 0)
    name = next((text(data, field) for field in inside if field.number == 1), "")

    def first(read: Callable[[WireField], Any], *numbers: int) -> Any:
        return next((read(field) for field in inside if field.number in numbers), None)

    if kind in _INTEGERS or kind == _BOOL:
        value = first(lambda field: integers(data, field)[0], 3, 10)
        return name, bool(value) if kind == _BOOL else value
    if kind == _STRING:
        return name, first(lambda field: text(data, field), 5, 11)
    if kind in (_FLOAT, _DOUBLE):
        return name, first(lambda field: _number(data, field), 2, 4, 8, 9)
    if kind in _TENSORS:
        return name, first(lambda field: _tensor(data, field)[2], 6, 12)
    if kind in _SEQUENCES:
        return name, tuple(_attribute(data, field)[1] for field in inside if field.number == 17)
    return name, None


def _number(data: bytes, field: WireField) -> float:
    raw = data[field.begin : field.end]
    sized = {4: "<f", 8: "<d"}.get(len(raw))
    if field.kind not in (FOUR, EIGHT, BYTES) or sized is None:
        raise ValueError(f"field {field.number} at byte {field.begin} is no number")
    return float(struct.unpack(sized, raw)[0])


def _parameter(data: bytes, part: WireField) -> tuple[str, str, np.ndarray]:
    name, key, value = _tensor(data, part)
    return name, key or name.rpartition(":")[2], value


def _tensor(data: bytes, part: WireField) -> tuple[str, str, np.ndarray]:
    """(name, name of the parameter, values) of a tensor."""
    sizes: list[int] = []
    dtype, raw, names = "", b"", {7: "", 13: ""}
    for field in _inside(data, part):
        if field.number == 1:
            sizes += integers(data, field)
        elif field.number == 2:
            dtype = _DTYPES.get(signed(field.value), "")
        elif field.number in names:
            names[field.number] = text(data, field)
        elif field.number == 9:
            raw = data[field.begin : field.end]
        elif field.number == 12:
            raise ValueError("its values are in other files, which are not read")
    if dtype not in DTYPES:
        raise ValueError(f"tensor {names[7]!r} is of an element type that is not read")
    kind: DType = DTYPES[dtype]
    if len(sizes) > MOST_DIMENSIONS:
        raise ValueError(f"tensor {names[7]!r} has {len(sizes)} dimensions; mspc reads {MOST_DIMENSIONS}")
    if min(sizes, default=0) < 0 or len(raw) != math.prod(sizes) * kind.itemsize:
        raise ValueError(f"tensor {names[7]!r} has {len(raw)} bytes, which are no {dtype} of shape {sizes}")
    return names[7], names[13], np.frombuffer(raw, kind.numpy).reshape(sizes).copy()
