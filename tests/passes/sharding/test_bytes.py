"""Bytes that ranks send where operators have no strategy, and for the states of optimizers.

Each number is the mean over the ranks under ring algorithms, without what is sent only to hand results to the caller.
"""

import itertools
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Parameter, Tensor, nn, ops
from mspc.analysis.cost.nodes import sent_bytes
from mspc.ir.graph import Parameter as GraphParameter
from mspc.ops.optim.optimizer import AssignAdd
from mspc.passes.lib.propagation import shard_parameters, why_not_sharded
from tests.compiled_scripts import CompileOptions, Config, compile_call, verify_target
from tests.compiler.sharded_networks import HEAD, compiled
from tests.graphs import FLOAT32, Builder, Collective, Graph, Layout, MspcError, TensorType

RANKS = 8
Shape = tuple[int, ...]


def sent(cell: nn.Cell, *shapes: Shape, mode: str = "semi_auto_parallel", fed: str = "full_batch",
         **settings: Any) -> float:  # fmt: skip
    """shapes: what each rank feeds."""
    config = Config(ranks=RANKS, mode=mode, dataset_strategy=fed, **settings)
    compiled = compile_call(cell, [TensorType(FLOAT32, shape) for shape in shapes], config)
    nodes = [node for rank in range(RANKS) for node in compiled.rank_graph(rank).nodes]
    return sum(
        sent_bytes(node) for node in nodes if "the caller receives" not in str(node.attrs.get("reason", ""))
    ) / RANKS  # fmt: skip


def weight(*shape: int) -> Parameter:
    return Parameter(Tensor(np.ones(shape, np.float32)))


def momentum(cell: nn.Cell) -> nn.Cell:
    return nn.TrainOneStepCell(cell, nn.Momentum(cell.trainable_params(), 0.1, 0.9))


class Gradient(nn.Cell):
    """The gradients of a cell's result in its arguments."""

    def __init__(self, cell: nn.Cell) -> None:
        super().__init__()
        self.gradient = ops.GradOperation(get_all=True)(cell)

    def construct(self, *inputs: Any) -> Any:
        return self.gradient(*inputs)


class Rows(nn.Cell):
    """The mean square of rows of a table times y, the product with a strategy."""

    def __init__(self, axis: int = 0, own: bool = False) -> None:
        super().__init__()
        self.table, self.own, self.axis = weight(64, 32), own, axis
        self.places = Tensor(np.ones((64, 64)), ms.int32)
        self.mul = ops.Mul().shard(((4, 2, 1), (4, 2, 1)))

    def construct(self, x: Any, y: Any) -> Any:
        rows = ops.gather(self.table if self.own else x, self.places, self.axis)
        return ops.square(self.mul(rows, y)).mean()


class Between(nn.Cell):
    """An operator with a strategy, `between`, and another one."""

    def __init__(self, first: Shape, last: Shape, between: Callable[[Any], Any]) -> None:
        super().__init__()
        self.first, self.last, self.between = ops.Neg().shard((first,)), ops.Exp().shard((last,)), between

    def construct(self, x: Any) -> Any:
        return ops.square(self.last(self.between(self.first(x)))).mean()


class Products(nn.Cell):
    """Two products with a function between them."""

    def __init__(self, first: Any, last: Any, between: nn.Cell | None = None, transpose_a: bool = False) -> None:
        super().__init__()
        self.u, self.v = weight(64, 64), weight(64, 64)
        self.first, self.last = ops.MatMul(transpose_a=transpose_a).shard(first), ops.MatMul().shard(last)
        self.between = between or nn.ReLU()

    def construct(self, x: Any) -> Any:
        return ops.square(self.last(self.between(self.first(x, self.u)), self.v)).mean()


class Assigned(nn.Cell):
    """A parameter that is given a product."""

    def __init__(self, operator: Any) -> None:
        super().__init__()
        self.held = Parameter(Tensor(np.zeros((64, 32), np.float32)), requires_grad=False)
        self.mul, self.operator = ops.Mul().shard(((4, 2), (4, 2))), operator

    def construct(self, x: Any, y: Any) -> Any:
        product = self.mul(x, y)
        self.operator(self.held, product)
        return product.sum()


COLUMN_ROW = ((2, 1), (1, 4)), ((2, 4), (4, 1))
ROW_COLUMN = ((2, 4), (4, 1)), ((2, 1), (1, 4))
BATCH = ((8, 1), (1, 1)), ((8, 1), (1, 1))


@pytest.mark.parametrize(("axis", "y"), [(0, (64, 64, 32)), (1, (64, 64, 64))])
def test_a_table_is_not_sharded_where_its_rows_are_looked_up(axis: int, y: Shape) -> None:
    """458,752 and 65,536 where the table's first dimension was taken for a batch."""
    assert sent(Gradient(Rows(axis)), (64, 32) if axis == 0 else (64, 64), y) == 0


def test_a_parameter_whose_rows_are_looked_up_sends_its_gradient_alone() -> None:
    assert sent(momentum(Rows(own=True)), (64, 32), (64, 64, 32)) == 2 * 7 / 8 * (64 * 32 * 4)


@pytest.mark.parametrize("strategy", [(2, 4), (1, 8), (1, 1), (2, 1)])
@pytest.mark.parametrize("between", [ops.relu, lambda x: ops.tanh(ops.relu(x) + 1.0), lambda x: x.T.sin().T])
def test_operators_between_equal_strategies_follow_them(strategy: Shape, between: Callable[[Any], Any]) -> None:
    """Sharded along the batch they would change their layout twice forward and twice back."""
    assert sent(Gradient(Between(strategy, strategy, between)), (64, 64)) == 0


def test_a_chain_between_two_strategies_changes_its_layout_once() -> None:
    """There and back; sharded along the batch it was twice each."""
    once = sent(Gradient(Between((1, 8), (2, 4), lambda x: x * 1.0)), (64, 64))
    assert 0 < sent(Gradient(Between((1, 8), (2, 4), lambda x: ops.tanh(ops.relu(x) + 1.0))), (64, 64)) <= once


def test_a_chain_changes_its_layout_where_it_is_smallest() -> None:
    """Behind the sum over columns 1/64 is left; the sum's terms are complete on the way."""
    narrow = Between((8, 1), (1, 1), lambda x: ops.tanh(ops.relu(x)).sum(1, keepdims=True))
    assert sent(narrow, (64, 64)) == 7 * 8 * 4


def test_without_any_strategy_the_batch_is_sharded() -> None:
    class Plain(nn.Cell):
        def construct(self, x: Any) -> Any:
            return ops.tanh(ops.relu(x))

    compiled = compile_call(
        Plain(), [TensorType(FLOAT32, (64, 64))],
        Config(ranks=RANKS, mode="semi_auto_parallel", dataset_strategy="full_batch"),
    )  # fmt: skip
    sources = [node.attrs["strategy_from"] for node in compiled.graph.nodes if "strategy_from" in node.attrs]
    assert sources == ["batch", "batch"]


def test_a_function_between_products_follows_them() -> None:
    """The remaining bytes: a sum of partial products and its gradient's gathering, and the gradients over two
    replicas."""
    assert sent(momentum(Products(*COLUMN_ROW)), (64, 64)) == 2 * 6144 + 2 * 4096


@pytest.mark.parametrize("optimizer", [nn.Lamb, nn.AdamWeightDecay, nn.Adagrad])
@pytest.mark.parametrize("cuts", [COLUMN_ROW, ROW_COLUMN, BATCH], ids=["column row", "row column", "batch"])
def test_an_optimizer_of_small_operators_sends_as_much_as_momentum(optimizer: Any, cuts: Any) -> None:
    """Its states lie as the parameter does, and a gradient is reduced once however often it is read; Lamb's norms are
    a few bytes."""
    cell = Products(*cuts)
    step = nn.TrainOneStepCell(cell, optimizer(cell.trainable_params(), 0.1))
    assert sent(step, (64, 64)) <= sent(momentum(Products(*cuts)), (64, 64)) + 64


@pytest.mark.parametrize("cuts", [COLUMN_ROW, BATCH], ids=["column row", "batch"])
def test_states_follow_parameters_that_replicas_share_out(cuts: Any) -> None:
    cell = Products(*cuts)
    step = nn.TrainOneStepCell(cell, nn.Lamb(cell.trainable_params(), 0.1))
    shared = {"parallel_optimizer": True, "parallel_optimizer_threshold": 0}
    assert sent(step, (64, 64), **shared) <= sent(momentum(Products(*cuts)), (64, 64), **shared) + 64


@pytest.mark.parametrize("operator", [ops.Assign(), ops.AssignAdd(), ops.AssignSub()], ids=lambda o: o.name)
def test_a_parameter_that_is_assigned_lies_as_its_new_value(operator: Any) -> None:
    """Replicated it took 7,168 bytes to bring the value there."""
    assert sent(Assigned(operator), (64, 32), (64, 32)) == 0


def test_the_gradient_of_a_slope_is_reduced_once() -> None:
    """A sharded PReLU: the gradients of both products over two replicas, and that of 16 slopes on each rank."""
    cell = Products(*COLUMN_ROW, between=nn.PReLU(64))
    cell.between.prelu.shard(((2, 4), (4,)))
    assert sent(momentum(cell), (64, 64)) == 2 * 6144 + 2 * 4096 + 16 * 4


def test_the_borders_of_windows_count_beside_changes_of_layout() -> None:
    """Slices of 8 x 4 places whose windows look at 12 x 10 on average are brought to complete images, and back; 2,816
    bytes where borders counted nothing."""
    pooled = Between((1, 1, 2, 4), (1, 1, 2, 4), lambda x: ops.max_pool2d(x, 9, 1, 4))
    assert sent(pooled, (8, 1, 16, 16)) == 2 * 7 / 8 * (8 * 16 * 16 * 4 / 8)
    narrow = Between((1, 1, 2, 4), (1, 1, 2, 4), lambda x: ops.max_pool2d(x, 3, 1, 1))
    assert sent(narrow, (8, 1, 16, 16)) == 560


@pytest.mark.parametrize(("layers", "expected"), [(1, 224 + 252), (2, 224 + 252 + 2 * 224 + 252)])
def test_the_gradient_of_weights_sends_no_borders_again(layers: int, expected: int) -> None:
    """1.75 rows of 128 bytes for each convolution and for the gradient of its image, and the sum of its weights'
    gradients."""

    class Rows(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.CellList([nn.Conv2d(2, 2, 3) for _ in range(layers)])
            for layer in self.layers:
                layer.conv2d.shard(((1, 1, 8, 1), (1, 1, 1, 1)))

        def construct(self, x: Any) -> Any:
            for layer in self.layers:
                x = layer(x)
            return ops.square(x).sum()

    assert sent(momentum(Rows()), (1, 2, 16, 16)) == expected


class Slopes(nn.Cell):
    """A product and an operator without a strategy that has a small parameter."""

    def __init__(self, strategy: Any) -> None:
        super().__init__()
        self.product, self.u, self.slopes = ops.MatMul().shard(strategy), weight(64, 64), nn.PReLU(64)

    def construct(self, x: Any) -> Any:
        return ops.square(self.slopes(self.product(x, self.u))).mean()


@pytest.mark.parametrize(
    ("strategy", "expected"),
    [
        (((2, 1), (1, 4)), 4096 + 64 + 192),
        (((1, 1), (1, 8)), 224),
        (((2, 4), (4, 1)), 6144 + 1536 + 4096 + 64 + 192),
        (((8, 1), (1, 1)), 2 * 14336 + 448),
    ],
)
def test_an_operator_with_a_parameter_follows_the_product_before_it(strategy: Any, expected: int) -> None:
    """The parameter is stored replicated, read in slices, and the slices' gradients are gathered; 7,616, 4,032, 16,832
    and 29,120 bytes where it had to be read replicated. The bytes that the product sends: its partial sums and its
    gradients."""
    assert sent(momentum(Slopes(strategy)), (64, 64)) == expected


@pytest.mark.parametrize(("strategy", "expected"), [((8, 1), 4 * 14336), ((1, 8), 2 * 14336), ((2, 4), 20480)])
def test_a_product_of_stored_slices_gathers_them(strategy: Shape, expected: int) -> None:
    """((8, 1), (8, 1)) gathers both weights once, and scatters both gradients; ((1, 8), (1, 8)) gathers what lies
    between the products, and its gradient."""
    assert sent(momentum(Products((strategy, strategy), (strategy, strategy))), (64, 64)) == expected


@pytest.mark.parametrize(("first", "expected"), [(None, 0), ((8, 1), 0), ((4, 2), 1024), ((1, 8), 1792)])
def test_what_several_products_read_is_gathered_once_instead_of_their_results(
    first: Shape | None, expected: int
) -> None:
    """In automatic mode: x [32, 128], 14,336 bytes, where each of three results [32, 768] took 86,016. With a
    configured operator before the products: 268,800, 258,432 and 446,208 bytes where propagation went downstream only
    at first. The last result, columns on every rank, goes back to rows in 10,752 bytes."""

    class Attention(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.query, self.key, self.value, self.out = (nn.Dense(n, 768) for n in (128, 128, 128, 768))
            self.out.matmul.shard(((1, 1), (8, 1)))
            self.first = ops.Neg().shard((first,)) if first else None

        def construct(self, x: Any) -> Any:
            if self.first is not None:
                x = self.first(x)
            shares = ops.relu(ops.matmul(self.query(x), self.key(x).T))
            return self.out(ops.relu(ops.matmul(shares, self.value(x))))

    assert sent(Attention(), (4, 128), mode="auto_parallel", fed="data_parallel") == expected + 14336 + 10752


LATER_RANKS, ROWS, PARTS, WIDTH = 4, 16, 4, 8


class LaterRows(nn.Cell):
    """A row-wise product, turned rows of it, and what becomes of these."""

    def __init__(self, ending: str) -> None:
        super().__init__()
        self.product = ops.MatMul().shard(((1, LATER_RANKS), (LATER_RANKS, 1)))
        self.weight = Parameter(Tensor(np.ones((WIDTH, WIDTH), np.float32)))
        self.turned = Tensor(np.arange(ROWS * PARTS, dtype=np.int32)[::-1].copy())
        self.whole = ops.Sin().shard(((1,) * (2 if ending == "sum" else 3),))
        self.ending = ending

    def construct(self, x: Any) -> Any:
        found = ops.gather(self.product(x, self.weight), self.turned, 0).reshape(ROWS, PARTS, WIDTH)
        if self.ending == "sum":
            return self.whole(found.sum(1))
        if self.ending == "sine":
            return self.whole(found).sum(1)
        return self.whole(ops.tile(found, (1, 2, 1)))


@pytest.mark.parametrize(
    ("ending", "elements"),
    [("sum", ROWS * WIDTH), ("sine", ROWS * PARTS * WIDTH), ("tile", ROWS * PARTS * WIDTH)],
)  # fmt: skip
def test_the_sum_is_where_the_fewest_elements_are(ending: str, elements: int) -> None:
    config = Config(
        ranks=LATER_RANKS, mode="auto_parallel", search_mode="sharding_propagation", dataset_strategy="full_batch"
    )
    compiled = compile_call(LaterRows(ending), [TensorType(FLOAT32, (ROWS * PARTS, WIDTH))], config)
    sums = [node for node in compiled.rank_graph(0).nodes if isinstance(node.op, Collective)]
    assert [node.op.name for node in sums] == ["AllReduce"]
    assert sums[0].inputs[0].tensor_type.size == elements


BELOW = "all parameters that are trained are below the threshold of {} KiB"
MESHES = ((8,), (2, 4), (4, 2), (2, 2, 2), (4, 2, 3), (3, 4, 2))


def trained(rows: int, update: bool = True, **attributes: object) -> Graph:
    """A graph with a parameter of `rows` rows of 1 KiB that is updated."""
    graph = Graph("trained")
    graph.attrs = {"ranks": 8, "parallel_optimizer": True, **attributes}
    parameter = GraphParameter("w", TensorType(FLOAT32, (rows, 256)), kind="parameter", trainable=True)
    graph.parameters = [parameter]
    b = Builder(graph)
    b.phase = "update" if update else "forward"
    graph.results = [b.emit(AssignAdd(), parameter, parameter)]
    return graph


@pytest.mark.parametrize(
    ("graph", "reason"),
    [
        (trained(64), ""),
        (trained(63), BELOW.format(64)),
        (trained(64, parallel_optimizer_threshold=65), BELOW.format(65)),
        (trained(1, parallel_optimizer_threshold=1), ""),
        (trained(64, update=False), "no parameter is trained"),
    ],
)
def test_the_reason_why_nothing_is_cut(graph: Graph, reason: str) -> None:
    assert why_not_sharded(graph) == reason


def test_a_graph_without_a_parameter_to_train_says_so() -> None:
    graph = trained(64)
    graph.parameters[0].trainable = False
    assert why_not_sharded(graph) == "no parameter is trained"


@pytest.mark.parametrize("mesh", MESHES, ids=str)
@pytest.mark.parametrize("wanted", [-1, 2, 3, 4, 8])
def test_replicas_hold_equal_parts_of_what_they_held(mesh: tuple[int, ...], wanted: int) -> None:
    """Whatever axes shard the parameter before: its slices stay, each is divided over `wanted` of its replicas."""
    for axes in itertools.chain.from_iterable(itertools.combinations(range(len(mesh)), n) for n in range(len(mesh))):
        layout = Layout.of(mesh, [(), axes])
        graph = trained(48 * 8, ranks=math.prod(mesh), optimizer_weight_shard_size=wanted)
        parameter = graph.parameters[0]
        parameter.type = TensorType(FLOAT32, (48 * 8, 48))
        parameter.layout = layout
        shard_parameters(graph)
        cut = parameter.layout
        replicas = math.prod(mesh) // math.prod(layout.strategy)
        parts = replicas if wanted == -1 else wanted
        assert isinstance(cut, Layout)
        assert cut.ranks == layout.ranks
        assert cut.strategy in ((parts, layout.strategy[1]), layout.strategy)
        if parts > 1 and replicas % parts == 0 and (len(layout.unused) == 1 or wanted == -1):
            assert cut.strategy == (parts, layout.strategy[1])
        holders = [cut.slice_index(rank) for rank in range(cut.ranks)]
        for rank, held in enumerate(holders):
            assert held[1] == layout.slice_index(rank)[1]
            assert holders.count(held) == cut.ranks // math.prod(cut.strategy)


NETWORK = """
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(tensor(16, 16), "w")
        self.zeros, self.concat = P.Zeros().shard({0}), P.Concat(1).shard(((4, 1), (4, 1)))
    def construct(self, x):
        return self.concat((ops.matmul(x, self.w), self.zeros((x.shape[0], 8), x.dtype)))
net = Net()
nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), nn.SGD(net.trainable_params(), 0.1))(
    tensor(16, 16), tensor(16, 24))
"""


def test_zeros_are_sharded_as_their_result(tmp_path: Path) -> None:
    (node,) = (n for n in compiled(tmp_path, NETWORK.format("((4, 1),)")).graph.nodes if n.op.name == "Zeros")
    assert isinstance(node.layout, Layout)
    assert node.layout.strategy == (4, 1)
    script = tmp_path / "again.py"
    script.write_text(HEAD + NETWORK.format("((4, 1),)"))
    verify_target(str(script), CompileOptions(), seed=1)


@pytest.mark.parametrize("strategy", ["((3, 1),)", "((4,),)", "((4, 1), (4, 1))"])
def test_a_strategy_that_does_not_fit_is_refused(strategy: str, tmp_path: Path) -> None:
    with pytest.raises(MspcError, match="Zeros 'zeros'"):
        compiled(tmp_path, NETWORK.format(strategy))
