"""This module writes MindSpore's `.mindir` files; `checkpoint.mindir_file` describes the format."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mspc.checkpoint.mindir import CALL, REFERENCE, MindirNode
from mspc.ir.diagnostics import MspcError
from mspc.ir.files.atomic_writing import write_atomically
from mspc.ir.files.tensors import put_bytes, put_float, put_integer, put_text
from mspc.ir.late_dataclass import dataclass
from mspc.ir.types import TensorType, Type, dtype_of

LARGEST = 2**31 - 1
"""Bytes of a message of Protocol Buffers."""
_CODES = {
    "Float32": 1, "UInt8": 2, "Int8": 3, "UInt16": 4, "Int16": 5, "Int32": 6, "Int64": 7, "Bool": 9, "Float16": 10,
    "Float64": 11, "UInt32": 12, "UInt64": 13, "BFloat16": 16,
}  # fmt: skip
_FLOAT, _INTEGER, _STRING, _BOOL, _TENSORS, _TUPLE, _MONAD, _NONE = 1, 7, 8, 9, 19, 20, 23, 25
_PRIMITIVE, _PRIMITIVE_FUNCTION = 1, 2
EFFECTS = "effects"
"""The constant that reading a parameter takes, for the order of effects."""


@dataclass(frozen=True)
class WrittenGraph:
    """A graph to write.

    name: of the network. inputs, parameters, constants, nodes, types: by the names that nodes know; parameters have the
    script's names, too. output: the name of the graph's result. functions: operators that MindSpore has as functions of
    all their inputs. called: graphs that this one and they call, by their names.
    """

    name: str
    inputs: Mapping[str, TensorType]
    parameters: Sequence[tuple[str, str, np.ndarray]]
    constants: Mapping[str, Any]
    nodes: Sequence[MindirNode]
    types: Mapping[str, Type]
    output: str
    functions: frozenset[str]
    called: tuple[WrittenGraph, ...] = ()


def write_mindir(path: Path, graph: WrittenGraph) -> None:
    """Write a file that MindSpore reads.

    Raises:
        MspcError: it cannot be written, or is larger than such a file may be.
    """
    content = _model(graph)
    if len(content) > LARGEST:
        raise MspcError(f"{path} would have {len(content)} bytes, and a file of one message has {LARGEST} at most")
    write_atomically(path, lambda file: file.write(content))


def _model(graph: WrittenGraph) -> bytes:
    primitives: dict[str, bytes] = {}
    main, called = _graph(graph, primitives), [_graph(each, primitives) for each in graph.called]
    head = put_text(1, "1.1") + put_text(2, "mspc") + put_text(5, "2.10.0")
    return b"".join([
        head, put_bytes(7, main), *(put_bytes(8, each) for each in called), put_integer(10, 1), *primitives.values(),
        put_integer(13, 3),
    ])  # fmt: skip


def _graph(graph: WrittenGraph, primitives: dict[str, bytes]) -> bytes:
    nodes = [_node(node, graph.types.get(node.name), _primitive_of(node, primitives, graph)) for node in graph.nodes]
    return b"".join([
        put_text(2, graph.name),
        _constant(EFFECTS, put_integer(16, _MONAD)),
        *(_constant(name, _value(value)) for name, value in graph.constants.items()),
        *nodes,
        *(put_bytes(3, _tensor(type_of(array), name, array, key)) for name, key, array in graph.parameters),
        *(put_bytes(5, put_text(1, name) + put_bytes(2, _tensor(type))) for name, type in graph.inputs.items()),
        put_bytes(6, put_text(1, graph.output)),
    ])  # fmt: skip


def type_of(array: np.ndarray) -> TensorType:
    return TensorType(dtype_of(array.dtype), array.shape)


def _primitive_of(node: MindirNode, known: dict[str, bytes], graph: WrittenGraph) -> str:
    """The name of a node's primitive, which is added to the known ones, or of its callee."""
    if node.operator == CALL:
        return node.inputs[0]
    attributes = b"".join(put_bytes(3, put_text(1, name) + _value(value)) for name, value in node.attributes.items())
    kind = _PRIMITIVE_FUNCTION if node.operator in graph.functions else _PRIMITIVE
    text = put_text(2, node.operator) + attributes + put_text(4, "") + put_integer(5, kind)
    for name, message in known.items():
        if message.endswith(text):
            return name
    name = f"{node.operator}:{len(known)}"
    known[name] = put_bytes(12, put_text(1, name) + text)
    return name


def _node(node: MindirNode, type: Type | None, primitive: str) -> bytes:
    inputs = b"".join(put_text(1, name) for name in node.inputs[node.operator == CALL :])
    shape = put_bytes(5, put_text(1, "shape") + _typed(type)) if type is not None else b""
    return put_bytes(1, inputs + put_text(2, node.name) + put_text(3, node.name)
                     + put_text(4, REFERENCE + primitive) + shape)  # fmt: skip


def _typed(type: Type) -> bytes:
    if isinstance(type, TensorType):
        return put_bytes(12, _tensor(type)) + put_integer(16, _TENSORS)
    elements = getattr(type, "elements", ())
    return b"".join(put_bytes(17, _typed(element)) for element in elements) + put_integer(16, _TUPLE)


def _constant(name: str, value: bytes) -> bytes:
    own = put_text(2, name) + put_text(3, name) + put_text(4, "Constant")
    return put_bytes(1, own + put_bytes(5, put_text(1, "value") + value))


def _value(value: Any, inside: bool = False) -> bytes:
    """A value of an attribute; of one inside of a tuple the numbers are in lists."""
    if value is None:
        return put_integer(16, _NONE)
    if isinstance(value, np.ndarray):
        return put_bytes(12, _tensor(type_of(value), "value0", value)) + put_integer(16, _TENSORS)
    if isinstance(value, tuple):
        return b"".join(put_bytes(17, _value(each, True)) for each in value) + put_integer(16, _TUPLE)
    if isinstance(value, bool | int):
        return put_integer(10 if inside else 3, value) + put_integer(16, _BOOL if isinstance(value, bool) else _INTEGER)
    if isinstance(value, float):
        return put_float(8 if inside else 2, value) + put_integer(16, _FLOAT)
    return put_text(11 if inside else 5, value) + put_integer(16, _STRING)


def _tensor(type: TensorType, name: str = "", array: np.ndarray | None = None, key: str = "") -> bytes:
    sizes = b"".join(put_integer(1, size) for size in type.shape)
    found = sizes + put_integer(2, _CODES[type.dtype.name]) + (put_text(7, name) if name else b"")
    if array is None:
        return found
    raw = put_bytes(9, np.ascontiguousarray(array).tobytes())
    return found + raw + (put_text(13, key) if key else b"")
