"""Graphs for tests, in one import: nodes and values, types, layouts, texts, operators by name and errors."""

from mspc.ir.compare import difference
from mspc.ir.diagnostics import ExecutionError, MspcError
from mspc.ir.graph import Builder, Constant, Graph, Node, Parameter, Value, element_types
from mspc.ir.layout import Layout
from mspc.ir.text.parser import parse
from mspc.ir.text.printer import print_graph
from mspc.ir.types import (
    BFLOAT16,
    BOOL,
    DTYPES,
    FLOAT16,
    FLOAT32,
    FLOAT64,
    INT32,
    INT64,
    DType,
    TensorType,
    TupleType,
    dtype_of,
)
from mspc.ops.op import REGISTRY, Op

__all__ = [
    "BFLOAT16", "BOOL", "DTYPES", "FLOAT16", "FLOAT32", "FLOAT64", "INT32", "INT64", "REGISTRY", "Builder", "Constant",
    "DType", "ExecutionError", "Graph", "Layout", "MspcError", "Node", "Op", "Parameter", "TensorType", "TupleType",
    "Value", "difference", "dtype_of", "element_types", "parse", "print_graph",
]  # fmt: skip
