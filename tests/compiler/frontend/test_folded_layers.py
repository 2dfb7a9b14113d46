"""Equal cells of a class that asks for it are one graph, and compute what inlined ones do, to the bit."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mspc
from mspc import Parameter, Tensor, nn, ops
from mspc.compiler.call import describe_call
from mspc.compiler.config import Config
from mspc.compiler.driver import trace_call
from mspc.compiler.frontend.trace import trace
from mspc.ops.control.regions import For, MakeStack, Scan
from mspc.passes.base import PassManager, find_pass
from tests.graphs import FLOAT32, REGISTRY, Graph, TensorType, check_graph, difference, parse, print_graph
from tests.interpret import random_feeds, run_global, run_on_ranks, same

WIDTH = 8
LAYERS = 4
ROWS = TensorType(FLOAT32, (8, WIDTH))
SHARDED = (
    "grad", "simplify", "recompute", "check_strategies", "propagate_sharding", "insert_redistribution",
    "lower_redistribution", "fuse_gradients",
)  # fmt: skip


def plainly(constructor: Any) -> Any:
    return constructor


def layer_class(mark: Any) -> type[nn.Cell]:
    class Layer(nn.Cell):
        """Rows and columns are sharded where the network is."""

        @mark
        def __init__(self, generator: np.random.Generator, factor: float = 0.5) -> None:
            super().__init__()
            self.norm = nn.LayerNorm((WIDTH,))
            self.up = Parameter(Tensor(generator.normal(size=(WIDTH, 16)).astype(np.float32) * 0.3), name="up")
            self.down = Parameter(Tensor(generator.normal(size=(16, WIDTH)).astype(np.float32) * 0.3), name="down")
            self.product = ops.MatMul().shard(((2, 1), (1, 4)))
            self.sum = ops.MatMul().shard(((2, 4), (4, 1)))
            self.factor = factor

        def construct(self, x: Any) -> Any:
            return x + self.factor * self.sum(ops.tanh(self.product(self.norm(x), self.up)), self.down)

    return Layer


class Network(nn.Cell):
    def __init__(self, mark: Any, factors: Any = (0.5,) * LAYERS) -> None:
        super().__init__()
        generator = np.random.default_rng(3)
        layer = layer_class(mark)
        self.layers = nn.CellList([layer(generator, factor) for factor in factors])

    def construct(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return (x * x).mean()


def step_of(mark: Any, optimizer: str = "Adam", **settings: Any) -> nn.Cell:
    network = Network(mark)
    return nn.TrainOneStepCell(network, getattr(nn, optimizer)(network.trainable_params(), 0.05, **settings))


def loops(graph: Graph) -> list[str]:
    return [node.op.name for node in graph.nodes if node.regions]


OPTIMIZERS: list[tuple[str, dict[str, Any]]] = [
    ("Adam", {}), ("AdamWeightDecay", {"weight_decay": 0.1}), ("SGD", {"momentum": 0.9}), ("RMSProp", {}),
    ("Momentum", {"momentum": 0.9}), ("Adagrad", {}), ("FTRL", {}), ("Adam", {"use_amsgrad": True}),
    ("Lamb", {}),
]  # fmt: skip


@pytest.mark.parametrize(("optimizer", "settings"), OPTIMIZERS)
def test_a_step_is_that_of_inlined_cells(optimizer: str, settings: dict[str, Any]) -> None:
    x = Tensor(np.random.default_rng(5).normal(size=(8, WIDTH)).astype(np.float32))
    assert loops(trace(step_of(mspc.lazy_inline, optimizer, **settings), [ROWS]).graph) == ["For", "Scan"]
    steps = [step_of(mark, optimizer, **settings) for mark in (plainly, mspc.lazy_inline)]
    for _ in range(3):
        plain, folded = (step(x).asnumpy() for step in steps)
        np.testing.assert_array_equal(plain, folded)
    for one, other in zip(*(step.network.trainable_params() for step in steps), strict=True):
        np.testing.assert_array_equal(one.asnumpy(), other.asnumpy(), err_msg=one.name)


def test_the_text_is_as_long_for_any_number_of_layers() -> None:
    lengths: set[int] = set()
    for count in (2, 12):
        network = Network(mspc.lazy_inline, (0.5,) * count)
        step = nn.TrainOneStepCell(network, nn.Adam(network.trainable_params(), 0.05))
        graph = trace(step, [ROWS]).graph
        graph.verify()
        check_graph(graph)
        assert loops(graph) == ["For", "Scan"]
        text = print_graph(graph)
        assert f"_layers.{{0..{count - 1}}}.up: " in text
        assert difference(graph, parse(text, REGISTRY).main) == ""
        lengths.add(text.count("\n"))
    assert len(lengths) == 1


def test_gradients_are_asked_for_stacks() -> None:
    graph = trace(step_of(mspc.lazy_inline), [ROWS]).graph
    [request] = [node for node in graph.nodes if node.op.name == "Gradient"]
    assert [value.op.name for value in request.inputs[1:]] == ["MakeStack"] * 4  # type: ignore[attr-defined]  # nodes
    assert [len(node.inputs) for node in graph.nodes if isinstance(node.op, MakeStack)] == [LAYERS] * 12
    [update] = [node for node in graph.nodes if isinstance(node.op, Scan)]
    assert [node.op.name for node in update.regions[0].nodes if node.op.mutates] == ["Adam"] * 4


def sharded(graph: Graph) -> Graph:
    """The graph behind the passes that shard it, whose text reads back."""
    manager = PassManager(verify="types")
    for name in SHARDED:
        graph, _ = manager.apply(find_pass(name), graph)
    assert difference(graph, parse(print_graph(graph), REGISTRY).main) == ""
    return graph


def test_ranks_train_as_one_device() -> None:
    def traced() -> Graph:
        graph = trace(step_of(mspc.lazy_inline, "Momentum", momentum=0.9), [ROWS]).graph
        graph.attrs |= {"mode": "semi_auto_parallel", "ranks": 8}
        return graph

    graph = traced()
    feeds = random_feeds(graph, 1)
    wanted = run_global(traced(), feeds)
    graph = sharded(graph)
    check_graph(parse(print_graph(graph), REGISTRY).main)
    assert {str(p.layout) for p in graph.parameters if p.name.endswith(".up")} == {"(2, 4) [-, 1]"}
    same(wanted, run_on_ranks(graph, feeds), 1e-5)


def test_cells_that_differ_are_inlined() -> None:
    network = Network(mspc.lazy_inline, (0.5, 0.5, 0.25, 0.5))
    assert loops(trace(network, [ROWS]).graph) == []


def test_groups_of_parameters_go_on_stacks() -> None:
    """A rate of its own for one weight of one layer is another entry of a stack."""

    def step(mark: Any) -> nn.Cell:
        network = Network(mark)
        parameters = network.trainable_params()
        groups = [{"params": parameters[:1], "lr": 0.5}, {"params": parameters[1:]}]
        return nn.TrainOneStepCell(network, nn.Momentum(groups, 0.1, 0.9))

    assert loops(trace(step(mspc.lazy_inline), [ROWS]).graph) == ["For", "Scan"]
    x = Tensor(np.random.default_rng(5).normal(size=(8, WIDTH)).astype(np.float32))
    steps = [step(mark) for mark in (plainly, mspc.lazy_inline)]
    for _ in range(3):
        plain, folded = (step(x).asnumpy() for step in steps)
        np.testing.assert_array_equal(plain, folded)


def test_what_is_done_for_one_layer_alone_inlines_all() -> None:
    class Step(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.network = Network(mspc.lazy_inline)
            self.weights = mspc.ParameterTuple(self.network.trainable_params())
            self.grad = ops.GradOperation(get_by_list=True)

        def construct(self, x: Any) -> Any:
            grads = self.grad(self.network, self.weights)(x)
            return grads[0]

    assert loops(trace(Step(), [ROWS]).graph) == []
    assert loops(trace(Step().network, [ROWS]).graph) == ["For"]


def test_a_weight_that_is_read_elsewhere_inlines_all() -> None:
    class Tied(Network):
        def construct(self, x: Any) -> Any:
            for layer in self.layers:
                x = layer(x)
            return (ops.matmul(x, self.layers[0].up) ** 2).mean()

    assert loops(trace(Tied(mspc.lazy_inline), [ROWS]).graph) == []


def by_number(layers: Any, x: Any) -> Any:
    for i in range(LAYERS):
        x = layers[i](x)
    return x


def by_number_of_some(layers: Any, x: Any) -> Any:
    for i in range(1, len(layers)):
        x = x + layers[i](x)
    return layers[0](x)


def enumerated(layers: Any, x: Any) -> Any:
    for _, layer in enumerate(layers):
        x = layer(x)
    return x


def in_two_lists(layers: Any, x: Any) -> Any:
    for first, second in zip(layers[:2], layers[2:], strict=True):
        x = second(first(x))
    return x


def weighted(layers: Any, x: Any) -> Any:
    for i, layer in enumerate(layers):
        x = layer(x) * (i + 1)
    return x


def neighbours(layers: Any, x: Any) -> Any:
    for i in range(LAYERS - 1):
        x = layers[i](x) + layers[i + 1](x)
    return x


def replaced_on_the_way(layers: Any, x: Any) -> Any:
    for i in range(2):
        x = layers[i](x)
        layers = layers[::-1]
    return x


def twice(layers: Any, x: Any) -> Any:
    """Gradients of both loops go to the same weights."""
    return enumerated(layers, enumerated(layers, x))


def overlapping(layers: Any, x: Any) -> Any:
    for layer in layers[1:]:
        x = layer(x)
    return enumerated(layers, x)


def under_a_condition(layers: Any, x: Any) -> Any:
    if x.sum() > 0.0:
        x = enumerated(layers, x)
    return x * 0.5


WAYS: list[tuple[Any, list[str]]] = [
    (by_number, ["For"]), (enumerated, ["For"]), (in_two_lists, ["For"]), (by_number_of_some, ["For"]),
    (twice, ["For", "For"]), (overlapping, []), (under_a_condition, ["If"]), (weighted, []),
    (neighbours, []), (replaced_on_the_way, []),
]  # fmt: skip


@pytest.mark.parametrize(("way", "wanted"), WAYS)
def test_a_loop_goes_over_cells_or_their_numbers(way: Any, wanted: list[str]) -> None:
    class Own(Network):
        def construct(self, x: Any) -> Any:
            return (way(self.layers, x) ** 2).mean()

    assert loops(trace(Own(mspc.lazy_inline), [ROWS]).graph) == wanted
    x = Tensor(np.random.default_rng(5).normal(size=(8, WIDTH)).astype(np.float32))
    networks = [Own(mark) for mark in (plainly, mspc.lazy_inline)]
    steps = [nn.TrainOneStepCell(each, nn.Momentum(each.trainable_params(), 0.05, 0.9)) for each in networks]
    for _ in range(2):
        plain, folded = (step(x).asnumpy() for step in steps)
        np.testing.assert_array_equal(plain, folded)


def test_an_unmarked_class_is_inlined() -> None:
    graph = trace(Network(plainly), [ROWS]).graph
    assert not any(isinstance(node.op, For) for node in graph.nodes)


def test_cells_are_inlined_for_gpus() -> None:
    network = Network(mspc.lazy_inline)
    call = describe_call([ROWS], [])
    found = [trace_call(network, call, Config(device=device)).traced.graph for device in ("CPU", "GPU")]
    assert [bool(loops(graph)) for graph in found] == [True, False]


class Step(nn.Cell):
    """A step that changes the gradients on their way to the optimizer."""

    def __init__(self, mark: Any, change: Callable[[Any], Any], optimizer: str = "Momentum") -> None:
        super().__init__()
        self.network = Network(mark)
        self.head = Parameter(Tensor(np.full((WIDTH,), 0.5, np.float32)), name="head")
        self.weights = mspc.ParameterTuple([*self.network.trainable_params(), self.head])
        settings = {"momentum": 0.9} if optimizer == "Momentum" else {}
        self.optimizer = getattr(nn, optimizer)(self.weights, 0.05, **settings)
        self.grad = ops.GradOperation(get_by_list=True)
        self.change = change

    def loss(self, x: Any) -> Any:
        return self.network(x * self.head)

    def construct(self, x: Any) -> Any:
        loss = self.loss(x)
        grads = self.change(self.grad(self.loss, self.weights)(x))
        return ops.depend(loss, self.optimizer(grads))


def by_global_norm(grads: Any) -> Any:
    return ops.clip_by_global_norm(grads, 0.05)


def by_value(grads: Any) -> Any:
    return [ops.clip_by_value(g, -0.01, 0.01) for g in grads]


def by_norms(grads: Any) -> Any:
    return [ops.clip_by_norm(g, 0.02) for g in grads]


def by_sum_of_norms(grads: Any) -> Any:
    """A sum that is written as a sum."""
    total = sum([ops.reduce_sum(g * g) for g in grads])
    scale = 0.05 / ops.maximum(ops.sqrt(total), 0.05)
    return [g * scale for g in grads]


def by_largest(grads: Any) -> Any:
    largest = ops.reduce_max(ops.abs(grads[-1]))
    for g in grads[:-1]:
        largest = ops.maximum(largest, ops.reduce_max(ops.abs(g)))
    return [g / largest for g in grads]


def by_norm_of_norms(grads: Any) -> Any:
    total = ops.norm(ops.stack([ops.norm(g) for g in grads]))
    return [g * (0.05 / ops.maximum(total, 0.05)) for g in grads]


def by_all_elements(grads: Any) -> Any:
    largest = ops.reduce_max(ops.abs(ops.concat([g.reshape((-1,)) for g in grads])))
    return [g / largest for g in grads]


def where_finite(grads: Any) -> Any:
    finite = ops.AllFinite()(grads)
    return [ops.select(finite, g, ops.zeros_like(g)) for g in grads]


def unscaled_and_clipped(grads: Any) -> Any:
    """A value that is made before a meeting is read after it."""
    grads = [g * 0.25 for g in grads]
    finite = ops.AllFinite()(grads)
    clipped = ops.clip_by_global_norm([ops.select(finite, g, g * 0.0) for g in grads], 0.05)
    return clipped


MEETING: list[tuple[Any, list[str]]] = [
    (by_value, ["For", "Scan"]), (by_norms, ["For", "Scan"]), (by_global_norm, ["For", "Scan", "Scan"]),
    (by_sum_of_norms, ["For", "Scan", "Scan"]), (by_largest, ["For", "Scan", "Scan"]),
    (by_norm_of_norms, ["For", "Scan", "Scan"]), (by_all_elements, ["For", "Scan", "Scan"]),
    (where_finite, ["For", "Scan", "Scan"]), (unscaled_and_clipped, ["For", "Scan", "Scan", "Scan"]),
]  # fmt: skip


@pytest.mark.parametrize(("change", "wanted"), MEETING)
def test_a_step_with_meetings_is_that_of_inlined_cells(change: Any, wanted: list[str]) -> None:
    graph = trace(Step(mspc.lazy_inline, change), [ROWS]).graph
    graph.verify()
    check_graph(graph)
    assert loops(graph) == wanted
    assert difference(graph, parse(print_graph(graph), REGISTRY).main) == ""
    x = Tensor(np.random.default_rng(5).normal(size=(8, WIDTH)).astype(np.float32))
    steps = [Step(mark, change) for mark in (plainly, mspc.lazy_inline)]
    for _ in range(3):
        plain, folded = (step(x).asnumpy() for step in steps)
        np.testing.assert_allclose(plain, folded, rtol=1e-6)
    for one, other in zip(*(step.weights for step in steps), strict=True):
        np.testing.assert_allclose(one.asnumpy(), other.asnumpy(), rtol=1e-5, atol=1e-7, err_msg=one.name)


@pytest.mark.parametrize("change", [by_global_norm, where_finite, by_largest, by_norm_of_norms])
def test_ranks_with_meetings_train_as_one_device(change: Any) -> None:
    def traced() -> Graph:
        graph = trace(Step(mspc.lazy_inline, change), [ROWS]).graph
        graph.attrs |= {"mode": "semi_auto_parallel", "ranks": 8}
        return graph

    graph = traced()
    feeds = random_feeds(graph, 1)
    wanted = run_global(traced(), feeds)
    same(wanted, run_on_ranks(sharded(graph), feeds), 1e-5)


def with_loss_scale(network: nn.Cell) -> Any:
    manager = nn.DynamicLossScaleUpdateCell(1024, 2, 2)
    return nn.TrainOneStepWithLossScaleCell(network, nn.Adam(network.trainable_params(), 0.05), scale_sense=manager)


def accumulated(network: nn.Cell) -> Any:
    """The optimizer runs after every second step, with the sum of the gradients."""

    class Accumulated(nn.Cell):
        def __init__(self) -> None:
            super().__init__(auto_prefix=False)
            self.network, self.optimizer = network, nn.Momentum(network.trainable_params(), 0.05, 0.9)
            self.weights = self.optimizer.parameters
            self.sums = self.weights.clone("sum", "zeros")
            self.count = Parameter(Tensor(0, mspc.int32), name="count", requires_grad=False)
            self.grad, self.each = ops.GradOperation(get_by_list=True), ops.HyperMap()

        def construct(self, x: Any) -> Any:
            loss = self.network(x)
            self.each(ops.assign_add, self.sums, self.grad(self.network, self.weights)(x))
            self.count += 1
            if self.count % 2 == 0:
                self.optimizer(self.sums)
                self.each(ops.assign, self.sums, self.each(ops.zeros_like, self.sums))
            return loss

    return Accumulated()


def averaged(network: nn.Cell) -> Any:
    """A moving average of the weights is kept beside them, and the norm of the gradients is returned."""

    class Averaged(nn.Cell):
        def __init__(self) -> None:
            super().__init__(auto_prefix=False)
            self.network, self.optimizer = network, nn.AdamWeightDecay(network.trainable_params(), 0.05)
            self.weights = self.optimizer.parameters
            self.means = self.weights.clone("mean", "same")
            self.grad = ops.GradOperation(get_by_list=True)

        def construct(self, x: Any) -> Any:
            loss = self.network(x)
            grads = self.grad(self.network, self.weights)(x)
            loss = ops.depend(loss, self.optimizer(grads))
            for mean, weight in zip(self.means, self.weights, strict=True):
                ops.assign(mean, mean * 0.75 + weight * 0.25)
            return loss + 0.0 * ops.sqrt(ops.addn([ops.reduce_sum(ops.square(g)) for g in grads]))

    return Averaged()


def with_gradients(network: nn.Cell) -> Any:
    step = nn.TrainOneStepCell(network, nn.Adam(network.trainable_params(), 0.05), return_grad=True)
    return lambda x: step(x)[0]


def summed_up(network: nn.Cell) -> Any:
    """Gradients of parts of the batch."""
    parts = mspc.parallel.nn.GradAccumulation(network, 2)
    return nn.TrainOneStepCell(parts, nn.Adam(network.trainable_params(), 0.05))


@pytest.mark.parametrize("step_of", [with_loss_scale, accumulated, averaged, with_gradients, summed_up])
def test_usual_steps_train_as_with_inlined_cells(step_of: Any) -> None:
    x = Tensor(np.random.default_rng(5).normal(size=(8, WIDTH)).astype(np.float32))
    networks = [Network(mark) for mark in (plainly, mspc.lazy_inline)]
    steps = [step_of(network) for network in networks]
    if isinstance(steps[1], nn.Cell):
        assert loops(trace(step_of(Network(mspc.lazy_inline)), [ROWS]).graph)[:2] in (["For", "For"], ["For", "Scan"])
    for _ in range(4):
        plain, folded = ((found[0] if isinstance(found, tuple) else found).asnumpy() for found in (s(x) for s in steps))
        np.testing.assert_allclose(plain, folded, rtol=1e-6)
    for one, other in zip(*(network.trainable_params() for network in networks), strict=True):
        np.testing.assert_allclose(one.asnumpy(), other.asnumpy(), rtol=1e-5, atol=1e-7, err_msg=one.name)


def test_what_is_overwritten_on_the_way_inlines_all() -> None:
    """A count that changes between what is done for two layers."""

    class Counting(Step):
        def __init__(self, mark: Any) -> None:
            super().__init__(mark, list)
            self.count = Parameter(Tensor(np.float32(0.0)), name="count", requires_grad=False)

        def construct(self, x: Any) -> Any:
            loss = self.loss(x)
            for i, (weight, g) in enumerate(zip(self.weights, self.grad(self.loss, self.weights)(x), strict=True)):
                if i % 2 == 0:
                    self.count += 1.0
                ops.assign(weight, weight - 0.01 * self.count * g)
            return loss

    assert loops(trace(Counting(mspc.lazy_inline), [ROWS]).graph) == []
