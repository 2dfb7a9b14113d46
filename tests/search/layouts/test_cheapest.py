"""Plans of the search beside all plans there are, and what it makes of networks."""

import random
from collections.abc import Iterator
from functools import partial
from itertools import product

import numpy as np
import pytest

import mspc as ms
from mspc import Parameter, Tensor, nn, ops
from mspc.analysis.cost.nodes import sent_bytes
from mspc.ir.graph import Parameter as GraphParameter
from mspc.passes.lib.choices import ShardingChoice, multiplies
from mspc.passes.lib.layout_search import Search
from mspc.search.layouts.cheapest import mesh_of, place_forward
from mspc.search.model.model import ALL_OPERANDS, domain_of
from tests.compiled_scripts import Compiled, Config, compile_call
from tests.graphs import FLOAT32, REGISTRY, Builder, Graph, Layout, Node, Op, TensorType, Value
from tests.shares import share_of

MOST = 300
"""Plans that are tried one after the other."""


def small_network(seed: int) -> Graph:
    """Two or three operators on 4 ranks, called forward; the caller wants the result replicated."""
    rng = random.Random(seed)
    graph = Graph(f"small_{seed}")
    graph.attrs = {"ranks": 4, "mode": "auto_parallel", "outputs": "whole", "search_mode": "dynamic_programming"}
    b = Builder(graph)

    def parameter(kind: str, *shape: int) -> GraphParameter:
        made = GraphParameter(f"{kind}{len(graph.parameters)}", TensorType(FLOAT32, shape), kind, False)
        if kind == "input":
            first = rng.choice([(), (0,)])
            made.layout = Layout.of((4,), [first, *[()] * (len(shape) - 1)])
        graph.parameters.append(made)
        return made

    values: list[Value] = [parameter("input", rng.choice([8, 16, 64]), rng.choice([4, 32]))]
    for _ in range(rng.randint(2, 3)):
        x = rng.choice(values[-2:])
        kind = rng.choice(["MatMul", "MatMul", "ReLU", "Transpose", "Add", "ReduceSum"])
        if kind == "MatMul":
            made = b.emit(REGISTRY[kind](), x, parameter("parameter", x.tensor_type.shape[1], rng.choice([4, 16, 128])))
        elif kind == "Add" and values[-1].type == x.type:
            made = b.emit(REGISTRY[kind](), x, values[-1])
        elif kind == "Transpose":
            made = b.emit(REGISTRY[kind]((1, 0)), x)
        elif kind == "ReduceSum" and x is values[-1]:
            made = b.emit(REGISTRY[kind](axis=(0,), keep_dims=True), x)
        else:
            made = b.emit(REGISTRY["ReLU"](), x)
        values.append(made)
    graph.results = [values[-1]]
    graph.nodes = b.nodes
    return graph


def plans(search: Search) -> Iterator[tuple[ShardingChoice, ...]]:
    domains = []
    for node in search.graph.nodes:
        rule = search.rules[node]
        assert rule is not None
        op = node.op
        assert isinstance(op, Op)
        computes = multiplies(rule, node)
        passing = () if computes else (ALL_OPERANDS,) if op.additive else op.linear_in
        domains.append(domain_of(rule, mesh_of(search), computes, passing).choices)
    count = np.prod([len(choices) for choices in domains])
    return filter(partial(can_be, search.graph), product(*domains)) if count <= MOST else iter(())


def can_be(graph: Graph, plan: tuple[ShardingChoice, ...]) -> bool:
    """Whether every partial sum that an operator takes is what its operand comes out as."""
    outputs = {node: choice.outputs[0] for node, choice in zip(graph.nodes, plan, strict=True)}
    return all(
        not layout.partial or (isinstance(value, Node) and outputs[value] == layout)
        for node, choice in zip(graph.nodes, plan, strict=True)
        for value, layout in zip(node.inputs, choice.inputs, strict=True)
    )


def bytes_of(search: Search) -> float:
    values = (*search.graph.nodes, *search.graph.parameters)
    return sum(map(search.traffic.of_value, values))


def test_plans_equal_brute_force() -> None:
    tried = 0
    for seed in range(3000):
        graph = small_network(seed)
        search = Search(graph)
        best = float("inf")
        for plan in plans(search):
            for parameter in graph.parameters:
                if parameter.kind != "input":
                    parameter.layout = None
            for node, choice in zip(graph.nodes, plan, strict=True):
                search.take(node, choice, "")
                for value, layout in zip(node.inputs, choice.inputs, strict=True):
                    if isinstance(value, GraphParameter) and value.layout is None:
                        value.layout = layout
            best = min(best, bytes_of(search))
        if best == float("inf"):
            continue
        fresh = Search(small_network(seed))
        found = place_forward(fresh)
        assert all(isinstance(node.layout, Layout) for node in fresh.graph.nodes if isinstance(node, Node))
        assert bytes_of(fresh) == pytest.approx(best, abs=0.5), f"seed {seed}"
        assert found.assignment.cost == pytest.approx(found.assignment.bound)
        tried += 1
        if tried == share_of(200, 4):
            return
    raise AssertionError(f"only {tried} networks are small enough")


class Net(nn.Cell):
    def __init__(self, shards: bool = False) -> None:
        super().__init__()
        self.first = Parameter(Tensor(np.ones((64, 256), np.float32)))
        self.second = Parameter(Tensor(np.ones((256, 64), np.float32)))
        self.matmul, self.relu = ops.MatMul(), ops.ReLU()
        self.product = ops.MatMul()
        if shards:
            self.product.shard(((8, 1), (1, 1)))

    def construct(self, x: Tensor) -> Tensor:
        return ops.reduce_mean(self.relu(self.product(self.relu(self.matmul(x, self.first)), self.second)))


def compiled(search_mode: str, shards: bool = False, rows: int = 16) -> Compiled:
    net = Net(shards)
    step = nn.TrainOneStepCell(net, nn.Momentum(net.trainable_params(), 0.1, 0.9))
    config = Config(ranks=8, mode="auto_parallel", dataset_strategy="full_batch", search_mode=search_mode)
    return compile_call(step, [TensorType(ms.float32, (rows, 64))], config)


def sent(found: Compiled) -> float:
    return sum(sent_bytes(node) for node in found.rank_graph(0).nodes)


def test_small_batches_leave_large_weights_where_they_are() -> None:
    """With 16 rows the weights' gradients (2 x 64 KB) cost more than the products' sums; data parallel sends the
    former."""
    assert sent(compiled("dynamic_programming")) < sent(compiled("")) / 10
    found = {p.name: p.layout for p in compiled("dynamic_programming").graph.parameters}
    assert (str(found["first"]), str(found["second"])) == ("(8) [-, 0]", "(8) [0, -]")


def test_large_batches_are_sharded() -> None:
    searched = compiled("dynamic_programming", rows=1 << 16)
    assert sent(searched) == pytest.approx(sent(compiled("", rows=1 << 16)), rel=1e-3)


def test_strategies_that_the_user_gave_stay() -> None:
    graph = compiled("dynamic_programming", shards=True).graph
    first, second = (n for n in graph.nodes if n.op.name == "MatMul" and n.phase == "forward")
    assert second.tensor_layout.strategy == (8, 1)
    assert first.attrs["strategy_from"] == "search"


def test_both_searches_find_the_same_here_and_twice() -> None:
    one, other = compiled("dynamic_programming"), compiled("recursive_programming")
    assert sent(one) == sent(other)
    assert one.compile_id == compiled("dynamic_programming").compile_id


def test_as_many_axes_as_pay() -> None:
    def of(ranks: int) -> tuple[int, ...]:
        graph = Graph("none")
        graph.attrs = {"ranks": ranks}
        return mesh_of(Search(graph))

    assert [of(n) for n in (1, 2, 8, 12, 16, 64, 7)] == [
        (1,), (2,), (2, 2, 2), (3, 2, 2), (4, 2, 2), (4, 4, 4), (7,)
    ]  # fmt: skip


class Normed(nn.Cell):
    """A result that is taken out of a tuple, in front of a product that asks for it otherwise."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.relu, self.matmul = nn.LayerNorm((64,)), ops.ReLU(), ops.MatMul()
        self.weight = Parameter(Tensor(np.ones((64, 64), np.float32)))
        self.matmul.shard(((2, 1), (1, 4)))

    def construct(self, x: Tensor) -> Tensor:
        return ops.reduce_mean(self.matmul(self.relu(self.norm(x)), self.weight))


def test_gradients_behind_tuples_cost_what_they_send() -> None:
    net = Normed()
    step = nn.TrainOneStepCell(net, nn.Momentum(net.trainable_params(), 0.1, 0.9))
    config = Config(ranks=8, mode="auto_parallel", dataset_strategy="full_batch", search_mode="dynamic_programming")
    found = compile_call(step, [TensorType(ms.float32, (512, 64))], config)
    assert found.graph.attrs["search_cost"] >= sent(found) * 0.99
