"""Constant triangles that make an attention causal: which masks and addends, and which stay operands."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from mspc.ir.types import BFLOAT16, BOOL, FLOAT16, FLOAT32, TensorType
from mspc.passes.fusion.attention_masks import CAUSAL_MASK, causal_mode, note_causal_masks
from mspc.passes.fusion.fuse_attention import FuseAttention
from tests.errors import error_of
from tests.graphs import REGISTRY, Constant, Graph, Parameter, parse, print_graph
from tests.interpret import random_feeds, run_global, same
from tests.passes.fusion.written_attention import HEADS, Written, fused

LOWEST = float(np.finfo(np.float32).min)


def triangle(w: Written, *noted: Any, shape: tuple[int, ...] = (6, 6), dtype: Any = FLOAT32) -> Parameter:
    made = w.parameter("triangle", shape, dtype)
    made.kind = "constant"
    made.attrs[CAUSAL_MASK] = noted
    return made


def longer_keys(w: Written, length: int) -> None:
    w.graph.parameters = [w.query]
    w.key, w.value = (w.parameter(name, (4, 8, length, 2)) for name in ("k", "v"))


def sparse_mode(graph: Graph) -> int:
    """The fields of the operator that the pass makes, which has either a sparse mode or a shift or mask."""
    node = fused(graph)
    assert node is not None
    op: Any = node.op
    assert bool(op.sparse_mode) != bool(op.optional)
    assert len(node.inputs) == 3 + len(op.optional)
    return op.sparse_mode


@pytest.mark.parametrize(
    ("keys", "noted", "mode"),
    [
        (6, (0, 0.0, -1e4), 2), (6, (0, -0.0, -1e9), 2), (6, (0, 0.0, float("-inf")), 2), (6, (0, 0.0, LOWEST), 2),
        (9, (0, 0.0, -1e4), 2), (9, (3, 0.0, -1e4), 3), (4, (0, 0.0, -1e4), 2),
        (6, (0, 0.0, -9999.0), 0), (6, (0, 0.0, -50.0), 0), (6, (0, 0.0, 1e4), 0), (6, (0, 1.0, -1e4), 0),
        (6, (0, -1e4, 0.0), 0), (6, (1, 0.0, -1e4), 0), (6, (-1, 0.0, -1e4), 0), (9, (2, 0.0, -1e4), 0),
        (4, (-2, 0.0, -1e4), 0),
    ],
)  # fmt: skip
@pytest.mark.parametrize("leading", [(), (1, 1), (4, 1)])
def test_an_added_triangle(leading: tuple[int, ...], keys: int, noted: Any, mode: int) -> None:
    w = Written()
    longer_keys(w, keys)
    added = triangle(w, *noted, shape=(*leading, 6, keys))
    assert sparse_mode(w.finish(w.emit("Add", w.scores(), added))) == mode
    assert not added.attrs


@pytest.mark.parametrize(
    ("operator", "noted", "mode"),
    [
        ("MaskedFill", (0, False, True), 2), ("MaskedFill", (1, False, True), 0),
        ("Select", (0, True, False), 2), ("Select", (2, True, False), 0),
    ],
)  # fmt: skip
def test_a_triangle_as_a_mask(operator: str, noted: Any, mode: int) -> None:
    w = Written()
    mask = triangle(w, *noted, dtype=BOOL)
    scores = w.scores()
    operands = (scores, mask) if operator == "MaskedFill" else (mask, scores)
    graph = w.finish(w.emit("Mul", w.emit(operator, *operands, -1e9), 0.5))
    assert sparse_mode(graph) == mode


@pytest.mark.parametrize(("operator", "noted"), [("MaskedFill", (0, True, False)), ("Select", (0, False, True))])
def test_a_mask_that_hides_the_past_stays(operator: str, noted: Any) -> None:
    """The last query looks at no key, so that its row is put right."""
    w = Written()
    mask, scores = triangle(w, *noted, dtype=BOOL), w.scores()
    node = fused(w.finish(w.emit(operator, *((scores, mask) if operator == "MaskedFill" else (mask, scores)), -1e9)))
    assert node is not None
    assert (node.op.sparse_mode, node.op.optional) == (0, ("attn_mask",))  # type: ignore[attr-defined]  # of this operator
    assert "ReduceAll" in {node.op.name for node in w.graph.nodes}


def small_constant(w: Written) -> Any:
    return w.b.constant(np.triu(np.full((1, 4, 4), -1e5), 1), FLOAT32)


def made_of_ones(w: Written) -> Any:
    ones = w.emit("Ones", shape=(6, 6), dtype=FLOAT32)
    return w.emit("Mul", w.emit("Sub", 1.0, w.emit("Tril", ones)), -1e9)


def filled_above(w: Written) -> Any:
    return w.emit("Triu", w.emit("Fill", shape=(6, 6), value=float("-inf")), diagonal=1)


def compared_and_turned(w: Written) -> Any:
    ones = w.emit("BroadcastTo", w.emit("Cast", w.b.constant(1, FLOAT16), dst_type=FLOAT32), shape=(1, 6, 6))
    hidden = w.emit("LogicalNot", w.emit("Equal", w.emit("Tril", ones), 1.0))
    return w.emit("ExpandDims", w.emit("Mul", w.emit("Cast", hidden, dst_type=FLOAT32), -1e6), axis=0)


def of_two_triangles(w: Written) -> Any:
    return w.emit("Add", triangle(w, 0, 0.0, -6e3), w.emit("Reshape", filled_above(w), shape=(1, 6, 6)))


@pytest.mark.parametrize("make", [small_constant, made_of_ones, filled_above, compared_and_turned, of_two_triangles])
def test_triangles_that_are_made_of_constants(make: Callable[[Written], Any]) -> None:
    w = Written()
    if make is small_constant:
        w.graph.parameters.clear()
        w.query, w.key, w.value = (w.parameter(name, (4, 8, 4, 2)) for name in ("q", "k", "v"))
    assert sparse_mode(w.finish(w.emit("Add", w.scores(), make(w)))) == 2


def of_unlike_triangles(w: Written) -> Any:
    further = w.emit("Triu", w.emit("Fill", shape=(6, 6), value=-1e9), diagonal=2)
    return w.emit("Add", triangle(w, 0, 0.0, -1e9), further)


def times_infinity(w: Written) -> Any:
    """0 times infinity is none, where a query looks."""
    return w.emit("Mul", triangle(w, 0, 0.0, 1.0), float("-inf"))


def with_a_weight(w: Written) -> Any:
    return w.emit("Mul", triangle(w, 0, 0.0, -1e9), w.parameter("weight", (1,)))


def of_one_row(w: Written) -> Any:
    return w.emit("Triu", w.parameter("row", (6, 6)), diagonal=1)


def of_rows_in_other_places(w: Written) -> Any:
    return w.emit("Reshape", triangle(w, 0, 0.0, -1e9, shape=(4, 9)), shape=(6, 6))


@pytest.mark.parametrize("make", [of_unlike_triangles, with_a_weight, of_one_row, of_rows_in_other_places])
def test_what_is_no_causal_triangle_stays_an_operand(make: Callable[[Written], Any]) -> None:
    w = Written()
    assert sparse_mode(w.finish(w.emit("Add", w.scores(), make(w)))) == 0


def test_not_a_number_hides_nothing() -> None:
    w = Written()
    graph = w.finish(w.emit("Add", w.scores(), times_infinity(w)))
    assert FuseAttention().run(graph)
    (op,) = [node.op for node in graph.nodes if node.op.name == "FlashAttentionScore"]
    assert (op.sparse_mode, op.optional) == (0, ("real_shift",))  # type: ignore[attr-defined]  # of this operator


def test_a_triangle_beside_another_operand_stays() -> None:
    w = Written()
    filled = w.emit("MaskedFill", w.scores(), triangle(w, 0, False, True, dtype=BOOL), -1e9)
    shift = w.parameter("shift", (8, 1, 6))
    shift.kind = "parameter"
    node = fused(w.finish(w.emit("Add", shift, filled)))
    assert node is not None
    assert node.op.optional == ("real_shift", "attn_mask")  # type: ignore[attr-defined]  # of FlashAttentionScore
    assert node.op.sparse_mode == 0  # type: ignore[attr-defined]  # of FlashAttentionScore


def test_strategies_of_a_causal_attention() -> None:
    w = Written()
    added = w.emit("Add", w.scores(), triangle(w, 0, 0.0, -1e9), strategy=(HEADS, (1, 1)))
    node = fused(w.finish(added))
    assert node is not None
    assert node.in_strategy == (HEADS, HEADS, HEADS)


@pytest.mark.parametrize("dtype", [BFLOAT16, FLOAT16])
def test_triangles_of_halves(dtype: Any) -> None:
    """BFloat16 rounds -10000 to -9984."""
    w = Written(dtype)
    added = triangle(w, 0, 0.0, -9984.0 if dtype == BFLOAT16 else -1e4, dtype=dtype)
    graph = w.finish(w.emit("Add", w.scores(), added))
    before = parse(print_graph(graph), REGISTRY).main
    assert FuseAttention().run(graph)
    (op,) = [node.op for node in graph.nodes if node.op.name == "FlashAttentionScore"]
    assert op.sparse_mode == 2  # type: ignore[attr-defined]  # of FlashAttentionScore
    feeds = random_feeds(before)
    same([np.asarray(x, np.float32) for x in run_global(graph, feeds)],
         [np.asarray(x, np.float32) for x in run_global(before, feeds)], 2e-2)  # fmt: skip


@pytest.mark.parametrize(
    ("array", "noted"),
    [
        (np.triu(np.full((5, 5), -np.inf, np.float32), 1), (0, 0.0, float("-inf"))),
        (np.tril(np.ones((2, 1, 4, 7), np.bool_), 3), (3, True, False)),
        (np.tril(np.ones((4, 7), np.int32), -1), None),
        (np.tril(np.ones((4, 3), np.int32), 5), None),
        (np.tril(np.arange(25).reshape(5, 5)), None),
        (np.stack([np.tri(5), np.tri(5, k=1)]), None),
        (np.where(np.tri(5), 0.0, np.nan), None),
        (np.tri(5)[0], None),
        (np.zeros((5, 5)), None),
        (np.zeros((0, 5)), None),
        (np.tri(5)[::-1], None),
    ],
)
def test_what_is_noted_of_constants(array: Any, noted: Any) -> None:
    w = Written()
    w.graph.parameters = [Parameter("constant", TensorType(FLOAT32, (1,)), "constant"), w.query]
    note_causal_masks(w.graph, {"constant": array})
    found = w.graph.parameters[0].attrs
    assert found == ({} if noted is None else {CAUSAL_MASK: noted})


@pytest.mark.parametrize("noted", [(0, 1.0), 3, (0.5, 0.0, 1.0), (0, "a", 1.0)])
def test_a_wrong_note_is_an_error(noted: Any) -> None:
    w = Written()
    added = triangle(w)
    added.attrs[CAUSAL_MASK] = noted
    graph = w.finish(w.emit("Add", w.scores(), added))
    assert error_of(lambda: FuseAttention().run(graph)).message == f"the triangle of parameter triangle is {noted!r}"


@pytest.mark.parametrize("leading", [(), (4,), (4, 8), (2, 4, 8)])
@pytest.mark.parametrize(("keys", "diagonal", "mode"), [(6, 0, 2), (9, 0, 2), (9, 3, 3), (9, 2, 0)])
def test_a_triangle_says_the_same_beside_scores_of_any_rank(
    leading: tuple[int, ...], keys: int, diagonal: int, mode: int
) -> None:
    hidden = Constant(np.triu(np.full((6, keys), -1e4, np.float32), diagonal + 1))
    found = causal_mode(hidden, (*leading, 6, keys), lambda near, far: bool(near == 0 and far == -1e4))
    assert found == mode


@pytest.mark.parametrize("form", ["one by one", "bias last", "one sum"])
@pytest.mark.parametrize("kind", ["parameter", "input"])
def test_a_triangle_beside_a_bias(form: str, kind: str) -> None:
    """A trained mask hides no keys; a fed one may, and stays with the triangle."""
    w = Written()
    bias, future = w.parameter("bias", (1, 8, 6, 6)), triangle(w, 0, 0.0, -1e9)
    bias.kind = kind
    if form == "one sum":
        scores = w.emit("Add", w.scores(), w.emit("Add", bias, future))
    else:
        first, second = (bias, future) if form == "one by one" else (future, bias)
        scores = w.emit("Add", w.emit("Add", w.scores(), first), second)
    node = fused(w.finish(scores))
    assert node is not None
    op: Any = node.op
    trained = kind == "parameter"
    assert (op.sparse_mode, op.optional) == (2 * trained, ("real_shift",))
    assert (node.inputs[3] is bias) == trained
    assert node.inputs[3].shape == (1, 8, 6, 6)


def test_addends_of_unlike_types_are_added_in_the_wider_one() -> None:
    w = Written(FLOAT16)
    first, second = w.parameter("first", (8, 6, 6), FLOAT16), w.parameter("second", (4, 1, 1, 6))
    scores = w.emit("Cast", w.emit("Add", w.scores(), first), dst_type=FLOAT32)
    weights = w.emit("Softmax", w.emit("Add", scores, second))
    w.graph.results = [w.emit("BatchMatMul", w.emit("Cast", weights, dst_type=FLOAT16), w.value)]
    assert FuseAttention().run(w.graph)
    w.graph.verify()
    (node,) = [node for node in w.graph.nodes if node.op.name == "FlashAttentionScore"]
    assert node.inputs[3].type == TensorType(FLOAT32, (4, 8, 6, 6))
