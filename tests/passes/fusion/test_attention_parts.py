"""Attention that reads the one tensor of which query, key and value are parts: which words, the same numbers with and
without, and what stays apart."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Parameter, Tensor, nn, ops
from mspc.compiler.config import Config
from mspc.compiler.driver import compile_call
from mspc.compiler.pipeline import rank_passes
from mspc.ir.graph import Graph
from mspc.passes.base import find_pass, run_passes
from tests.interpret import random_feeds, run_global, same

BATCH, LENGTH, HEADS, DEPTH = 2, 5, 4, 4
WIDTH = HEADS * DEPTH
Parts = tuple[Any, Any, Any]


def heads_first(x: Any, heads: int = HEADS) -> Any:
    return ops.transpose(ops.reshape(x, (BATCH, LENGTH, heads, DEPTH)), (0, 2, 1, 3))


def split(x: Any) -> Parts:
    query, key, value = ops.split(x, WIDTH, axis=2)
    return heads_first(query), heads_first(key), heads_first(value)


def in_halves(x: Any) -> Parts:
    query, key, value = ops.split(x, WIDTH, axis=-1)
    return tuple(heads_first(ops.cast(part, ms.float16)) for part in (query, key, value))  # type: ignore[return-value]


def unstacked(x: Any) -> Parts:
    parts = ops.transpose(ops.reshape(x, (BATCH, LENGTH, 3, HEADS, DEPTH)), (2, 0, 3, 1, 4))
    return ops.unstack(parts, axis=0)


def taken(x: Any) -> Parts:
    parts = ops.transpose(ops.reshape(x, (BATCH, LENGTH, 3, HEADS, DEPTH)), (2, 0, 3, 1, 4))
    return parts[0], parts[1], parts[2]


def sliced(x: Any) -> Parts:
    parts = ops.transpose(ops.reshape(x, (BATCH, LENGTH, 3 * HEADS, DEPTH)), (0, 2, 1, 3))
    return parts[:, :HEADS], parts[:, HEADS : 2 * HEADS], parts[:, 2 * HEADS :]


def chunked(x: Any) -> Parts:
    query, key, value = ops.chunk(x, 3, axis=2)
    return heads_first(query), heads_first(key), heads_first(value)


def value_first(x: Any) -> Parts:
    value, key, query = split(x)
    return query, key, value


def head_by_head(x: Any) -> Parts:
    """The parts of one head lie one behind the other."""
    parts = ops.transpose(ops.reshape(x, (BATCH, LENGTH, HEADS, 3, DEPTH)), (3, 0, 2, 1, 4))
    return ops.unstack(parts, axis=0)


def scaled(x: Any) -> Parts:
    query, key, value = split(x)
    return query * 2, key, value


def of_key_twice(x: Any) -> Parts:
    query, key, _ = split(x)
    return query, key, key


def turned(x: Any) -> Parts:
    query, key, value = split(x)
    return query, key, ops.flip(value, (2,))


class Attention(nn.Cell):
    def __init__(self, parts: Callable[[Any], Parts], read_again: bool = False, shifted: bool = False) -> None:
        super().__init__()
        draw = np.random.default_rng(1).standard_normal
        self.weight = Parameter(Tensor(0.3 * draw((WIDTH, 3 * WIDTH)).astype(np.float32)))
        self.parts, self.read_again = parts, read_again
        self.shift = Parameter(Tensor(draw((BATCH, HEADS, LENGTH, LENGTH)).astype(np.float32))) if shifted else None
        self.attend = ops.FlashAttentionScore(HEADS, scale_value=0.5, input_layout="BNSD", sparse_mode=2)

    def construct(self, x: Any) -> Any:
        query, key, value = self.parts(ops.tanh(ops.matmul(x, self.weight)))
        out = self.attend(query, key, value, self.shift, None, None, None, None, None, None)[3]
        out = ops.cast(ops.transpose(out, (0, 2, 1, 3)), ms.float32)
        return out.sum() + (ops.square(ops.cast(key, ms.float32)).sum() if self.read_again else 0)


def graphs(network: nn.Cell, trained: bool = True) -> tuple[Graph, Graph]:
    """The program of a rank of a GPU, with attention packed and apart."""
    target: Any = network
    if trained:
        target = nn.TrainOneStepCell(network, nn.SGD(network.trainable_params(), 1.0))
        target.set_train()
    x = Tensor(np.random.default_rng(2).standard_normal((BATCH, LENGTH, WIDTH)).astype(np.float32))
    graph = compile_call(target, [x], Config(device="GPU", mode="stand_alone")).graph
    made: list[Graph] = []
    for names in (rank_passes("GPU"), rank_passes()):
        passes = [find_pass(name, {"rank": 0} if name == "slice_to_rank" else {}) for name in names]
        made.append(run_passes(graph, passes))
        made[-1].verify()
    return made[0], made[1]


def operands(graph: Graph) -> list[int]:
    """The number of operands that hold query, key and value, of every attention and gradient of one."""
    found = [node for node in graph.nodes if node.op.name.startswith("FlashAttentionScore")]
    return [1 if node.op.attributes().get("packed") else 3 for node in found]


def moves(graph: Graph) -> list[str]:
    """The operators that still move elements."""
    names = [node.op.name for node in graph.nodes] + [str(node.op.attributes().get("body", "")) for node in graph.nodes]
    text = " ".join(names)
    return [name for name in ("Split", "Unstack", "StridedSlice", "Stack", "Concat", "Transpose") if name in text]


TOGETHER = [split, unstacked, taken, sliced, chunked, in_halves]
APART = [value_first, head_by_head, scaled, of_key_twice, turned]


def compared(packed: Graph, apart: Graph, halves: bool) -> None:
    feeds = random_feeds(apart)
    same(run_global(packed, feeds), run_global(apart, feeds), 2e-2 if halves else 1e-5)


@pytest.mark.parametrize("parts", TOGETHER, ids=lambda parts: parts.__name__)
@pytest.mark.parametrize("trained", [True, False])
def test_parts_of_one_tensor_are_read_where_they_are(parts: Callable[[Any], Parts], trained: bool) -> None:
    packed, apart = graphs(Attention(parts), trained)
    assert operands(packed) == [1] * (1 + trained)
    assert moves(packed) == []
    compared(packed, apart, parts is in_halves)


@pytest.mark.parametrize("parts", APART, ids=lambda parts: parts.__name__)
def test_what_lies_otherwise_stays_apart(parts: Callable[[Any], Parts]) -> None:
    packed, apart = graphs(Attention(parts))
    assert operands(packed) == [3, 3]
    compared(packed, apart, False)


@pytest.mark.parametrize("parts", [split, unstacked], ids=lambda parts: parts.__name__)
def test_the_gradient_of_an_addend_reads_the_parts_too(parts: Callable[[Any], Parts]) -> None:
    packed, apart = graphs(Attention(parts, shifted=True))
    assert [node.op.name for node in packed.nodes].count("FlashAttentionScoreShiftGrad") == 1
    assert operands(packed) == [1, 1, 1]
    compared(packed, apart, False)


def test_gradients_that_something_is_added_to_stay_apart() -> None:
    packed, apart = graphs(Attention(split, read_again=True))
    assert operands(packed) == [3, 3]
    compared(packed, apart, False)


def test_parts_may_have_other_readers_where_there_are_no_gradients() -> None:
    packed, apart = graphs(Attention(split, read_again=True), trained=False)
    assert operands(packed) == [1]
    compared(packed, apart, False)
