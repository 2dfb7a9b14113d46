"""Rows of scores whose keys are all masked: fused attention gives what it gives written out, gradients too."""

import math
from typing import Any

import numpy as np
import pytest

from mspc import Tensor, nn, ops
from mspc.passes.fusion.attention_masks import CAUSAL_MASK, ROWS_HOLD, note_rows
from mspc.passes.fusion.fuse_attention import FuseAttention
from tests.compiled_scripts import Config, compile_call
from tests.graphs import BOOL, FLOAT16, FLOAT32, FLOAT64, REGISTRY, Graph, Node, Parameter, Value, parse, print_graph
from tests.interpret import run_global, same
from tests.passes.fusion.masked_attention import KEYS, LOWEST, QUERIES, Masked, with_whole_rows
from tests.shares import crossed


def fused(graph: Graph, **feeds: np.ndarray) -> Graph | None:
    """Run the pass, and hold results and gradients to those of what is written out; None where it does not fuse."""
    before = parse(print_graph(graph), REGISTRY).main
    FuseAttention().run(graph)
    graph.verify()
    assert not any(ROWS_HOLD in p.attrs for p in graph.parameters)
    if not any(node.op.name == "FlashAttentionScore" for node in graph.nodes):
        return None
    after = parse(print_graph(graph), REGISTRY).main
    draw = np.random.default_rng(3).standard_normal
    arrays = {
        p.name: np.asarray(feeds.get(p.name, draw(p.shape))).astype(p.tensor_type.dtype.numpy) for p in graph.parameters
    }
    with np.errstate(all="ignore"):
        found, expected = run_global(graph, arrays), run_global(before, arrays)
    same(found, expected)
    return after


def operators(graph: Graph | None) -> set[str]:
    assert graph is not None
    return {node.op.name for node in graph.nodes}


SHAPES = {
    "BNSD": [(4, 5), (1, 5), (5,), (1,), (4, 1), (3, 4, 5), (2, 1, 1, 5), (2, 1, 4, 5), (2, 3, 4, 5), (1, 3, 1, 5)],
    "BSH": [(4, 5), (5,), (1, 4, 5), (1, 1, 5), (4, 1)],
}
SHAPES["BSND"] = SHAPES["BNSD"]


@pytest.mark.parametrize(
    ("layout", "number", "dtype"), crossed(SHAPES, [-1e4, -1e9, -65504.0, LOWEST, -math.inf], [FLOAT64, FLOAT32])
)
def test_masks_that_are_given_at_run_time(layout: str, number: float, dtype: Any) -> None:
    for seed, shape in enumerate(SHAPES[layout]):
        m = Masked(layout, dtype)
        graph = m.finish(m.filled(m.scores(), m.parameter("mask", shape, BOOL), number, seed % 2 > 0))
        assert "ReduceAll" in operators(fused(graph, mask=with_whole_rows(shape, seed)))


@pytest.mark.parametrize("number", [-1e9, -math.inf])
@pytest.mark.parametrize("layout", ["BNSD", "BSND"])
def test_one_head_of_key_and_value(layout: str, number: float) -> None:
    m = Masked(layout, key_heads=1)
    graph = m.finish(m.filled(m.scores(), m.parameter("mask", (2, 3, 4, 5), BOOL), number))
    assert fused(graph, mask=with_whole_rows((2, 3, 4, 5), 1)) is not None


@pytest.mark.parametrize("number", [-1e9, -math.inf])
@pytest.mark.parametrize("layout", ["BNSD", "BSND"])
def test_heads_of_key_and_value_that_serve_several_of_the_query(
    layout: str, number: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tests.passes.fusion.masked_attention.HEADS", 6)
    m = Masked(layout, key_heads=2)
    m.key, m.value = (m.emit("RepeatInterleaveInt", part, repeats=3, dim=1) for part in (m.key, m.value))
    graph = m.finish(m.filled(m.scores(), m.parameter("mask", (2, 6, 4, 5), BOOL), number))
    after = fused(graph, mask=with_whole_rows((2, 6, 4, 5), 1))
    assert after is not None
    (made,) = (node for node in after.nodes if node.op.name == "FlashAttentionScore")
    assert 2 in made.inputs[2].shape[1:3]


@pytest.mark.parametrize("mask", [np.zeros((4, 5), np.bool_), np.tri(4, 5, -1, np.bool_), np.ones((4, 5), np.bool_)])
def test_a_number_that_a_factor_makes_infinite(mask: np.ndarray) -> None:
    m = Masked()
    filled = m.filled(m.scores(), m.parameter("mask", (4, 5), BOOL), LOWEST)
    assert fused(m.finish(m.emit("Mul", filled, 2.0)), mask=mask) is not None


def test_a_number_that_a_cast_makes_infinite() -> None:
    """And one that a cast leaves as it is."""
    for number in (-1e9, -1e4):
        m = Masked()
        filled = m.filled(m.scores(), m.parameter("mask", (4, 5), BOOL), number)
        narrow = m.emit("Cast", m.emit("Softmax", m.emit("Cast", filled, dst_type=FLOAT16)), dst_type=FLOAT32)
        m.graph.results = [m.emit("BatchMatMul", narrow, m.value)]
        FuseAttention().run(m.graph)
        assert ("ReduceAny" in operators(m.graph)) is (number == -1e9)


def test_several_numbers_in_one_row_stay() -> None:
    m = Masked()
    numbers = m.b.constant(np.array([-1e9, -1e9, -1e9, -1e9, -2e9]), m.dtype)
    scores = m.emit("Select", m.parameter("mask", (4, 5), BOOL), numbers, m.scores())
    assert fused(m.finish(scores)) is None


# Masks that leave every row a key ------------------------------------------------------------------------------


def distance(m: Masked) -> Node:
    places = [m.emit("Range", limit=length, dtype=FLOAT32) for length in (QUERIES, KEYS)]
    return m.emit("Sub", places[1], m.emit("ExpandDims", places[0], axis=1))


def window(m: Masked) -> tuple[Value, None]:
    far = m.emit("Greater", m.emit("Abs", distance(m)), 1.0)
    return m.emit("Reshape", far, shape=(1, 1, QUERIES, KEYS)), None


def noted(m: Masked, array: np.ndarray) -> Parameter:
    made = m.parameter("mask", array.shape, BOOL, "constant")
    note_rows(m.graph, {"mask": array})
    return made


def ragged(m: Masked) -> tuple[Value, np.ndarray]:
    array = np.array([[1, 1, 0, 1, 1], [0, 1, 1, 1, 1], [0, 0, 0, 0, 0], [1, 0, 1, 0, 1]], np.bool_)
    return noted(m, array), array


def turned(m: Masked) -> tuple[Value, np.ndarray]:
    array = ~np.array([[1, 1, 0, 1, 1], [0, 1, 1, 1, 1], [0, 0, 0, 0, 0], [1, 0, 1, 0, 1]], np.bool_)
    return m.emit("ExpandDims", m.emit("LogicalNot", noted(m, array)), axis=0), array


def triangle(m: Masked, diagonal: int, near: bool) -> tuple[Value, np.ndarray]:
    made = m.parameter("mask", (QUERIES, KEYS), BOOL, "constant")
    made.attrs[CAUSAL_MASK] = (diagonal, near, not near)
    return made, np.tri(QUERIES, KEYS, diagonal, np.bool_) == near


@pytest.mark.parametrize(
    "make", [window, ragged, turned, lambda m: triangle(m, 2, False), lambda m: triangle(m, 0, True)]
)
@pytest.mark.parametrize("number", [-1e9, -math.inf])
def test_where_every_row_has_a_key_nothing_is_added(make: Any, number: float) -> None:
    m = Masked()
    mask, array = make(m)
    after = fused(m.finish(m.filled(m.scores(), mask, number)), **({} if array is None else {"mask": array}))
    assert not {"ReduceAll", "ReduceMean"} & operators(after)


def no_key_at_one(m: Masked) -> tuple[Value, np.ndarray]:
    mask, array = ragged(m)
    array = array | (np.arange(QUERIES) == 1)[:, None]
    m.graph.parameters.remove(mask)  # type: ignore[arg-type]  # a parameter
    return noted(m, array), array


def small(m: Masked) -> tuple[Value, None]:
    return m.b.constant(np.repeat([[True], [False]], 2, axis=0).reshape(4, 1), BOOL), None


@pytest.mark.parametrize(
    "make",
    [no_key_at_one, small, lambda m: triangle(m, -1, False), lambda m: triangle(m, 1, True),
     lambda m: (m.emit("GreaterEqual", distance(m), 0.0), None)],
)  # fmt: skip
def test_constants_with_a_row_without_a_key(make: Any) -> None:
    m = Masked()
    mask, array = make(m)
    after = fused(m.finish(m.filled(m.scores(), mask, -1e9)), **({} if array is None else {"mask": array}))
    assert "ReduceAll" in operators(after)


class Hidden(nn.Cell):
    """Attention of x with itself and a constant mask."""

    def __init__(self, hidden: np.ndarray) -> None:
        super().__init__()
        self.hidden = Tensor(hidden)

    def construct(self, x: Any) -> Any:
        scores = ops.masked_fill(ops.bmm(x, ops.transpose(x, (0, 2, 1))), self.hidden, -1e9)
        return ops.bmm(ops.softmax(scores), x)


@pytest.mark.parametrize("whole", [False, True])
def test_a_compile_looks_into_the_constants_of_the_script(whole: bool) -> None:
    hidden = np.random.default_rng(1).random((20, 20)) < 0.5
    hidden[3] = whole
    found = compile_call(Hidden(hidden), [Tensor(np.ones((2, 20, 4), np.float32))], Config(ranks=1, device="GPU"))
    assert "FlashAttentionScore" in operators(found.graph)
    assert ("ReduceAll" in operators(found.graph)) is whole


# Addends -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("layout", "number", "dtype"), crossed(SHAPES, [-1e4, -1e9, -65504.0, LOWEST, -math.inf], [FLOAT64, FLOAT32])
)
def test_numbers_that_are_added(layout: str, number: float, dtype: Any) -> None:
    """Finite ones are added by the operator, too, so that nothing is to be put right."""
    for seed, shape in enumerate(SHAPES[layout]):
        m = Masked(layout, dtype)
        mask = m.parameter("mask", shape, BOOL)
        shift = m.emit("Select", mask, number, 0.0)
        after = fused(m.finish(m.emit("Add", m.scores(), shift)), mask=with_whole_rows(shape, seed))
        assert ("ReduceAll" in operators(after)) is (number == -math.inf)


@pytest.mark.parametrize("layout", SHAPES)
def test_what_is_fed_is_added_as_it_is(layout: str) -> None:
    for shape in SHAPES[layout]:
        for number in (-1e9, -math.inf):
            m = Masked(layout)
            shift = m.parameter("shift", shape)
            hidden = np.where(with_whole_rows(shape, 4), number, 0)
            assert fused(m.finish(m.emit("Add", m.scores(), shift), shift), shift=hidden) is not None


def test_what_is_trained_or_computed_is_finite() -> None:
    for kind in ("parameter", "input"):
        m = Masked()
        shift: Value = m.parameter("shift", (3, 4, 5), kind=kind)
        if kind == "input":
            shift = m.emit("Mul", m.emit("Sub", 1.0, shift), -1e9)
        ones = np.random.default_rng(2).integers(0, 2, (3, 4, 5))
        assert "ReduceAll" not in operators(fused(m.finish(m.emit("Add", m.scores(), shift)), shift=ones))


@pytest.mark.parametrize(("kind", "last", "fuses"), [
    ("parameter", False, True), ("parameter", True, False), ("input", False, False), ("constant", False, False),
])  # fmt: skip
def test_a_mask_beside_what_is_added(kind: str, last: bool, fuses: bool) -> None:
    m = Masked()
    mask, shift = m.parameter("mask", (4, 5), BOOL), m.parameter("shift", (3, 4, 5), kind=kind)
    scores = m.scores() if last else m.emit("Add", m.scores(), shift)
    scores = m.filled(scores, mask, -1e9)
    graph = m.finish(m.emit("Add", scores, shift) if last else scores, shift)
    assert (fused(graph, mask=with_whole_rows((4, 5), 2)) is not None) is fuses


def test_a_triangle_beside_what_hides_keys_stays() -> None:
    """The first query looks at the first key alone, which padding may hide."""
    m = Masked()
    future, array = triangle(m, 0, False)
    padding = m.emit("Select", m.parameter("padding", (2, 1, 1, 5), BOOL), -1e9, 0.0)
    assert fused(m.finish(m.filled(m.emit("Add", m.scores(), padding), future, -1e9)), mask=array) is None
