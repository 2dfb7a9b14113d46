"""Makes networks, gradients, functions and shapes without end, and measures memory.

Every round has new cells with optimizers that are dropped, new functions and requests for gradients, new shapes of an
old network, operators outside of networks, and a short `Model.train`.
"""

from __future__ import annotations

import gc
from pathlib import Path
from typing import Any

import numpy as np

import mspc as ms
from mspc import Parameter, Tensor, nn, ops
from mspc.mindspore_api import call_handler

SIZE = 1000


def resident() -> float:
    """Megabytes of this process in memory."""
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmRSS"))
    return int(line.split()[1]) / 1024


def trained_network(number: int) -> None:
    """A network of 4 MB with Adam, trained as a cell."""
    x = Tensor(np.ones((8, SIZE), np.float32))
    net = nn.Dense(SIZE, SIZE)
    step = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), nn.Adam(net.trainable_params(), 1e-3))
    step.set_train()
    for _ in range(2):
        step(x, x)
    net.set_train(False)
    net(x)


def training_by_hand(number: int) -> None:
    """Gradients of a function, an optimizer, dropout and batch statistics."""
    net = nn.SequentialCell(nn.Dense(16, 32), nn.BatchNorm1d(32), nn.ReLU(), nn.Dropout(p=0.2), nn.Dense(32, 4))
    net.set_train()
    optimizer, loss = nn.Momentum(net.trainable_params(), 0.01, 0.9), nn.CrossEntropyLoss()

    def forward(x: Any, y: Any) -> Any:
        return loss(net(x), y)

    gradient = ms.value_and_grad(forward, None, optimizer.parameters)
    for _ in range(2):
        optimizer(gradient(Tensor(np.ones((8, 16), np.float32)), Tensor(np.zeros(8, np.int32)))[1])


def cubes(x: Any) -> Any:
    return (x * x * x).sum()


def new_functions(number: int) -> None:
    """Gradients of functions, old ones and new ones, with constants and loops of their own."""
    x = Tensor(np.ones(8, np.float32))

    @ms.jit
    def scaled(a: Any) -> Any:
        while a.sum() < number % 50 + 20:
            a = a * 2
        return a

    scaled(x)
    ms.grad(cubes)(x)
    ms.grad(ms.grad(cubes))(x)
    ms.grad(lambda a: (a * number).sum())(x)


SHAPED = nn.SequentialCell(nn.Dense(16, 16), nn.LayerNorm((16,)))


def new_shapes(number: int) -> None:
    """One network and one operator with other shapes, in no order of their sizes."""
    rows = number * 389 % 997 + 1
    SHAPED(Tensor(np.ones((rows, 16), np.float32)))
    ops.softmax(Tensor(np.ones((rows, 3), np.float32)) * 2 + 1)


def new_classes(number: int) -> None:
    """A class with a gradient of its own and a hook, and operators outside of networks."""

    class Scaled(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.w = Parameter(Tensor(np.full(8, 0.5, np.float32)))

        def construct(self, x: Any) -> Any:
            return x * self.w * number

        def bprop(self, x: Any, out: Any, dout: Any) -> Any:
            return (dout * self.w * number,)

    cell = Scaled()
    x = Tensor(np.ones(8, np.float32))
    ms.grad(cell)(x)
    handle = cell.register_forward_hook(lambda cell, inputs, output: output + 1)
    cell(x)
    handle.remove()
    cell(x)
    (ops.matmul(x.reshape(2, 4), x.reshape(4, 2)) + number).sum().asnumpy()


def trained_by_model(number: int) -> None:
    """`Model` with a data set."""
    rows = np.ones((16, 8), np.float32)
    data = ms.dataset.NumpySlicesDataset({"x": rows, "y": rows}, shuffle=False).batch(8)
    net = nn.Dense(8, 8)
    model = ms.Model(net, nn.MSELoss(), nn.SGD(net.trainable_params(), 0.1))
    model.train(1, data)
    ms.load_param_into_net(net, {name: Parameter(p.asnumpy(), name) for name, p in net.parameters_dict().items()})


KINDS = (trained_network, training_by_hand, new_functions, new_classes, new_shapes, trained_by_model)


def run(rounds: int) -> tuple[int, float]:
    """Go through all kinds so many times; return the stored graphs and the resident megabytes."""
    for number in range(rounds):
        for kind in KINDS:
            kind(number)
    gc.collect()
    return len(call_handler.current().compiled_calls), resident()
