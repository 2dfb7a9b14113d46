"""Strategies of operators that speak of more than their inputs' dimensions: each network equals one device."""

from __future__ import annotations

from pathlib import Path

import pytest

from mspc.commands.compile import CompileOptions
from mspc.commands.verify import verify_target
from mspc.compiler.driver import Compiled
from mspc.ir.diagnostics import MspcError
from mspc.ir.layout import Layout
from tests.compiled_scripts import compiled_text

HEAD = """
import mindspore as ms, numpy as np
from mindspore import nn, ops, Layout, Parameter, Tensor
from mindspore.ops import operations as P, composite as C
ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", device_num=8, full_batch=True)
random = np.random.default_rng(3)
def tensor(*shape):
    return Tensor(random.uniform(0.5, 1.5, shape), ms.float32)
layout = Layout((2, 2, 2), ("dp", "sp", "mp"))
"""
NETWORKS = {
    "a matrix product reduced by out_strategy": """
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(tensor(32, 16), "w")
        self.matmul = P.MatMul().shard(((2, 4), (4, 1)), ((2, 1),))
    def construct(self, x):
        return self.matmul(x, self.w)
C.GradOperation(get_all=True)(Net())(tensor(16, 32))
""",
    "a matrix product scattered by out_strategy": """
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(tensor(32, 16), "w")
        self.matmul = P.MatMul().shard(((2, 4), (4, 1)), ((8, 1),))
    def construct(self, x):
        return self.matmul(x, self.w)
net = Net()
nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), nn.Momentum(net.trainable_params(), 0.1, 0.9))(
    tensor(16, 32), tensor(16, 16))
""",
    "a strategy of Tile that shards the repetitions": """
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(tensor(4, 3, 8), "w")
        self.tile = P.Tile().shard(((2, 2, 2),))
    def construct(self, x):
        return x * self.tile(self.w, (8, 2, 1))
net = Net()
ms.value_and_grad(net, None, net.trainable_params())(tensor(32, 6, 8))
""",
    "a Layout of Tile that speaks of the input": """
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(tensor(8, 1, 4), "w")
        self.tile = P.Tile().shard((layout("dp", "None", "mp"),))
    def construct(self, x):
        return x * self.tile(self.w, (1, 6, 1))
net = Net()
ms.value_and_grad(net, None, net.trainable_params())(tensor(8, 6, 4))
""",
    "a repeated tensor without a strategy": """
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(tensor(16, 4), "w")
        self.tile = P.Tile()
    def construct(self, x):
        return x * self.tile(self.w, (8, 1))
Net()(tensor(128, 4))
""",
    "layouts of a tuple of tensors": """
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(tensor(8, 4), "w")
        self.concat = P.Concat(1).shard(((layout("dp", "None"), layout("dp", "None")),))
    def construct(self, x):
        return self.concat((x, self.w))
Net()(tensor(8, 4))
""",
    "a parameter changed on slices of its own": """
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(tensor(32, 8), "w")
        self.ids = Tensor(np.array([[1, 3], [3, 30]]), ms.int32)
        self.rows = tensor(2, 2, 8)
        self.scatter = P.ScatterAdd().shard(((4, 2), (1, 1), (1, 1, 2)))
        self.add = P.Add().shard(((2, 1), (2, 1)))
    def construct(self, x):
        return self.add(x, self.scatter(self.w, self.ids, self.rows))
Net()(tensor(32, 8))
""",
    "complex numbers that are redistributed": """
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(tensor(16, 8), "w")
        self.rows = ops.FFTN().shard(((8, 1),))
        self.columns = ops.IFFTN().shard(((1, 8),))
        self.product = P.Mul().shard(((2, 4), (2, 4)))
    def construct(self, x):
        y = self.product(self.columns(self.rows(x, None, -1), None, 0), self.w)
        return ops.ReduceSum()(ops.real(y) * 0.5 + ops.ComplexAbs()(y))
def step(x):
    return ms.value_and_grad(net, None, net.trainable_params())(x)
net = Net()
step(tensor(16, 8))
""",
    **{
        f"packed sequences sharded by {how}": f"""
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.q, self.k, self.v = (Parameter(tensor(16, 4, 2), name) for name in "qkv")
        self.attention = ops.FlashAttentionScore(4, input_layout="TND", sparse_mode=3).shard({strategy})
    def construct(self, x):
        lists = (Tensor(np.array([3, 8, 12, 16])), Tensor(np.array([5, 8, 15, 16])))
        return self.attention(self.q * x, self.k, self.v, None, None, None, None, None, *lists)[3]
net = Net()
ms.value_and_grad(net, None, net.trainable_params())(tensor(16, 4, 2))
"""
        for how, strategy in (
            ("tuples", "((2, 4, 1), (2, 4, 1), (2, 4, 1), (2,), (2,))"),
            ("Layouts", """(layout(("dp", "sp"), "mp", "None"), *[layout("dp", "mp", "None")] * 2, layout("dp"),
                           layout("dp"))"""),
        )
    },
    **{
        f"grouped products whose {what} are sharded": f"""
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w, self.b = Parameter(tensor(4, 8, 8), "w"), Parameter(tensor(4, 8), "b")
        self.product = ops.GroupedMatmul(3, 0).shard((((2, {k}),), ((1, {k}, {n}),), ((1, {n}),), *[((),)] * 4, (1,)))
    def construct(self, x):
        return self.product([x], [self.w], [self.b], None, None, None, None, Tensor(np.array([3, 4, 11, 15])))[0]
net = Net()
ms.value_and_grad(net, None, net.trainable_params())(tensor(16, 8))
"""
        for what, k, n in (("columns", 1, 4), ("rows", 4, 1))
    },
    "rows gathered batch by batch": """
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(tensor(8, 6, 4), "w")
        self.gather = P.Gather(1).shard(((2, 2, 2), (2, 1)))
    def construct(self, ids):
        return self.gather(self.w, ids, 1)
net = Net()
ms.value_and_grad(net, None, net.trainable_params())(Tensor(random.integers(0, 6, (8, 5)), ms.int32))
""",
    "a table handed over at the call, the integers first": """
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.ids = Tensor(random.integers(0, 16, (8, 4)), ms.int32)
        self.embedding = P.Embedding().shard(((2, 1), (2, 2)))
    def construct(self, table, x):
        return self.embedding(self.ids, table) * x
Net()(Parameter(tensor(16, 4), "table"), tensor(8, 4, 4))
""",
    "updates of a tensor in layouts of their own": """
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(tensor(4, 16), "w")
        self.scatter = P.TensorScatterUpdate().add_prim_attr("self_define_shard", True)
        self.scatter.shard((layout("dp", "mp"), layout("dp", "None"), layout("sp", "mp")), (layout("dp", "mp"),))
    def construct(self, x, places):
        return self.scatter(x, places, self.w)
net = Net()
ms.value_and_grad(net, None, net.trainable_params())(tensor(8, 16), Tensor([[1], [3], [6], [0]], ms.int32))
""",
    "indices and assignments across sharded dimensions": """
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(tensor(8, 16), "w")
        self.relu = P.ReLU().shard(((2, 4),))
    def construct(self, x):
        y = self.relu(x + self.w)
        y[[1, 5], 2:6] = y[::-1][:2, ::4]
        y[:, 3] = 0.5
        y[x > 1.2] = 0.25
        return y[[0, 3, 3]][:, [True, False] * 8] * ops.einsum("ij,kj->ik", y, y).sum()
net = Net()
ms.value_and_grad(net, None, net.trainable_params())(tensor(8, 16))
""",
    "inputs sharded by a virtual data set": """
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.data = P._VirtualDataset().shard(((8, 1), (1, 4)))
        self.matmul = P.MatMul().shard(((2, 1), (1, 4)))
    def construct(self, x, y):
        x, y = self.data(x, y)
        return self.matmul(x, y)
Net()(tensor(8, 4), tensor(4, 8))
""",
    "an image sharded along its height and its width": """
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.nearest = P.ResizeNearestNeighbor((6, 6)).shard(((2, 1, 2, 2),))
        self.linear = P.ResizeBilinearV2().shard(((1, 2, 1, 2),))
    def construct(self, x):
        return self.linear(self.nearest(x), (4, 8))
C.GradOperation(get_all=True)(Net())(tensor(2, 2, 4, 4))
""",
    "a cell sharded by a layout, whose Cast one device does not have": """
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(tensor(8, 8), "w")
        self.matmul = P.MatMul()
    def construct(self, x):
        return ops.relu(self.matmul(x, self.w))
net = Net()
net.shard((layout("dp", "sp"),), (layout("dp", "mp"),))
C.GradOperation(get_all=True)(net)(tensor(8, 8))
""",
}


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_equals_one_device(tmp_path: Path, name: str) -> None:
    script = tmp_path / "net.py"
    script.write_text(HEAD + NETWORKS[name])
    verify_target(str(script), CompileOptions(), seed=1)


def compiled(tmp_path: Path, text: str) -> Compiled:
    return compiled_text(tmp_path, HEAD + text, 8)


def test_a_parameter_is_stored_as_its_change_needs_it(tmp_path: Path) -> None:
    graph = compiled(tmp_path, NETWORKS["a parameter changed on slices of its own"]).graph
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
    with pytest.raises(MspcError) as raised:
        compiled(tmp_path, READERS % (*operators, "((2, 1), (2, 1))"))
    assert raised.value.kind is RuntimeError
    assert (
        f"{operators[1]} 'second': its strategy shards the parameter w (2, 1), but that of "
        f"{operators[0]} 'first' (4, 2)"
    ) in str(raised.value)


@pytest.mark.parametrize("strategy", ["((4, 2), (4, 2))", "None"])
def test_readers_of_one_parameter_with_one_strategy_share_it(tmp_path: Path, strategy: str) -> None:
    graph = compiled(tmp_path, READERS % ("Mul", "Mul", strategy)).graph
    assert str(graph.parameter("w").layout) == "(4, 2) [0, 1]"


def test_a_layout_of_tile_cannot_shard_a_repeated_dimension(tmp_path: Path) -> None:
    text = NETWORKS["a Layout of Tile that speaks of the input"].replace("8, 1, 4", "8, 2, 4").replace("6, 1", "3, 1")
    with pytest.raises(MspcError) as raised:
        compiled(tmp_path, text.replace('"None"', '"sp"'))
    assert "Tile 'tile': the strategy" in str(raised.value)
    assert "does not shard the result into contiguous slices" in str(raised.value)


def test_out_strategy_sends_one_reduce_scatter(tmp_path: Path) -> None:
    graph = compiled(tmp_path, NETWORKS["a matrix product scattered by out_strategy"]).graph
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
    with pytest.raises(MspcError) as raised:
        compiled(tmp_path, text)
    assert raised.value.kind is RuntimeError
    assert message in str(raised.value)
