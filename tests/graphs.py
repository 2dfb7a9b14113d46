"""Graphs for tests, in one import: nodes and values, types, layouts, texts, operators by name and errors."""

from mspc.ir.compare import difference
from mspc.ir.diagnostics import ErrorGroup, ExecutionError, Location, MspcError
from mspc.ir.graph import Builder, Constant, Graph, Node, Parameter, Value, element_types, operand_types
from mspc.ir.layout import Layout, NamedLayout
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
from mspc.ops.check_graph import check_graph
from mspc.ops.collective.base import Collective
from mspc.ops.op import REGISTRY, NotDifferentiable, Op, RankPlacement

__all__ = [
    "BFLOAT16", "BOOL", "DTYPES", "FLOAT16", "FLOAT32", "FLOAT64", "INT32", "INT64", "REGISTRY", "Builder",
    "Collective", "Constant", "DType", "ErrorGroup", "ExecutionError", "Graph", "Layout", "Location", "MspcError",
    "NamedLayout", "Node", "NotDifferentiable", "Op", "Parameter", "RankPlacement", "TensorType", "TupleType", "Value",
    "check_graph", "difference", "dtype_of", "element_types", "operand_types", "parse", "print_graph",
]  # fmt: skip
