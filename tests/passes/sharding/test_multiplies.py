"""Which operators are products, whose work has to be shared by all ranks."""

from __future__ import annotations

from typing import Any

import pytest

from mspc.ir.graph import Node, Value
from mspc.ir.types import FLOAT32, INT32, TensorType
from mspc.ops.op import REGISTRY, load_operators
from mspc.passes.lib.choices import multiplies, rule_of

load_operators()


@pytest.mark.parametrize(
    ("name", "fields", "shapes", "product"),
    [
        ("MatMul", {}, [(16, 8), (8, 32)], True),
        ("BatchMatMul", {}, [(4, 16, 8), (4, 8, 32)], True),
        ("Conv2D", {"out_channel": 8, "kernel_size": 3, "stride": 2}, [(4, 8, 16, 16), (8, 8, 3, 3)], True),
        ("ReLU", {}, [(16, 8)], False),
        ("ReduceSum", {"axis": (0,)}, [(16, 8)], False),
        ("Concat", {"axis": 1}, [(16, 8), (16, 8)], False),
        ("Split", {"axis": 1, "output_num": 2}, [(16, 8)], False),
        ("MaxPool", {"kernel_size": 2, "strides": 2}, [(4, 8, 16, 16)], False),
    ],
)
def test_products_combine_more_elements_than_they_read_or_write(
    name: str, fields: dict[str, Any], shapes: list[tuple[int, ...]], product: bool
) -> None:
    op = REGISTRY[name](**fields)
    types = [TensorType(FLOAT32, shape) for shape in shapes]
    node = Node(op, [Value(type) for type in types], op.infer(*types))
    rule = rule_of(node)
    assert rule is not None
    assert multiplies(rule, node) is product


@pytest.mark.parametrize(
    ("name", "fields", "types", "product"),
    [
        ("Gather", {}, [(FLOAT32, (64, 8)), (INT32, (16,))], False),
        ("EmbeddingLookup", {}, [(FLOAT32, (64, 8)), (INT32, (16,))], False),
        ("UnsortedSegmentSum", {"num_segments": 12}, [(FLOAT32, (16, 8)), (INT32, (16,))], False),
        ("GroupedProduct", {}, [(FLOAT32, (8, 4)), (FLOAT32, (1, 4, 6)), (INT32, (1,))], True),
    ],
)
def test_what_finds_rows_by_integers_is_no_product(
    name: str, fields: dict[str, Any], types: list[tuple[Any, tuple[int, ...]]], product: bool
) -> None:
    op = REGISTRY[name](**fields)
    operands = [TensorType(dtype, shape) for dtype, shape in types]
    node = Node(op, [Value(type) for type in operands], op.infer(*operands))
    rule = rule_of(node)
    assert rule is not None
    assert multiplies(rule, node) is product
