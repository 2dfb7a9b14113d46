"""BatchNorm whose statistics ranks share: two of them gather those of each, more add theirs up.

BatchNorm's kernels on images of which the cache holds some channels only, against the formula on entire arrays.
The gradient that a sum hands an activation is one number for all elements, and is repeated.
"""

from typing import Any

import numpy as np
import pytest

from mspc import MspcError, Parameter, Tensor, nn, ops
from mspc.ops.collective.collectives import AllGather, AllReduce
from mspc.ops.cpu import blocks
from mspc.ops.nn.batch_norm import BatchNorm, normalised_by_own, own_gradients
from tests.graphs import FLOAT64, Builder, Graph, Layout, RankPlacement, TensorType, Value, element_types
from tests.mindspore_api.nn.training import Training
from tests.ops.backend import BACKEND
from tests.ops.ranks import on_ranks

SHAPE = (48, 4, 3)
TYPES = (TensorType(FLOAT64, SHAPE), *[TensorType(FLOAT64, SHAPE[1:2])] * 4)
OP = BatchNorm(is_training=True, momentum=0.25)


def layouts(ranks: int, channels: int) -> tuple[Layout, ...]:
    """The batch over some ranks, channels over others."""
    mesh = (ranks, channels)
    return Layout(mesh, ((0,), (1,), ())), *[Layout(mesh, ((1,),))] * 4


@pytest.mark.parametrize(("ranks", "channels"), [(2, 1), (3, 2), (8, 1), (12, 1), (16, 2)])
def test_ranks_are_one_device(ranks: int, channels: int) -> None:
    """Far from 0, where a sum of squares would have no digits left; every rank has the same bits."""
    ins = layouts(ranks, channels)
    random = np.random.default_rng(ranks)
    inputs = [random.normal(size=SHAPE) + 1e4 + np.arange(48).reshape(48, 1, 1), *random.uniform(1, 2, (4, 4))]
    outs = ins
    made = element_types(OP.infer(*TYPES))
    moving = [np.array(array) for array in inputs]
    expected = OP.run(BACKEND, *moving)
    by_slice: dict[object, list[bytes]] = {}
    for rank, (found, _, operands) in enumerate(on_ranks(OP, ranks * channels, TYPES, ins, made, outs, inputs)):
        got = [*found, *operands[3:]]
        for array, whole, layout in zip(got, [*expected, *moving[3:]], [*outs, *ins[3:]], strict=True):
            wanted = whole[layout.slices_for(rank, whole.shape)]
            np.testing.assert_allclose(array, wanted, rtol=1e-10, atol=1e-10)
        own = [np.ascontiguousarray(array).tobytes() for array in got[1:]]
        assert by_slice.setdefault(ins[1].slice_index(rank), own) == own


@pytest.mark.parametrize(("ranks", "channels"), [(2, 1), (4, 2), (8, 1), (12, 1)])
def test_bytes_are_those_that_are_sent(ranks: int, channels: int) -> None:
    ins = layouts(ranks, channels)
    b = Builder(Graph("norm"))
    given = [Value(t.with_shape(layout.local_shape(t.shape))) for t, layout in zip(TYPES, ins, strict=True)]
    assert OP.expand(b, RankPlacement(0, TYPES, ins, (), ()), given) is not None
    meeting = [node for node in b.graph.nodes if node.op.is_collective]
    assert [type(node.op) for node in meeting] == ([AllGather] if ranks == 2 else [AllReduce] * 2)
    assert all(node.attrs["reason"] == "statistics are those of the batch of all ranks" for node in meeting)
    sent = sum(node.op.sent_bytes(node.inputs[0].tensor_type.nbytes, ranks) for node in meeting)
    assert OP.moved_bytes(TYPES, ins) == sent


EPSILON = 1e-3
SHAPES = [(16, 40, 16, 16), (3, 7, 70, 70), (300, 500), (1, 300, 3), (70000, 2)]
"""The third has one element of a channel in an image; the second and the last more than a block in one channel."""


def formula(x: Any, gamma: Any, beta: Any, dout: Any) -> tuple[Any, ...]:
    axes, row = (0, *range(2, x.ndim)), (1, -1, *[1] * (x.ndim - 2))
    count = x.size // x.shape[1]
    mean, variance = x.mean(axes), x.var(axes)
    inverse = 1 / np.sqrt(variance + EPSILON)
    apart = (x - mean.reshape(row)) * inverse.reshape(row)
    dgamma, dbeta = (dout * apart).sum(axes), dout.sum(axes)
    dx = dout - (dbeta.reshape(row) + apart * dgamma.reshape(row)) / count
    y = apart * gamma.reshape(row) + beta.reshape(row)
    return y, mean, variance, dx * (gamma * inverse).reshape(row), dgamma, dbeta


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_blocks(shape: tuple[int, ...], monkeypatch: pytest.MonkeyPatch) -> None:
    random = np.random.default_rng(1)
    x, dout = random.standard_normal((2, *shape)) + 3
    gamma, beta = random.standard_normal((2, shape[1]))
    expected = formula(x, gamma, beta, dout)
    found: list[list[Any]] = []
    for threads in (1, 3):
        monkeypatch.setattr(blocks, "thread_count", lambda threads=threads: threads)
        y, mean, variance = normalised_by_own(np, x, EPSILON, gamma, beta)
        gradients = own_gradients(np, dout, x, gamma, mean, variance, EPSILON)
        found.append([y, mean, variance, *gradients])
    for one, three, wanted in zip(*found, expected, strict=True):
        np.testing.assert_array_equal(one, three)  # the number of threads changes no bit
        np.testing.assert_allclose(one, wanted, atol=1e-9 * np.abs(wanted).max())


VALUES = np.random.default_rng(0).uniform(-2, 2, (8, 4))


class Step(nn.Cell):
    """The gradient of the sum of an activation in its input, with weights of 1 or without."""

    def __init__(self, activation: Any, weights: Any) -> None:
        super().__init__()
        self.w, self.activation, self.weights = Parameter(Tensor(VALUES), "w"), activation, weights
        self.both = ops.value_and_grad(self.whole, None, [self.w])

    def whole(self, x: Any) -> Any:
        found = self.activation(self.w)
        return found.sum() if self.weights is None else (found * self.weights).sum()

    def construct(self, x: Any) -> Any:
        _, gradients = self.both(x)
        return gradients[0] + 0.0


NAMES = """relu relu6 sigmoid tanh silu gelu fast_gelu elu hardswish hardsigmoid softplus mish leaky_relu softmax
log_softmax selu hardshrink softshrink celu logsigmoid""".split()


@pytest.mark.parametrize("name", NAMES)
def test_the_gradient_of_a_sum(name: str) -> None:
    x = [(np.zeros(8, np.float32),)]
    ones = Tensor(np.random.default_rng(1).uniform(1, 1, (8, 4)))
    found, expected = (Training(Step(getattr(ops, name), w), [(8,)]).run(x)[0] for w in (None, ones))
    np.testing.assert_allclose(found, expected, rtol=1e-12)


RANDOM = np.random.default_rng(2)
EXPERTS = RANDOM.integers(0, 4, (2, 7, 3)).astype(np.int32)


def by_loop(drop_type: int, capacity: int = 2) -> tuple[Any, Any]:
    batch, tokens, k = EXPERTS.shape
    dispatched, combined = np.zeros((batch, 4, capacity), int), np.zeros(EXPERTS.shape, int)
    turns = [(i, j) for i in range(tokens) for j in range(k)]
    if drop_type:
        turns.sort(key=lambda turn: turn[::-1])
    for row in range(batch):
        taken = [0] * 4
        for i, j in turns:
            expert = EXPERTS[row, i, j]
            combined[row, i, j] = expert * (capacity + 1)
            if taken[expert] < capacity:
                dispatched[row, expert, taken[expert]] = i + 1
                taken[expert] += 1
                combined[row, i, j] += taken[expert]
    return dispatched, combined


@pytest.mark.parametrize("drop_type", [0, 1])
def test_experts_take_tokens_as_long_as_there_is_room(drop_type: int) -> None:
    found = ops.TopKRouter()(Tensor(EXPERTS), 2, 4, drop_type)
    for got, expected in zip(found, by_loop(drop_type), strict=True):
        assert got.asnumpy().dtype == np.int32
        assert (got.asnumpy() == expected).all()


@pytest.mark.parametrize(("given", "message"), [
    ((0, 4, 0), "TopKRouter: capacity is 0, not a positive number"),
    ((2, 4, 2), "TopKRouter: drop_type must be 0 or 1, not 2"),
    ((2.5, 4, 0), "TopKRouter: capacity must be an integer known at compile time, not 2.5"),
])  # fmt: skip
def test_what_makes_no_table_is_refused(given: tuple[Any, ...], message: str) -> None:
    with pytest.raises(MspcError, match=message):
        ops.TopKRouter()(Tensor(EXPERTS), *given)
