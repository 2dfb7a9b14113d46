"""Strategies that cannot be: exact messages, all independent ones together, and the meshes of those that can.

Grids of ranks for experts, as strategies and layouts name them.
Which operators are products, whose work has to be shared by all ranks.
"""

from collections.abc import Callable
from typing import Any

import pytest

from mspc.ir.diagnostics import ErrorGroup, Location, MspcError
from mspc.ops.op import REGISTRY, NotDifferentiable, Op
from mspc.passes.lib.choices import multiplies, rule_of
from mspc.passes.lib.experts import mesh_of
from mspc.passes.sharding.check_strategies import CheckStrategies
from tests.errors import error_of
from tests.graphs import FLOAT32, INT32, INT64, Builder, Graph, Layout, NamedLayout, Node, Parameter, TensorType, Value
from tests.operators import GroupedProduct, L2Normalize


class Sharded:
    """A graph on `ranks` ranks with one line of source per operator."""

    def __init__(self, ranks: int = 8) -> None:
        self.graph = Graph("net")
        self.graph.attrs = {"ranks": ranks, "mode": "semi_auto_parallel"}
        self.builder = Builder(self.graph)

    def tensor(self, *shape: int) -> Parameter:
        parameter = Parameter(f"p{len(self.graph.parameters)}", TensorType(FLOAT32, shape))
        self.graph.parameters.append(parameter)
        return parameter

    def matmul(self, strategy: object, x: tuple = (16, 32), w: tuple = (32, 16), out: object = None) -> Node:
        return self.emit("MatMul", strategy, self.tensor(*x), self.tensor(*w), out=out)

    def emit(self, name: str | Op, strategy: object, *inputs: Parameter, out: object = None, **fields: object) -> Node:
        line = len(self.graph.nodes) + 1
        self.builder.frames = (Location("net.py", line, 5, 10, "out = op(x)"),)
        op = REGISTRY[name](**fields) if isinstance(name, str) else name
        node = self.builder.emit(op, *inputs, instance=f"op{line}")
        node.in_strategy, node.out_strategy = strategy, out
        return node

    def message(self) -> str:
        return error_of(lambda: CheckStrategies().run(self.graph)).render()


HEAD = "net.py:1:5: error: MatMul 'op1': "
SOURCE = "\n    out = op(x)\n        ^^^^^"


@pytest.mark.parametrize(
    ("strategy", "message", "note"),
    [
        (((3, 1), (1, 1)), "dimension 0 of input 0 is 16, which 3 does not divide",
         "shard it into 1, 2, 4, 8 or 16 slices"),
        (((2, 4),), "the strategy has 1 entries, but the operator has 2 tensor inputs",
         "give one tuple per input, for example ((1, 1), (1, 1))"),
        (((2, 4, 1), (4, 1)), "the strategy of input 0 is (2, 4, 1), which has 3 numbers for 2 dimensions, whose "
         "shape is (16, 32)", "give one number per dimension, for example (1, 1)"),
        (((2, 4), (2, 1)), "dimension 0 of input 1 is sharded into 2 slices, but dimension 1 of input 0 into 4, "
         "and both are the same dimension of the operator", "shard both into 4, or both into 2"),
        (((4, 4), (4, 1)), "the strategy ((4, 4), (4, 1)) needs 16 ranks, but there are 8",
         "the product of its numbers must divide 8\n  note: all strategies of the network divide 16 ranks, and "
         "multiples of 16"),
        (((0, 1), (1, 1)), "dimension 0 of input 0 is sharded into 0 slices; give an integer of at least 1", ""),
    ],
)  # fmt: skip
def test_a_strategy_that_cannot_be(strategy: tuple, message: str, note: str) -> None:
    net = Sharded()
    net.matmul(strategy)
    assert net.message() == HEAD + message + SOURCE + (f"\n  note: {note}" if note else "")


def test_a_strategy_that_does_not_divide_the_ranks() -> None:
    net = Sharded(ranks=6)
    net.matmul(((4, 1), (1, 1)))
    assert "the strategy ((4, 1), (1, 1)) uses 4 ranks, which does not divide 6" in net.message()


def test_a_dimension_that_must_not_be_sharded() -> None:
    net = Sharded()
    net.emit("L2Normalize", ((2, 4),), net.tensor(16, 32), axis=-1)
    assert net.message() == (
        "net.py:1:5: error: L2Normalize 'op1': dimension 1 of input 0 must not be sharded, "
        "but the strategy shards it into 4 slices"
        f"{SOURCE}\n  note: use 1 there"
    )


def test_a_layout_on_too_few_ranks() -> None:
    net = Sharded()
    layout = NamedLayout((2, 2), ("dp", "mp"), (1, 0))
    net.matmul((layout, NamedLayout((2, 2), ("dp", "mp"), (0, -1))))
    assert "the layout's device matrix (2, 2) has 4 ranks, but there are 8" in net.message()


def test_one_axis_on_two_dimensions() -> None:
    net = Sharded()
    make: Callable[..., NamedLayout] = lambda *entries: NamedLayout((2, 4), ("dp", "mp"), entries)  # noqa: E731  # short
    net.matmul((make(1, 0), make(0, 1)))
    assert (
        "axis 'dp' of the layout shards two different dimensions of the operator: dimension 0 of input 0 and "
        "dimension 1 of input 1"
    ) in net.message()


def test_one_dimension_of_the_operator_along_two_axes() -> None:
    net = Sharded()
    make: Callable[..., NamedLayout] = lambda *entries: NamedLayout((2, 4), ("dp", "mp"), entries)  # noqa: E731  # short
    net.matmul((make(1, 0), make(-1, -1)))
    assert "note: dimension 0 of input 1 is along no axis, dimension 1 of input 0 along 'mp'" in net.message()


@pytest.mark.parametrize(
    ("kind", "operator", "message"),
    [
        ("input", "Neg", ""),
        ("parameter", "Neg", "interleaved_parallel takes input 0, the parameter w, in parts"),
        ("input", L2Normalize(axis=-1), "dimension 1 of input 0 in parts, which must not be sharded"),
    ],
)
def test_parts_that_run_one_after_the_other(kind: str, operator: Any, message: str) -> None:
    net = Sharded()
    layout = NamedLayout((2, 4), ("dp", "mp"), (1, -1), 2, 1)
    value = net.tensor(16, 32)
    value.name, value.kind = "w", kind
    net.emit(operator, (layout,), value)
    if message:
        assert message in net.message()
    else:
        CheckStrategies().run(net.graph)


def test_an_axis_of_one_rank_cuts_nothing() -> None:
    net = Sharded()
    layout = NamedLayout((8, 1), ("dp", "mp"), (1, 0))
    node = net.emit("Concat", (layout, layout), net.tensor(16, 32), net.tensor(16, 32), axis=1)
    CheckStrategies().run(net.graph)
    assert isinstance(node.layout, Layout)
    assert node.layout.strategy == (8, 1)


@pytest.mark.parametrize("entry", [(2, 4), NamedLayout((2, 4), ("dp", "mp"), (1, 0))])
def test_what_skips_redistribution_is_replicated_where_it_must_be(entry: object) -> None:
    net = Sharded()
    node = net.emit("Split", (entry,), net.tensor(16, 32), axis=1, output_num=2)
    node.attrs["skip_redistribution"] = True
    CheckStrategies().run(net.graph)
    assert node.in_layouts is not None
    assert node.in_layouts[0].strategy == (2, 1)


def test_an_out_strategy_that_does_not_follow() -> None:
    net = Sharded()
    net.matmul(((2, 4), (4, 1)), out=((4, 1),))
    assert "the out_strategy (4, 1) does not follow from the in_strategy" in net.message()


def test_out_layouts_follow_the_in_strategy() -> None:
    make: Callable[..., NamedLayout] = lambda *entries: NamedLayout((2, 4), ("dp", "mp"), entries)  # noqa: E731  # short
    for ins, out in (((make(1, 0), make(0, -1)), make(1, 0)), ((make(1, -1), make(-1, 0)), make(1, 0))):
        net = Sharded()
        net.matmul(ins, out=(out,))
        CheckStrategies().run(net.graph)
    net = Sharded()
    net.emit("Transpose", (make(1, 0),), net.tensor(16, 32), perm=(1, 0), out=(make(1, 0),))
    assert net.message() == (
        f"net.py:1:5: error: Transpose 'op1': the out layout (2, 4) [0, 1] does not follow from the in_strategy{SOURCE}"
        "\n  note: the result is laid out (2, 4) [1, 0]"
    )


def test_an_out_layout_may_shard_repetitions_only() -> None:
    not_sharded, sharded = NamedLayout((2, 4), ("dp", "mp"), (-1, -1)), NamedLayout((2, 4), ("dp", "mp"), (-1, 0))
    for times, fits in ((4, True), (2, False)):
        net = Sharded()
        net.emit("Tile", (not_sharded,), net.tensor(16, 32), multiples=(1, times), out=(sharded,))
        if fits:
            CheckStrategies().run(net.graph)
        else:
            assert "Tile 'op1': the out layout (2, 4) [-, 1] does not follow from the in_strategy" in net.message()


def test_an_operator_without_rule_and_two_bad_strategies_are_listed_together() -> None:
    class Ruleless(Op, abstract=True):
        """An operator that only one device can run."""

        bprop = NotDifferentiable("test")

        def infer(self, *types: object) -> object:
            return types[0]

    net = Sharded()
    net.matmul(((3, 1), (1, 1)))
    net.emit(Ruleless(), None, net.tensor(4, 4))
    net.matmul(((16, 1), (1, 1)))
    with pytest.raises(ErrorGroup) as raised:
        CheckStrategies().run(net.graph)
    text = str(raised.value)
    assert text.count(": error: ") == 3
    assert text.endswith("3 errors")
    assert "net.py:2:5: error: Ruleless 'op2' has no sharding rule" in text


def test_the_mesh_is_the_cuts_and_the_repeated_axis_last() -> None:
    net = Sharded()
    node = net.matmul(((2, 1), (1, 2)))
    CheckStrategies().run(net.graph)
    assert node.in_layouts == (Layout.of((2, 2, 2), [(0,), ()]), Layout.of((2, 2, 2), [(), (1,)]))
    assert node.layout == Layout.of((2, 2, 2), [(0,), (1,)])


def test_a_reduce_scatter_by_out_strategy() -> None:
    net = Sharded()
    node = net.matmul(((2, 4), (4, 1)), out=((8, 1),))
    net.graph.results = [node]
    CheckStrategies().run(net.graph)
    moved = net.graph.results[0]
    assert isinstance(moved, Node)
    assert moved.op.name == "Redistribute"
    assert moved.layout == Layout.of((8,), [(0,), ()])


def split_in_two(out: object, self_defined: bool) -> Sharded:
    net = Sharded()
    node = net.emit("Split", ((2, 1),), net.tensor(16, 32), out=out, axis=1, output_num=2)
    if self_defined:
        node.attrs["self_define_shard"] = True
    return net


def test_several_results_have_their_natural_layouts_alone() -> None:
    natural = ((2, 1), (2, 1))
    CheckStrategies().run(split_in_two(natural, self_defined=True).graph)
    with pytest.raises(MspcError):
        CheckStrategies().run(split_in_two(((1, 1), (2, 1)), self_defined=True).graph)
    for out in (natural, natural[:1]):
        assert "an out_strategy needs one entry, for the operator's one result" in split_in_two(out, False).message()


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
