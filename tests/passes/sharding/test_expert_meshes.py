"""Grids of ranks for experts, as strategies and layouts name them."""

from __future__ import annotations

import pytest

from mspc.ir.builder import Builder
from mspc.ir.graph import Graph, Parameter
from mspc.ir.layout import NamedLayout
from mspc.ir.types import FLOAT32, INT64, TensorType
from mspc.ops.math.matmul import GroupedProduct
from mspc.passes.lib.experts import mesh_of

NAMES = ("dp", "ep", "tp")


@pytest.mark.parametrize(
    ("matrix", "rows", "experts", "wanted"),
    [
        ((2, 4, 1), (2, -1), (1, -1, -1), (2, 4)),
        ((1, 4, 2), (-1, -1), ((2, 1), -1, -1), (1, 4)),
        ((4, 1, 2), (2, -1), (1, -1, -1), None),
        ((1, 1, 8), (-1, -1), ((2, 1), -1, 0), None),
        ((2, 4, 1), (1, -1), (1, -1, -1), None),
        ((2, 2, 1), (2, -1), (1, -1, -1), None),
        ((1, 3, 4), (0, -1), (1, -1, -1), None),
        ((3, 4, 1), (2, -1), (1, -1, -1), None),
    ],
    ids=["two axes", "an axis of size 1 beside", "of size 1", "both of size 1", "one twice", "too few ranks",
         "experts that ranks do not divide", "rows that ranks do not divide"],
)  # fmt: skip
def test_experts_along_axes(
    matrix: tuple[int, ...], rows: tuple, experts: tuple, wanted: tuple[int, int] | None
) -> None:
    graph = Graph("net")
    operands = [Parameter(name, TensorType(dtype, shape)) for name, dtype, shape in (
        ("x", FLOAT32, (16, 4)), ("w", FLOAT32, (8, 4, 8)), ("ends", INT64, (8,)))]  # fmt: skip
    node = Builder(graph).emit(GroupedProduct(), *operands)
    node.in_strategy = tuple(NamedLayout(matrix, NAMES, entry) for entry in (rows, experts, (-1,)))
    found = mesh_of(node, 12 if 3 in matrix else 8)
    assert (found and (found.outer, found.parts)) == wanted
