"""group_lookups: which lookups and sums of rows stay apart, and texts of groups.

move_casts: drawn networks of casts and of operators that move elements give the same bits, and move fewer bytes.
"""

import random

import numpy as np
import pytest

from mspc.ir.types import BFLOAT16, FLOAT16, FLOAT32, FLOAT64, INT8, INT32, INT64, DType, TensorType
from mspc.ops.convolution.resizing import ResizeNearestNeighbor
from mspc.ops.fused.grouped_rows import GroupedLookups, GroupedRowSums
from mspc.ops.tensor.moving import Concat, Split, Stack, Transpose
from mspc.ops.tensor.reshape import BroadcastTo, Cast, Reshape
from mspc.passes.base import parse_passes, run_passes
from mspc.passes.fusion import rewriter
from mspc.passes.fusion.move_casts import MoveCasts
from tests.errors import error_of
from tests.graphs import Builder, Graph, MspcError, Node, Parameter, Value, element_types
from tests.interpret import random_feeds, run_global
from tests.operators import Assign, AssignAdd, Gather, GatherGrad, Neg, StridedSlice, TupleGetItem
from tests.passes.fusion.written import graph_of


class Tables:
    """A graph that adds rows up."""

    def __init__(self) -> None:
        self.graph = Graph("tables")
        self.builder = Builder(self.graph)

    def given(self, dtype: DType, *shape: int, kind: str = "input") -> Parameter:
        name = f"p{len(self.graph.parameters)}"
        self.graph.parameters.append(Parameter(name, TensorType(dtype, shape), kind))
        return self.graph.parameters[-1]

    def sum(self, rows: Value | None = None, ids: Value | None = None, size: int = 8) -> Value:
        rows = self.given(FLOAT32, 6, 4) if rows is None else rows
        return self.builder.emit(GatherGrad(size), rows, self.given(INT32, 6) if ids is None else ids)

    def lookup(self, size: int = 8, cast: DType | None = None) -> Value:
        found = self.builder.emit(Gather(), self.given(FLOAT32, size, 4), self.given(INT32, 6))
        return found if cast is None else self.builder.emit(Cast(cast), found)

    def members(self, *results: Value) -> list[int]:
        """How many members each group has."""
        self.graph.results = list(results)
        made = run_passes(self.graph, parse_passes("group_lookups"))
        made.verify()
        return [
            len(node.op.sums if isinstance(node.op, GroupedRowSums) else node.op.lookups)
            for node in made.nodes
            if isinstance(node.op, GroupedRowSums | GroupedLookups)
        ]


def test_tables_of_all_sizes_are_a_group() -> None:
    make = Tables()
    assert make.members(*[make.sum(size=n) for n in (3, 8, 100)]) == [3]


def test_lookups_and_sums_are_no_group() -> None:
    make = Tables()
    found = [make.lookup(), make.sum(), make.lookup(20), make.sum()]
    assert make.members(*found) == [2, 2]


def test_lookups_with_casts_are_a_group_of_their_own() -> None:
    make = Tables()
    found = [make.lookup(cast=BFLOAT16), make.lookup(), make.lookup(9, cast=BFLOAT16), make.lookup(cast=INT32)]
    assert make.members(*found) == [2, 2]


def test_who_reads_a_cast_closes_the_group_of_its_lookup() -> None:
    make = Tables()
    first = make.builder.emit(Neg(), make.lookup(cast=BFLOAT16))
    assert make.members(first, *[make.lookup(cast=BFLOAT16) for _ in range(3)]) == [3]


@pytest.mark.parametrize("kind", ["wider", "more", "half", "integers"])
def test_others_stay_apart(kind: str) -> None:
    make = Tables()
    rows = {"wider": (FLOAT32, 6, 5), "more": (FLOAT32, 7, 4), "half": (BFLOAT16, 6, 4)}.get(kind, (FLOAT32, 6, 4))
    ids = make.given(INT64 if kind == "integers" else INT32, rows[1])
    assert make.members(make.sum(), make.sum(make.given(*rows), ids)) == []


def test_what_depends_on_a_member_is_of_another_group() -> None:
    make = Tables()
    first, second = make.sum(size=6), make.sum()
    third = make.sum(make.builder.emit(Neg(), first))
    assert make.members(second, third, make.sum()) == [2, 2]


def test_a_member_that_was_read_does_not_close_later_groups() -> None:
    make = Tables()
    first = make.sum()
    read = make.builder.emit(Neg(), first)
    second = make.sum()
    again = make.builder.emit(Neg(), first)
    assert make.members(read, again, second, make.sum()) == [2]


def test_integers_that_change_are_read_before() -> None:
    make = Tables()
    ids = make.given(INT32, 6, kind="parameter")
    first = make.sum(ids=ids)
    make.builder.emit(AssignAdd(), ids, make.given(INT32, 6))
    assert make.members(first, make.sum(ids=ids)) == []


def test_not_much_waits_for_the_last_member(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rewriter, "HELD", 2 * 6 * 4 * 4)
    make = Tables()
    rows = make.given(FLOAT32, 6, 4)
    found = [make.sum(make.builder.emit(Neg(), rows)) for _ in range(5)]
    assert make.members(*found) == [3, 2]


@pytest.mark.parametrize(
    ("sums", "message"),
    [
        ((), "GroupedRowSums has no members; it needs at least one"),
        (("Neg()",), "Neg does not add rows up by integers"),
        (("GatherGrad(x0, size=4, axis=0, offset=0, total=0)",),
         "'GatherGrad(x0, size=4, axis=0, offset=0, total=0)' names operands; write GatherGrad(key=value) alone"),
    ],
)
def test_bad_groups_are_named(sums: tuple[str, ...], message: str) -> None:
    assert error_of(GroupedRowSums, sums).message == message


def test_bad_groups_of_lookups_are_named() -> None:
    with pytest.raises(MspcError, match=r"^error: GroupedLookups has no members; it needs at least one$"):
        GroupedLookups(())
    with pytest.raises(MspcError, match=r"^error: Neg does not look rows up by integers$"):
        GroupedLookups(("Neg()",))
    types = TensorType(FLOAT32, (6, 4)), TensorType(INT32, (6,))
    with pytest.raises(MspcError, match=r"GroupedLookups takes 4 tensors, not 2"):
        GroupedLookups.of([Gather(), Gather()], None).infer(*types)
    with pytest.raises(MspcError, match=r"GroupedLookups: Float32 is not rounded to Int32"):
        GroupedLookups.of([Gather()], INT32).infer(*types)


def test_operands_that_do_not_fit_are_named() -> None:
    op = GroupedRowSums.of([GatherGrad(4), GatherGrad(5)])
    with pytest.raises(MspcError, match=r"GroupedRowSums takes 4 tensors, not 2"):
        op.infer(TensorType(FLOAT32, (6, 4)), TensorType(INT32, (6,)))


KINDS = (FLOAT16, BFLOAT16, FLOAT32, FLOAT64)


def moved_bytes(graph: Graph) -> int:
    """The bytes that all nodes read and write that are no views."""
    nodes = [node for node in graph.nodes if not node.op.is_view]
    return sum(t.nbytes for node in nodes for v in (node, *node.inputs) for t in element_types(v.type))


def drawn_graph(seed: int) -> Graph:
    draw = random.Random(seed)
    graph, b, given = graph_of(*(TensorType(draw.choice(KINDS), (4, 6)) for _ in range(3)), kind="input")
    graph.returns_tuple = True
    values: list[Value] = [*given]
    for _ in range(14):
        x = draw.choice(values[-5:])
        shape = x.shape
        kind = draw.randrange(9)
        if kind < 3:
            values.append(b.emit(Cast(draw.choice(KINDS)), x))
        elif kind == 3 and shape:
            values.append(b.emit(Transpose(tuple(draw.sample(range(len(shape)), len(shape)))), x))
        elif kind == 4:
            values.append(b.emit(Reshape(draw.choice([(-1,), (x.tensor_type.size, 1), (1, *shape[::-1])])), x))
        elif kind == 5 and shape[0] % 2 == 0:
            parts = b.emit(Split(0, 2), x)
            values += [b.emit(TupleGetItem(i), parts) for i in range(draw.choice([1, 2]))]
        elif kind == 6:
            same = [v for v in values if v.type == x.type]
            values.append(b.emit(draw.choice([Concat(0), Stack(0)]), x, draw.choice(same)))
        elif kind == 7:
            values.append(b.emit(StridedSlice(begin=(0,) * len(shape), end=shape, strides=(2,) * len(shape)), x))
        elif kind == 8:
            values.append(b.emit(draw.choice([Neg(), BroadcastTo((2, *shape))]), x))
    graph.results = [v for v in values[-5:] if isinstance(v, Node)]
    return graph


@pytest.mark.parametrize("seed", range(60))
def test_numbers_stay_and_no_more_bytes_move(seed: int) -> None:
    graph = drawn_graph(seed)
    feeds = random_feeds(graph)
    expected = run_global(graph, feeds)
    MoveCasts().run(drawn := drawn_graph(seed))
    drawn.verify()
    for got, want in zip(run_global(drawn, feeds), expected, strict=True):
        assert got.dtype == want.dtype
        assert np.array_equal(got, want)
    kernels = sum(not isinstance(node.op, Cast) and not node.op.is_view for node in drawn.nodes)
    assert kernels <= sum(not isinstance(node.op, Cast) and not node.op.is_view for node in graph.nodes)


def test_a_cast_stays_where_its_numbers_are_read_and_where_it_converts_fewer() -> None:
    graph, b, (x, y) = graph_of(TensorType(FLOAT32, (8, 8)), TensorType(BFLOAT16, (8, 8)))
    part = b.emit(StridedSlice(begin=(0, 0), end=(2, 8), strides=(1, 1)), x)
    wide = b.emit(Cast(FLOAT32), y)
    graph.results = [b.emit(Cast(BFLOAT16), part), b.emit(Transpose((1, 0)), wide), b.emit(Neg(), wide)]
    graph.returns_tuple = True
    before = moved_bytes(graph)
    assert not MoveCasts().run(graph)
    assert moved_bytes(graph) == before


def test_what_is_widened_is_read_before_it_is_updated() -> None:
    graph, b, (w, x) = graph_of(TensorType(BFLOAT16, (4, 6)), TensorType(BFLOAT16, (4, 6)))
    wide = b.emit(Cast(FLOAT32), w)
    update = b.emit(Assign(), w, x)
    graph.results = [b.emit(Transpose((1, 0)), wide), update]
    graph.returns_tuple = True
    feeds = random_feeds(graph)
    MoveCasts().run(graph)
    graph.verify()
    assert np.array_equal(run_global(graph, feeds)[0], feeds["x0"].astype(np.float32).T)


def test_an_image_is_resized_while_it_is_narrow_but_not_as_integers() -> None:
    """Whose nearest places the operator does not look for."""
    image = TensorType(FLOAT32, (2, 3, 4, 5))
    for kind, before, after in ((BFLOAT16, "ResizeNearestNeighbor Cast", "Cast ResizeNearestNeighbor"),
                                (INT8, "ResizeNearestNeighbor Cast", "ResizeNearestNeighbor Cast")):  # fmt: skip
        graph, b, (given,) = graph_of(image)
        graph.results = [b.emit(Cast(kind), b.emit(ResizeNearestNeighbor(size=(8, 10)), given))]
        feeds = random_feeds(graph)
        expected = run_global(graph, feeds)[0]
        assert " ".join(node.op.name for node in graph.nodes) == before
        MoveCasts().run(graph)
        graph.verify()
        assert " ".join(node.op.name for node in graph.nodes) == after
        assert np.array_equal(run_global(graph, feeds)[0], expected)
    graph, b, (given,) = graph_of(TensorType(INT8, (2, 3, 4, 5)))
    wide = b.emit(Cast(FLOAT32), given)
    graph.results = [b.emit(ResizeNearestNeighbor(size=(2, 2)), wide)]
    assert not MoveCasts().run(graph)
