"""Networks on tensors without elements: they compile, and ranks return what one device returns, gradients included."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from training import Training, floats

from mspc import Parameter, Tensor, nn, ops

ROWS, COLUMNS, BOTH = (0, 4), (8, 0), (8, 4)
CASES: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "reshape": (lambda net, x: ops.reshape(x, (4, 0)), [ROWS]),
    "reshape that keeps the batch": (lambda net, x: ops.reshape(x, (8, 0)), [(8, 0, 4)]),
    "reshape with what is left": (lambda net, x: ops.reshape(x, (2, -1)), [ROWS]),
    "flatten": (lambda net, x: ops.flatten(x), [(8, 0, 4)]),
    "dimensions of one": (lambda net, x: ops.squeeze(ops.expand_dims(x, 1), 1), [ROWS]),
    "transpose": (lambda net, x: ops.transpose(x, (1, 0)), [ROWS]),
    "sums": (lambda net, x: ops.reduce_sum(x, 0), [ROWS]),
    "means": (lambda net, x: ops.reduce_mean(x, 1), [COLUMNS]),
    "mean of everything": (lambda net, x: ops.reduce_mean(x), [ROWS]),
    "variance": (lambda net, x: x.var(), [COLUMNS]),
    "mean squared error": (lambda net, x: ops.mse_loss(x, x * 2), [ROWS]),
    "softmax": (lambda net, x: ops.softmax(x) + ops.log_softmax(x), [COLUMNS]),
    "rows side by side": (lambda net, x, y: ops.concat((x, y), 0), [ROWS, BOTH]),
    "columns side by side": (lambda net, x, y: ops.concat((x, y), 1), [COLUMNS, BOTH]),
    "stack": (lambda net, x: ops.stack((x, x)), [ROWS]),
    "tile": (lambda net, x: ops.tile(x, (2, 1)), [ROWS]),
    "padding": (lambda net, x: ops.Pad(((1, 1), (0, 0)))(x), [ROWS]),
    "product over nothing": (lambda net, x, y: ops.matmul(x, y), [COLUMNS, ROWS]),
    "product of nothing": (lambda net, x: ops.matmul(x, net.w) + net.b, [ROWS]),
    "changes of layout": (
        lambda net, x: ops.Tanh().shard(((1, 1),))(ops.ReLU().shard(((1, 2),))(ops.Sin().shard(((2, 1),))(x))),
        [ROWS],
    ),
}


class Net(nn.Cell):
    def __init__(self, form: Callable[..., Any]) -> None:
        super().__init__()
        self.w, self.b = Parameter(Tensor(floats(1, 4, 4)), "w"), Parameter(Tensor(floats(2, 4)), "b")
        self.form = form

    def construct(self, *inputs: Any) -> Any:
        return self.form(self, *inputs)


@pytest.mark.filterwarnings("ignore:Mean of empty slice", "ignore:invalid value encountered")
@pytest.mark.parametrize("mode", ["semi_auto_parallel", "auto_parallel"])
@pytest.mark.parametrize("name", CASES)
def test_ranks_equal_one_device(name: str, mode: str) -> None:
    form, shapes = CASES[name]
    data = [floats(3 + i, *shape) for i, shape in enumerate(shapes)]
    found: list[list[np.ndarray]] = []
    for ranks in (1, 2):
        net = Net(form)
        cell = nn.ForwardValueAndGrad(net, [net.w, net.b], get_all=True, get_by_list=True)
        value, (inputs, weights) = Training(cell, shapes, ranks, mode if ranks > 1 else "stand_alone").run([data])[0]
        found.append([np.asarray(array) for array in (value, *inputs, *weights)])
    assert [array.shape for array in found[1][1:]] == [*shapes, (4, 4), (4,)]
    for one, many in zip(*found, strict=True):
        np.testing.assert_allclose(many, one, 1e-5, 1e-5)


def test_layouts_on_meshes_of_several_axes() -> None:
    """No rank lacks an element of nothing, whatever the layouts are: shapes change all the same."""

    def form(net: Any, x: Any) -> Any:
        y = ops.Abs().shard(((1, 2),))(x)
        return ops.Maximum().shard(((4, 1), (4, 1)))(y, ops.Neg().shard(((1, 4),))(y))

    assert Training(Net(form), [ROWS], 4, "semi_auto_parallel").run([(floats(3, *ROWS),)])[0].shape == ROWS
