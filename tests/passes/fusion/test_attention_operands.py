"""Operands of attention that is written out, and what is between them and the products."""

from __future__ import annotations

from typing import Any

import pytest

from mspc.ir.graph import Node
from mspc.ir.types import BFLOAT16, FLOAT16
from tests.passes.fusion.written_attention import Written, fused


class Grouped(Written):
    """Two heads of key and value, each of which serves four of the query."""

    def __init__(self) -> None:
        super().__init__()
        for old in (self.key, self.value):
            self.graph.parameters.remove(old)
        self.key, self.value = (self.parameter(name, (4, 2, 6, 2)) for name in ("k2", "v2"))

    def interleaved(self, x: Any) -> Node:
        return self.emit("RepeatInterleaveInt", x, repeats=4, dim=-3)

    def expanded(self, x: Any) -> Node:
        apart = self.emit("ExpandDims", x, axis=2)
        repeated = self.emit("BroadcastTo", apart, shape=(4, 2, 4, 6, 2))
        return self.emit("Reshape", repeated, shape=(4, 8, 6, 2))

    def tiled(self, x: Any) -> Node:
        """Heads in another order: they are not shared by neighbours."""
        apart = self.emit("ExpandDims", x, axis=1)
        repeated = self.emit("BroadcastTo", apart, shape=(4, 4, 2, 6, 2))
        return self.emit("Reshape", repeated, shape=(4, 8, 6, 2))

    def attention(self, key: Any, value: Any, strategy: Any = None) -> Node | None:
        scores = self.emit("BatchMatMul", self.query, key, transpose_b=True, strategy=strategy)
        weights = self.emit("Softmax", scores)
        self.graph.results = [self.emit("BatchMatMul", weights, value)]
        return fused(self.graph)


@pytest.mark.parametrize("form", ["interleaved", "expanded"])
def test_heads_that_are_repeated_are_read_once(form: str) -> None:
    w = Grouped()
    repeated = getattr(w, form)
    node = w.attention(repeated(w.key), repeated(w.value))
    assert node is not None
    assert node.inputs[1:] == [w.key, w.value]
    assert not {"RepeatInterleaveInt", "BroadcastTo"} & {n.op.name for n in w.graph.nodes}


def test_heads_in_another_order_stay_repeated() -> None:
    w = Grouped()
    node = w.attention(w.tiled(w.key), w.tiled(w.value))
    assert node is not None
    assert [v.shape for v in node.inputs[1:]] == [(4, 8, 6, 2)] * 2


def test_heads_of_the_key_alone_stay_repeated() -> None:
    w = Grouped()
    w.graph.parameters.remove(w.value)
    w.value = w.parameter("v", (4, 8, 6, 2))
    node = w.attention(w.interleaved(w.key), w.value)
    assert node is not None
    assert [v.shape for v in node.inputs[1:]] == [(4, 8, 6, 2)] * 2


def test_slices_of_repeated_heads_stay_as_they_are_written() -> None:
    w = Grouped()
    heads = (1, 8, 1, 1)
    assert w.attention(w.interleaved(w.key), w.interleaved(w.value), (heads, heads)) is None


def test_one_cast_between_is_made_on_the_operand_and_two_are_not_taken_for_one() -> None:
    w = Written()
    wide = w.query.tensor_type.dtype
    once = w.emit("Cast", w.emit("Mul", w.query, 0.5), dst_type=FLOAT16)
    key = w.emit("Cast", w.emit("Cast", w.key, dst_type=BFLOAT16), dst_type=FLOAT16)
    scores = w.emit("BatchMatMul", once, key, transpose_b=True)
    weights = w.emit("Cast", w.emit("Softmax", w.emit("Cast", scores, dst_type=wide)), dst_type=FLOAT16)
    w.graph.results = [w.emit("BatchMatMul", weights, w.emit("Cast", w.value, dst_type=FLOAT16))]
    node = fused(w.graph)
    assert node is not None
    read: Any = node.inputs
    assert [v.inputs[0].tensor_type.dtype for v in read] == [wide, BFLOAT16, wide]
    assert node.op.attributes()["scale_value"] == 0.5


def test_values_may_be_transposed_in_the_last_product() -> None:
    w = Written()
    turned = w.emit("Transpose", w.value, perm=(0, 1, 3, 2))
    w.graph.results = [w.emit("BatchMatMul", w.emit("Softmax", w.scores()), turned, transpose_b=True)]
    node = fused(w.graph)
    assert node is not None
    assert node.inputs[2] is w.value


def test_a_factor_made_of_constants_is_the_scale() -> None:
    w = Written()
    root = w.emit("Sqrt", w.builder.constant(4.0, w.query.tensor_type.dtype))
    node = fused(w.finish(w.emit("Div", w.scores(), root)))
    assert node is not None
    assert node.op.attributes()["scale_value"] == 0.5
