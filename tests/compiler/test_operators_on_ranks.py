"""Operators whose strategies cut what they reduce, look up or scatter, and uneven dimensions: each network equals one
device, and strategies that cannot be are refused."""

import random
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

import mspc as ms
from mspc import Tensor, nn, ops
from mspc.commands.options import ImportOptions
from tests.compiled_scripts import CompileOptions, compile_target, compiled_script, run_script, verify_target
from tests.compiler.sharded_networks import HEAD, check_equals_one_device, compiled, networks
from tests.errors import error_of
from tests.graphs import REGISTRY, Collective, Graph, Layout, operand_types, parse
from tests.serving import SERVED, succeed
from tests.shares import share_of

NETWORK = """
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(Tensor(random.integers(-3, 4, (16, 32)), ms.float32), "w")
        self.op = {made}
    def construct(self, x):
        return {result}
{call}(Tensor(random.integers(-3, 4, (16, 32)), ms.float32))
"""
GRADIENT, FORWARD = "C.GradOperation(get_all=True)(Net())", "Net()"
NETWORKS = {
    "the place of a maximum": ("P.Argmax(axis=1).shard(((2, 4),))", "self.op(x * self.w)", FORWARD),
    "the place of a minimum": ("P.Argmin(0, ms.int64).shard(((8, 1),))", "self.op(x * self.w)", FORWARD),
    "by a Layout": ('P.Argmax(axis=-1).shard((layout("dp", ("sp", "mp")),))', "self.op(x * self.w)", FORWARD),
    "a minimum and its place": ("P.ArgMinWithValue(axis=1).shard(((2, 4),))", "self.op(x * self.w)[1]", GRADIENT),
    "a maximum that keeps its dimension": (
        "P.ArgMaxWithValue(axis=0, keep_dims=True).shard(((4, 2),))", "self.op(x * self.w)[1]", GRADIENT,
    ),
    "the mean of integers": (
        "P.ReduceMean().shard(((2, 4),))", "self.op(ops.cast(x * self.w, ms.int32), 1)", FORWARD,
    ),
    "the mean of all integers": (
        "P.ReduceMean(True).shard(((8, 1),))", "self.op(ops.cast(x * self.w, ms.int64))", FORWARD,
    ),
    "a reshape of what is sharded": (
        "P.Reshape().shard(((2, 4),))", "self.op(self.w, (32, 16)) * ops.reshape(x, (32, 16))", GRADIENT,
    ),
    "a lookup by an offset": (
        "P.EmbeddingLookup().shard(((4, 1), (1, 1)))",
        "self.op(self.w * x, Tensor(np.array([[5, 17], [6, 30]]), ms.int32), 5)", GRADIENT,
    ),
}  # fmt: skip
REFUSED = {
    "P.Reshape().shard(((2, 4),), ((8, 1),))|self.op(x, (32, 16))":
        "Reshape: a strategy says how input 0 is sharded, and nothing else",
    "P.Reshape().shard(((2, 3),))|self.op(x, (32, 16))":
        "ShardingConstraint 'op': dimension 1 of input 0 is 32, which 3 does not divide",
    "P.StridedSlice(ellipsis_mask=1).shard(((2, 4),))|self.op(x, (0, 0), (16, 32), (1, 1))":
        "StridedSlice 'op': it takes no strategy with an ellipsis_mask: name every dimension",
    'P.ReLU().shard((layout("dp", "mp"),), (layout("dp", "mp"),))|self.op(x)':
        "ReLU 'op': it takes no out_strategy of Layouts: the result is laid out as the inputs are",
    'P.Add().shard((layout("dp", "mp"),) * 2, (layout("dp", "mp"),))|self.op(x, self.w)':
        "Add 'op': it takes no out_strategy of Layouts: the result is laid out as the inputs are",
    "P.GatherNd().shard(((1, 2), (4, 1)))|self.op(x, ops.zeros((8, 1), ms.int32))":
        "GatherNd 'op': its strategy may shard the indices alone, and is (1, 2) for input 0",
    "P.Argmax(axis=1).shard(((2, 3),))|self.op(x)":
        "Argmax: dimension 1 of input 0 is 32, which 3 does not divide",
}  # fmt: skip


def text_of(made: str, result: str, call: str) -> str:
    return NETWORK.format(made=made, result=result, call=call)


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_equals_one_device(tmp_path: Path, name: str) -> None:
    check_equals_one_device(tmp_path, text_of(*NETWORKS[name]))


@pytest.mark.parametrize("written", REFUSED)
def test_a_strategy_that_the_operator_cannot_take(tmp_path: Path, written: str) -> None:
    assert error_of(compiled, tmp_path, text_of(*written.split("|"), FORWARD)).message == REFUSED[written]


LAYERS = 12


@pytest.fixture(scope="module")
def rank_zero(root: Path) -> Graph:
    script = root / "benchmarks/networks/layers.py"
    return compiled_script(script, 8, str(LAYERS)).rank_graph(0)


def test_at_most_four_reductions_a_layer_and_no_layout_change(rank_zero: Graph) -> None:
    """Two forward and two backward a layer, none after the first layer's input."""
    tensor = Counter(
        node.op.name
        for node in rank_zero.nodes
        if isinstance(node.op, Collective) and node.op.ranks == (0, 1, 2, 3)
    )
    assert tensor == {"AllReduce": 4 * LAYERS - 1}


def test_gradients_travel_in_one_bucket(rank_zero: Graph) -> None:
    data = [node for node in rank_zero.nodes if isinstance(node.op, Collective) and node.op.ranks == (0, 4)]
    assert [(node.op.name, len(node.inputs)) for node in data] == [("AllReduce", 1), ("AllReduce", 6 * LAYERS)]
    assert data[0].inputs[0].shape == ()  # the loss, of which the ranks that share a batch have the same part
    of_all_ranks = [node for node in rank_zero.nodes if isinstance(node.op, Collective) and len(node.op.ranks) == 8]
    assert of_all_ranks == []


ROWS, CLASSES = 64, 512
CLASS_NETWORK = f"""
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(tensor(8, {CLASSES}), "w")
        self.head = P.MatMul().shard(((2, 1), (1, 4)))
        self.dense, self.sparse = nn.SoftmaxCrossEntropyWithLogits(), nn.SoftmaxCrossEntropyWithLogits(True, "mean")
    def construct(self, x, labels):
        logits = self.head(x, self.w)
        return {{result}}
labels = Tensor(random.integers(0, {CLASSES}, {ROWS}), ms.int32)
net = Net()
nn.TrainOneStepCell(net, nn.Momentum(net.trainable_params(), 0.1, 0.9))(tensor({ROWS}, 8), labels)
"""
RESULTS = {
    "cross_entropy": "ops.cross_entropy(logits, labels)",
    "cross_entropy, ignored classes, smoothing": (
        "ops.cross_entropy(logits, ops.select(labels > 50, labels, -100), label_smoothing=0.1)"
    ),
    "SoftmaxCrossEntropyWithLogits": f"self.dense(logits, ops.one_hot(labels, {CLASSES}, 1.0, 0.0)).mean()",
    "SparseSoftmaxCrossEntropyWithLogits": "self.sparse(logits, labels)",
    "softmax": "(ops.softmax(logits) * ops.exp(self.w[0])).sum()",
    "log_softmax in halves": "(ops.log_softmax(logits.astype(ms.float16)) * 0.01).astype(ms.float32).mean()",
}


@pytest.mark.parametrize("name", RESULTS)
def test_steps_equal_one_device(name: str, tmp_path: Path) -> None:
    check_equals_one_device(tmp_path, CLASS_NETWORK.format(result=RESULTS[name]))


@pytest.mark.parametrize("name", [name for name in RESULTS if name != "softmax"])
def test_ranks_send_numbers_of_rows_alone(name: str, tmp_path: Path) -> None:
    """Neither logits nor a mask of the classes, of which a rank has ROWS / 2 x CLASSES / 4; and for each its reason."""
    graph = compiled(tmp_path, CLASS_NETWORK.format(result=RESULTS[name])).rank_graph(0)
    collectives = [node for node in graph.nodes if isinstance(node.op, Collective)]
    assert sum("of rows, of which each rank has a slice" in str(node.attrs["reason"]) for node in collectives) >= 2
    largest = max(type.size for node in collectives for type in operand_types(node))
    assert largest <= 8 * CLASSES // 4  # the gradient of the head


def test_a_strategy_may_shard_what_is_normalised(tmp_path: Path) -> None:
    script = tmp_path / "net.py"
    text = CLASS_NETWORK.format(result="(self.soft(logits) * self.w[0]).sum()")
    made = "self.soft = P.Softmax().shard(((2, 4),))\n        "
    script.write_text(HEAD + text.replace("self.dense,", made + "self.dense,"))
    verify_target(str(script), CompileOptions(), seed=1)


PADS = HEAD.replace("device_num=8, full_batch=True", "device_num={ranks}, full_batch=True, pad_uneven=True")
UNEVEN_NETWORK = """
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.table = Parameter(tensor({classes}, {hidden}), "table")
        self.up_weight, self.up_bias = Parameter(tensor({hidden}, {inner}), "up"), Parameter(tensor({inner}), "bias")
        self.down_weight = Parameter(tensor({inner}, {hidden}), "down")
        self.gather = P.Gather(){table}
        self.up, self.down = P.MatMul(){up}, P.MatMul(){down}
        self.head = P.MatMul(transpose_b=True){head}
        self.norm = nn.LayerNorm(({inner},))
        self.sparse, self.dense = nn.SoftmaxCrossEntropyWithLogits(True, "mean"), nn.SoftmaxCrossEntropyWithLogits()
    def construct(self, ids, labels):
        x = self.gather(self.table, {ids}, 0)
        h = self.up(x, self.up_weight) + self.up_bias
        h = {first}
        h = {second}
        x = x + self.down(h, self.down_weight)
        logits = self.head(x, self.table)
        return {loss}
ids, labels = (Tensor(random.integers(0, {classes}, {rows}), ms.int32) for _ in range(2))
net = Net()
nn.TrainOneStepCell(net, {optimizer})(ids, labels)
"""
STEPS = (
    "ops.relu(h)", "ops.gelu(h)", "ops.exp(-h)", "h", "h * 0.5 + 1.0", "ops.sqrt(ops.abs(h) + 0.5)",
    "h / (1.0 + h * h)", "ops.softmax(h)", "ops.log_softmax(h)", "h - h.mean(-1, keep_dims=True)",
    "h / (h * h).sum(-1, keepdims=True)", "h - ops.ReduceMax(True)(h, -1)", "self.norm(h)", "h / h.sum()",
    "ops.log(ops.abs(h))", "ops.transpose(ops.transpose(h, (1, 0)), (1, 0))", "h + ops.ReduceMin(True)(h, 0)",
    "ops.reshape(ops.reshape(h, (-1, 1, {inner})), (-1, {inner}))", "ops.cumsum(h, 1)", "ops.pow(ops.abs(h), 1.5)",
    "ops.concat((h, ops.tanh(h)), 0)[:{rows}]", "ops.select(h > 1.0, h, h * 0.1)", "h / h", "ops.sort(h)[0]",
)  # fmt: skip
LOSSES = (
    "self.sparse(logits, labels)", "ops.cross_entropy(logits, labels, label_smoothing=0.1)",
    "self.dense(logits, ops.one_hot(labels, {classes}, 1.0, 0.0)).mean()", "(logits * logits).mean() * 0.01",
    "(ops.softmax(logits) * ops.exp(self.table.sum(1))).sum()", "ops.log(ops.softmax(logits) + 0.1).mean()",
    "ops.cross_entropy(logits, ops.select(labels > 3, labels, -100))", "ops.logsumexp(logits, 1).sum()",
)  # fmt: skip
OPTIMIZERS = (
    "nn.Momentum(net.trainable_params(), 0.01, 0.9)", "nn.Adam(net.trainable_params(), 0.01)",
    "nn.AdamWeightDecay(net.trainable_params(), 0.01)", "nn.SGD(net.trainable_params(), 0.01, momentum=0.5)",
    "nn.Adagrad(net.trainable_params(), learning_rate=0.01)", "nn.RMSProp(net.trainable_params(), 0.01)",
    "nn.Lamb(net.trainable_params(), 0.01)", "nn.FTRL(net.trainable_params())",
)  # fmt: skip
COUNT = share_of(240, 80)


def drawn(seed: int) -> tuple[str, int]:
    """Return a network of primes with strategies on some of its operators, and the number of ranks."""
    draw = random.Random(seed)
    ranks = draw.choice((2, 3, 4))
    sizes = {name: draw.choice((3, 5, 7, 11, 13)) for name in ("classes", "hidden", "inner", "rows")}

    def shard(*strategies: str) -> str:
        strategy = draw.choice(("", *strategies))
        return f".shard({strategy})" if strategy else ""

    n = ranks
    given = {
        "table": shard(f"(({n}, 1), (1,))", f"((1, {n}), (1,))", f"((1, 1), ({n},))"),
        "up": shard(f"((1, 1), (1, {n}))", f"((1, {n}), ({n}, 1))", f"(({n}, 1), (1, 1))"),
        "down": shard(f"((1, {n}), ({n}, 1))", f"((1, 1), (1, {n}))"),
    }
    rows = given["table"].startswith(".shard(((1")
    given["head"] = shard(f"((1, {n}), (1, {n}))") if rows and n != 1 else shard(f"((1, 1), ({n}, 1))")
    if given["table"].endswith(f"({n},)))"):
        given["head"] = ""
    given["first"], given["second"] = draw.choice(STEPS).format(**sizes), draw.choice(STEPS).format(**sizes)
    given["loss"], given["optimizer"] = draw.choice(LOSSES).format(**sizes), draw.choice(OPTIMIZERS)
    given["ids"] = draw.choice(("ids", f"ids - {sizes['classes']}"))
    return PADS.format(ranks=ranks) + UNEVEN_NETWORK.format(**sizes, **given), ranks


@pytest.mark.parametrize("seed", range(COUNT))
def test_networks_of_primes_equal_one_device(seed: int, tmp_path: Path) -> None:
    text, ranks = drawn(seed)
    script = tmp_path / "net.py"
    script.write_text(text)
    verify_target(str(script), CompileOptions(ranks=ranks), seed=seed)


@pytest.mark.parametrize(
    ("asks", "second", "note"),
    [
        (True, "P.CumSum().shard(((1, 4),))(h, 1)", "CumSum would read the padding"),
        (False, "h", "shard it into 1 or 11"),
    ],
)
def test_what_cannot_be_padded_is_refused(asks: bool, second: str, note: str, tmp_path: Path) -> None:
    given = {"table": "", "up": ".shard(((1, 1), (1, 4)))", "down": "", "head": "", "loss": LOSSES[0], "ids": "ids"}
    given |= {"first": "h", "second": second, "optimizer": OPTIMIZERS[0]}
    script = tmp_path / "net.py"
    head = PADS.format(ranks=4) if asks else HEAD.replace("=8", "=4")
    script.write_text(head + UNEVEN_NETWORK.format(classes=5, hidden=8, inner=11, rows=4, **given))
    error = error_of(verify_target, str(script), CompileOptions(), seed=1)
    assert "is 11, which 4 does not divide" in error.render()
    assert note in error.render()


@pytest.mark.thorough
def test_a_plan_of_layers_shards_a_vocabulary_that_ranks_do_not_divide(tmp_path: Path) -> None:
    """64 words over 3 ranks: the table, the head and its loss on slices of classes."""
    plan = tmp_path / "plan.toml"
    plan.write_text('loss_parallel = true\n[layers]\n"words" = "embedding_rowwise"\n"head" = "colwise"\n')
    options = ImportOptions(optimizer="adamw:lr=1e-2,max_norm=1", plan=str(plan))
    compile_options = CompileOptions(ranks=3, out=tmp_path / "out", imported=options)
    verify_target("samples/pytorch/language_model.pt2", compile_options, seed=1)
    compile_target("samples/pytorch/language_model.pt2", compile_options)
    verify_target(str(tmp_path / "out"), CompileOptions(), seed=1)


SCRIPT = """
import mspc as ms
from mspc import Parameter, Tensor, nn, ops

class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(ops.ones((4096, 512), ms.float32), name="w")

    def construct(self, slot, rows):
        given = ops.zeros((5000, 512), ms.float32)
        index = ops.broadcast_to(slot.expand_dims(-1), rows.shape)
        counts = ops.tensor_scatter_elements(given[:, 0], slot, rows[:, 0], 0, "add")
        return ops.tensor_scatter_elements(given, index, rows * self.w, 0).sum() + counts.max()

net = Net()
ms.value_and_grad(net, None, net.trainable_params())(ops.zeros((4096,), ms.int32), ops.ones((4096, 512), ms.float32))
"""


def test_rows_are_written_where_one_place_stands_for_all_elements_of_a_row(tmp_path: Path) -> None:
    (tmp_path / "net.py").write_text(SCRIPT, encoding="utf-8")
    succeed(*SERVED, "compile", "net.py", "--out", "out", cwd=tmp_path)
    (file,) = (tmp_path / "out" / "rank_0").glob("*_execute_*.ir")
    graph = parse(file.read_text(encoding="utf-8"), REGISTRY, file.name).main
    names = [node.op.name for node in graph.nodes]
    assert {"TensorScatterUpdate", "TensorScatterAdd"} <= {*names}
    assert "ScatterElements" not in names
    assert all(node.type.nbytes < 64 << 20 for node in graph.nodes)
    assert all(parameter.kind != "constant" for parameter in graph.parameters)


def test_ranges_are_as_long_as_they_are() -> None:
    assert ops.arange(0, 1_000_001).shape == (1_000_001,)
    with pytest.raises(ValueError, match="maxlen is 10, not at least 20"):
        ops.range(0, 20, 1, maxlen=10)


EMBEDDING_SCRIPT = """
import numpy as np
import mspc as ms
from mspc import Tensor, nn
from mspc.communication import init

init()
ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", full_batch=True)
net = nn.Embedding(16, 8, embedding_table=Tensor(np.arange(128).reshape(16, 8), ms.float32))
{shard}
print(net(Tensor(np.arange(12).reshape(4, 3), ms.int32)).asnumpy().tolist())
"""


@pytest.mark.parametrize("strategy", ["((1, 1), (2,))", "((1, 2), (1,))", "((1, 1), (2, 1))", "((2, 1), (1,))"])
def test_a_table_is_looked_up_where_its_gather_is_sharded(
    tmp_path: Path, strategy: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "embedding.py"
    path.write_text(EMBEDDING_SCRIPT.format(shard=""))
    run_script(path, 1, simulate=True)
    (expected,) = capsys.readouterr().out.splitlines()
    more = "\nnet.expand.shard(((2, 1),))" if strategy.endswith("(2,))") else ""
    path.write_text(EMBEDDING_SCRIPT.format(shard=f"net.gather.shard({strategy}){more}"))
    run_script(path, 2, simulate=True)
    assert capsys.readouterr().out.splitlines() == [expected, expected]


COMPOSED_NETWORKS = networks("composed_operators")


@pytest.mark.parametrize("name", COMPOSED_NETWORKS)
def test_composed_operators_equal_one_device(tmp_path: Path, name: str) -> None:
    check_equals_one_device(tmp_path, COMPOSED_NETWORKS[name])


def test_values_of_one_device() -> None:
    x = np.random.default_rng(0).standard_normal((2, 6, 5)).astype(np.float32)
    out, mean, scale = ops.GroupNorm()(Tensor(x), 2, Tensor(np.ones(6, np.float32)), Tensor(np.zeros(6, np.float32)))
    groups = x.reshape(2, 2, 15)
    expected = (groups - groups.mean(-1, keepdims=True)) / np.sqrt(groups.var(-1, keepdims=True) + 1e-5)
    np.testing.assert_allclose(out.asnumpy(), expected.reshape(x.shape), rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(mean.asnumpy(), groups.mean(-1), rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(scale.asnumpy(), 1 / np.sqrt(groups.var(-1) + 1e-5), rtol=1e-4)
    places = Tensor(np.array([0, -1, 1]))
    np.testing.assert_array_equal(ops.Index()(Tensor(x), (places, places)).asnumpy(), x[[0, -1, 1], [0, -1, 1]])
    assert ops.tuple_len((1, 2, 3)) == 3


def test_what_gradients_do_not_pass_may_be_missing() -> None:
    class Net(nn.Cell):
        def construct(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
            mask, (y, none) = ops.stop_gradient(mask), ops.stop_gradient((x, None))
            return x * x + y if mask is None and none is None else x

    x = Tensor(np.array([1.0, 3.0], np.float32))
    np.testing.assert_allclose(ms.grad(Net())(x).asnumpy(), [2.0, 6.0])
    assert ops.stop_gradient(None) is None


@pytest.mark.parametrize(("call", "message"), [
    (lambda x: ops.Index()(x, x), "Index: indices must be a tuple of tensors, not Tensor"),
    (lambda x: ops.Index().shard(((1, 1), ((1,), (1,))))(x, (Tensor([1]), Tensor([1, 2]))),
     "Index: with a strategy all indices have one shape, not [(1,), (2,)]"),
    (lambda x: ops.GroupNorm()(x, 4), "GroupNorm: 6 channels are no multiple of num_groups 4"),
])  # fmt: skip
def test_wrong_operands_are_refused(call, message) -> None:
    with pytest.raises(ms.MspcError) as error:
        call(Tensor(np.ones((4, 6), np.float32)))
    assert error.value.message == message


STRATEGY_NETWORKS = networks("operator_strategies")


@pytest.mark.parametrize("name", STRATEGY_NETWORKS)
def test_operators_with_strategies_equal_one_device(tmp_path: Path, name: str) -> None:
    check_equals_one_device(tmp_path, STRATEGY_NETWORKS[name])


def test_a_parameter_is_stored_as_its_change_needs_it(tmp_path: Path) -> None:
    graph = compiled(tmp_path, STRATEGY_NETWORKS["a parameter changed on slices of its own"]).graph
    layout = graph.parameter("w").layout
    assert isinstance(layout, Layout)
    assert layout.strategy == (4, 2)


READERS = """
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(tensor(32, 8), "w")
        self.first = P.%s().shard(((4, 2), (4, 2)))
        self.second = P.%s().shard(%s)
    def construct(self, x):
        a = self.first(self.w, x)
        return self.second(self.w, a)
Net()(tensor(32, 8))
"""


@pytest.mark.parametrize("operators", [("AssignAdd", "AssignAdd"), ("Mul", "Mul"), ("Mul", "AssignAdd")])
def test_strategies_of_one_parameter_must_agree(tmp_path: Path, operators: tuple[str, str]) -> None:
    error = error_of(compiled, tmp_path, READERS % (*operators, "((2, 1), (2, 1))"))
    assert error.kind is RuntimeError
    assert (
        f"{operators[1]} 'second': its strategy shards the parameter w (2, 1), but that of "
        f"{operators[0]} 'first' (4, 2)"
    ) in str(error)


@pytest.mark.parametrize("strategy", ["((4, 2), (4, 2))", "None"])
def test_readers_of_one_parameter_with_one_strategy_share_it(tmp_path: Path, strategy: str) -> None:
    graph = compiled(tmp_path, READERS % ("Mul", "Mul", strategy)).graph
    assert str(graph.parameter("w").layout) == "(4, 2) [0, 1]"


def test_a_layout_of_tile_cannot_shard_a_repeated_dimension(tmp_path: Path) -> None:
    text = (
        STRATEGY_NETWORKS["a Layout of Tile that speaks of the input"]
        .replace("8, 1, 4", "8, 2, 4")
        .replace("6, 1", "3, 1")
    )
    error = error_of(compiled, tmp_path, text.replace('"None"', '"sp"'))
    assert "Tile 'tile': the strategy" in str(error)
    assert "does not shard the result into contiguous slices" in str(error)


def test_out_strategy_sends_one_reduce_scatter(tmp_path: Path) -> None:
    graph = compiled(tmp_path, STRATEGY_NETWORKS["a matrix product scattered by out_strategy"]).graph
    sent = [node.op.name for node in graph.nodes if node.phase == "forward" and node.op.name.startswith("Reduce")]
    assert sent.count("ReduceScatter") == 1


@pytest.mark.parametrize(
    ("size", "cuts", "message"),
    [
        (4, (8, 1), ""),
        (6, (8, 1), "group_size is 6, not a power of two"),
        (0, (8, 1), "group_size is 0, not a power of two"),
        (True, (8, 1), "group_size is True, not a power of two"),
        (2, (2, 4), "with a group_size the strategy may shard the batch alone, and is (2, 4) for input 0"),
    ],
)
def test_a_group_of_ranks_that_share_statistics(
    tmp_path: Path, size: object, cuts: tuple[int, int], message: str
) -> None:
    text = f"""
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(8)
        self.norm.bn_train.shard(({cuts}, *[({cuts[1]},)] * 4)).add_prim_attr("group_size", {size})
    def construct(self, x):
        return self.norm(x)
net = Net()
net.set_train()
net(tensor(32, 8))
"""
    if not message:
        assert compiled(tmp_path, text).graph.nodes
        return
    error = error_of(compiled, tmp_path, text)
    assert error.kind is RuntimeError
    assert message in str(error)


GATHERED_NETWORK = """
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.u, self.v = Parameter(tensor(16, 16), "u"), Parameter(tensor(16, 16), "v")
        self.first, self.second = P.MatMul().shard({0}), P.MatMul().shard({0})
    def construct(self, x):
        return self.second(ops.relu(self.first(x, self.u)), self.v)
net = Net()
nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), nn.Momentum(net.trainable_params(), 0.1, 0.9))(
    tensor(16, 16), tensor(16, 16))
"""
CUTS = ["((8, 1), (8, 1))", "((1, 8), (1, 8))", "((2, 4), (2, 4))"]


@pytest.mark.parametrize(("cuts", "ranks"), [*((cuts, 8) for cuts in CUTS), ("((2, 2), (2, 2))", 4)])
def test_products_of_stored_slices_equal_one_device(cuts: str, ranks: int, tmp_path: Path) -> None:
    script = tmp_path / "net.py"
    script.write_text((HEAD + GATHERED_NETWORK.format(cuts)).replace("device_num=8", f"device_num={ranks}"))
    verify_target(str(script), CompileOptions(), seed=1)


@pytest.mark.parametrize(("cuts", "stored"), [*zip(CUTS, [(8, 1), (1, 8), (2, 4)], strict=True)])
def test_parameters_are_stored_in_the_slices_of_the_strategy(
    cuts: str, stored: tuple[int, int], tmp_path: Path
) -> None:
    graph = compiled(tmp_path, GATHERED_NETWORK.format(cuts)).graph
    for name in ("u", "v"):
        layout = graph.parameter(name).layout
        assert isinstance(layout, Layout)
        assert layout.strategy == stored


def test_a_strategy_on_fewer_ranks_is_none_of_these(tmp_path: Path) -> None:
    error = error_of(compiled, tmp_path, GATHERED_NETWORK.format("((4, 1), (4, 1))"))
    assert "dimension 0 of input 1 is sharded into 4 slices, but dimension 1 of input 0 into 1" in str(error)
