"""Strategies that say more than how an operator's operands are sharded: plans, stored strategies, dumps, cells with
strategies of their own. Each network equals one device."""

from __future__ import annotations

from pathlib import Path

import pytest

from mspc.commands.compile import CompileOptions
from mspc.commands.verify import verify_target
from mspc.ir.diagnostics import MspcError
from mspc.ir.layout import Layout
from tests.compiler.test_operator_strategies import HEAD, compiled

NETWORKS = {
    "a cell whose parameters are sharded by a plan": """
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(tensor(8, 16), "w")
        self.b = Parameter(tensor(16), "b")
    def construct(self, x):
        return ops.relu(ops.matmul(x, self.w) + self.b)
class Outer(nn.Cell):
    def __init__(self):
        super().__init__()
        self.net = Net().shard(((2, 1),), parameter_plan={"self.w": (1, 4), "b": (layout(("sp", "mp")),)})
    def construct(self, x):
        return self.net(x)
net = Outer()
nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), nn.Momentum(net.trainable_params(), 0.1, 0.9))(
    tensor(8, 8), tensor(8, 16))
""",
    "optimizers of small operators, on sharded parameters": """
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.u, self.v = Parameter(tensor(8, 16), "u"), Parameter(tensor(16, 8), "v")
        self.w, self.x = Parameter(tensor(8), "w"), Parameter(tensor(8), "x")
        self.first = P.MatMul().shard(((2, 1), (1, 4)))
        self.second = P.MatMul().shard(((2, 4), (4, 1)))
    def construct(self, x):
        return self.second(self.first(x, self.u), self.v) * self.w + self.x
class Several(nn.Cell):
    def __init__(self, net):
        super().__init__()
        self.parameters = ms.ParameterTuple(net.trainable_params())
        p = self.parameters
        self.lamb, self.ftrl = nn.Lamb([p[0]], 0.1), nn.FTRL([p[1]], l1=0.1)
        self.adagrad, self.rms = nn.Adagrad([p[2]]), nn.RMSProp([p[3]], centered=True)
    def construct(self, grads):
        self.lamb((grads[0],)), self.ftrl((grads[1],))
        self.adagrad((grads[2],)), self.rms((grads[3],))
        return True
net = nn.MicroBatchInterleaved(nn.WithLossCell(Net(), nn.MSELoss()), 2)
nn.TrainOneStepCell(net, Several(net))(tensor(8, 8), tensor(8, 8))
""",
    "products on a mesh of two axes": """
plane = Layout((2, 4), ("x", "y"))
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.u, self.v = Parameter(tensor(16, 32), "u"), Parameter(tensor(32, 16), "v")
        self.first = P.MatMul().add_prim_attr("enable_nd_tp", True).shard((plane("None", ("x", "y")), plane("x", "y")))
        self.second = P.MatMul(transpose_b=True).add_prim_attr("enable_nd_tp", True)
        self.second.shard((plane("None", ("y", "x")), plane("x", "y")))
    def construct(self, x):
        return self.second(self.first(x, self.u), ops.transpose(self.v, (1, 0)))
C.GradOperation(get_all=True)(Net())(tensor(16, 16))
""",
    "products on a mesh of three axes": """
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.u, self.v = Parameter(tensor(16, 32), "u"), Parameter(tensor(32, 16), "v")
        self.first = P.MatMul().add_prim_attr("enable_nd_tp", True)
        self.first.shard((layout(("dp", "sp"), "mp"), layout(("mp", "dp"), "sp")))
        self.second = P.MatMul(transpose_b=True).add_prim_attr("enable_nd_tp", True)
        self.second.shard((layout(("dp", "mp"), "sp"), layout("mp", ("sp", "dp"))))
    def construct(self, x):
        return self.second(self.first(x, self.u), ops.transpose(self.v, (1, 0)))
C.GradOperation(get_all=True)(Net())(tensor(16, 16))
""",
    "a tensor brought into another layout": """
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.first, self.second = layout("dp", ("sp", "mp")), layout("mp", "None")
    def construct(self, x):
        return ops.relu(ms.reshard(ms.reshard(x, self.first) * 2, self.second))
C.GradOperation(get_all=True)(Net())(tensor(8, 16))
""",
    "numbers between two tensors": """
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.space = P.LinSpace().shard(((4,),))
        self.range = P.Range().shard(((2,),))
        self.limit = Tensor(16.0, ms.float32)
    def construct(self, start, stop):
        return self.space(start, stop, 16) * self.range(Tensor(0.0, ms.float32), self.limit, Tensor(1.0, ms.float32))
C.GradOperation(get_all=True)(Net())(Tensor(1.0, ms.float32), Tensor(4.0, ms.float32))
""",
    "slices repeated by a list": """
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.repeat = P.RepeatInterleaveTensor().shard(((1, 4), (1,)))
    def construct(self, x):
        return self.repeat(x, [2, 0, 3, 1], 0)
C.GradOperation(get_all=True)(Net())(tensor(4, 8))
""",
    **{
        f"embeddings, {mode}": f"""
net = nn.EmbeddingLookup(32, 8, slice_mode="{mode}")
class Loss(nn.Cell):
    def __init__(self):
        super().__init__()
        self.net = net
    def construct(self, ids):
        return ops.reduce_sum(ops.square(self.net(ids)))
loss = Loss()
ms.value_and_grad(loss, None, loss.trainable_params())(Tensor(random.integers(0, 32, (8, 8)), ms.int32))
"""
        for mode in ("batch_slice", "table_row_slice", "table_column_slice")
    },
    "places in dimensions that are sharded": """
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(tensor(8, 4, 6), "w")
        self.at = Tensor(np.array([[1, 3], [-1, 0], [1, 3]]), ms.int32)
        self.add = P.TensorScatterAdd().shard(((4, 2, 1), (1, 1), (1, 1)))
        self.put = P.ScatterNdUpdate().shard(((2, 2, 2), (1, 1), (1, 2)))
        self.take = P.GatherNd()
    def construct(self, x, rows):
        y = self.take(self.add(x, self.at, rows), self.at)
        return ops.reduce_sum(y * y) + ops.reduce_sum(ops.stop_gradient(self.put(self.w, self.at, rows)))
C.GradOperation(get_all=True)(Net())(tensor(8, 4, 6), tensor(3, 6))
""",
    "a function over the gradients": """
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.u, self.v = Parameter(tensor(8, 16), "u"), Parameter(tensor(16, 8), "v")
        self.first = P.MatMul().shard(((2, 1), (1, 4)))
    def construct(self, x):
        return ops.matmul(self.first(x, self.u), self.v)
clip = C.MultitypeFuncGraph("clip")
@clip.register("Number", "Tensor", "Tensor")
def _clip(limit, gradient, weight):
    return ops.clip_by_value(gradient, -limit, limit) + 0.1 * weight
@clip.register("Number", "Tuple", "Tensor")
def _never(limit, gradient, weight):
    return gradient
class Train(nn.Cell):
    def __init__(self, net, optimizer):
        super().__init__(auto_prefix=False)
        self.network, self.optimizer = net, optimizer
        self.weights = optimizer.parameters
        self.grad = C.GradOperation(get_by_list=True)
        self.hyper_map = C.HyperMap()
    def construct(self, x):
        loss = self.network(x)
        gradients = self.grad(self.network, self.weights)(x)
        gradients = self.hyper_map(ops.partial(clip, 0.25), gradients, self.weights)
        return ops.depend(loss, self.optimizer(gradients))
net = Net()
Train(net, nn.Momentum(net.trainable_params(), 0.1, 0.9))(tensor(8, 8))
""",
    "a norm over a dimension that is sharded": """
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.g = Parameter(tensor(16), "g")
        self.norm = P.RmsNorm(1e-5).shard(((2, 4), (4,)))
    def construct(self, x):
        y, root = self.norm(x, self.g)
        return y * root
C.GradOperation(get_all=True)(Net())(tensor(8, 16))
""",
    "an out_strategy for every result": """
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.g, self.b = Parameter(tensor(16), "g"), Parameter(tensor(16), "b")
        self.norm = P.LayerNorm(-1, -1).add_prim_attr("self_define_shard", True)
        self.norm.shard(((4, 2, 1), (1,), (1,)), ((4, 2, 1), (4, 2, 1), (4, 2, 1)))
    def construct(self, x):
        return self.norm(x, self.g, self.b)[0]
C.GradOperation(get_all=True)(Net())(tensor(4, 8, 16))
""",
    "an axis that is none of ranks": """
layout = Layout((2, 4, 2), ("dp", "mp", "interleaved_parallel"))
class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.w = Parameter(tensor(8, 16), "w")
        self.matmul = P.MatMul().shard((layout(("dp", "interleaved_parallel"), "mp"), layout("mp", "None")))
    def construct(self, x):
        return self.matmul(x, self.w)
C.GradOperation(get_all=True)(Net())(tensor(8, 8))
""",
}


SMALL = "optimizers of small operators, on sharded parameters"


@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_equals_one_device(tmp_path: Path, name: str) -> None:
    script = tmp_path / "net.py"
    script.write_text(HEAD + NETWORKS[name])
    verify_target(str(script), CompileOptions(), seed=1)


def test_optimizers_of_small_operators_work_on_the_slices_of_their_parameters(tmp_path: Path) -> None:
    """Their states lie as the parameter does, and a gradient is summed once, not once for each moment: of two sums that
    were rounded otherwise a quotient is far off where the gradient is small."""
    found = compiled(tmp_path, NETWORKS[SMALL])
    states = {"u": ("lamb.lamb_m.u", "lamb.lamb_v.u"), "v": ("ftrl.moments.v", "ftrl.linear.v"),
              "w": ("adagrad.accum.w",), "x": ("rms.mean_square.x", "rms.mean_grad.x", "rms.moment.x")}  # fmt: skip
    for name, of in states.items():
        layout = found.graph.parameter(name).layout
        assert [found.graph.parameter(state).layout for state in of] == [layout] * len(of)
    users = found.graph.users()
    gradients = [node for node in found.graph.nodes if "gradient_for" in node.attrs]
    partial = [node for node in gradients if isinstance(node.layout, Layout) and node.layout.is_partial]
    assert len(partial) >= 2
    assert [len(users[gradient]) for gradient in partial] == [1] * len(partial)


def test_a_plan_says_how_parameters_are_stored(tmp_path: Path) -> None:
    graph = compiled(tmp_path, NETWORKS["a cell whose parameters are sharded by a plan"]).graph
    layouts = [graph.parameter(name).layout for name in ("net.w", "net.b", "moments.net.w")]
    assert [layout.strategy for layout in layouts if isinstance(layout, Layout)] == [(1, 4), (4,), (1, 4)]


TWO_AXES = "products on a mesh of two axes"
REFUSED = [
    (TWO_AXES, '(plane("None", ("x", "y")), plane("x", "y"))', "((1, 8), (8, 1))",
     "MatMul: enable_nd_tp needs a Layout for each of its two tensors"),
    ("a norm over a dimension that is sharded", "((2, 4), (4,))", "((2, 4), (2,))",
     "RmsNorm: the last dimensions of input 0 are sharded (4,), but input 1 (2,)"),
    ("an out_strategy for every result", "((4, 2, 1), (4, 2, 1), (4, 2, 1))", "((4, 1, 1),) * 3",
     "LayerNorm 'norm': the out_strategy shards result 0 (4, 1, 1), but it is sharded (4, 2, 1)"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "old", "new", "message"), REFUSED)
def test_what_does_not_fit_is_refused(tmp_path: Path, name: str, old: str, new: str, message: str) -> None:
    assert old in NETWORKS[name]
    with pytest.raises(MspcError) as raised:
        compiled(tmp_path, NETWORKS[name].replace(old, new, 1))
    assert raised.value.message == message


def test_products_on_a_mesh_of_two_axes_gather_and_scatter(tmp_path: Path) -> None:
    graph = compiled(tmp_path, NETWORKS["products on a mesh of two axes"]).graph
    nodes = [node.op.name for node in graph.nodes if node.phase == "forward"]
    sent = [name for name in nodes if name in ("AllGather", "AllReduce", "ReduceScatter")]
    assert sent[:3] == ["ReduceScatter", "AllGather", "ReduceScatter"]


def test_reshard_takes_a_layout(tmp_path: Path) -> None:
    text = NETWORKS["a tensor brought into another layout"].replace('layout("mp", "None")', "(2, 1)")
    with pytest.raises(MspcError) as raised:
        compiled(tmp_path, text)
    assert "reshard takes the layout of a tensor, not (2, 1)" in str(raised.value)


@pytest.mark.parametrize("value", ["False", "None"])
def test_enable_nd_tp_that_is_off_asks_for_nothing(tmp_path: Path, value: str) -> None:
    layouts = '(plane("None", ("x", "y")), plane("x", "y"))'
    text = NETWORKS["products on a mesh of two axes"].replace(layouts, "((8, 1), (1, 1))")
    asked = 'add_prim_attr("enable_nd_tp", True).shard'
    assert asked in text
    off = compiled(tmp_path, text.replace(asked, asked.replace("True", value)))
    forward = [node for node in off.graph.nodes if node.phase == "forward"]
    (product,) = [node for node in forward if node.instance == "first" and node.op.name == "MatMul"]
    assert product.in_strategy == ((8, 1), (1, 1))
