"""Cells and tuples nested deeper than Python's stack are compiled or refused with a message, never a RecursionError."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import mspc as ms
from mspc import Parameter, Tensor, nn, ops
from mspc.ir.diagnostics import MspcError

DEPTH = 1100
X = Tensor(np.ones((2, 2), np.float32))


class Around(nn.Cell):
    """Adds its parameter to what the cell inside returns."""

    def __init__(self, inside: nn.Cell) -> None:
        super().__init__()
        self.weight = Parameter(Tensor(np.ones(2, np.float32)), "weight")
        self.inside = inside

    def construct(self, x: Any) -> Any:
        return self.inside(x) + self.weight


def nested(depth: int) -> nn.Cell:
    net = cell = Around(nn.ReLU())
    for _ in range(depth - 1):
        cell.inside = cell = Around(cell.inside)
    return net


def test_nested_cells() -> None:
    net = nested(DEPTH)
    visited: list[nn.Cell] = []
    net.apply(visited.append)
    paths = [path for path, _ in net.cells_and_names()]
    assert (len(visited), visited[-1] is net, type(visited[0])) == (DEPTH + 1, True, nn.ReLU)
    assert (paths[0], paths[2], len(paths)) == ("", "inside.inside", DEPTH + 1)
    assert net.trainable_params()[1].name == "inside.weight"
    assert np.array_equal(nested(150)(X).asnumpy(), np.full((2, 2), 151, np.float32))
    with pytest.raises(RuntimeError, match="cells nest more than 200 deep") as raised:
        net(X)
    assert "return self.inside(x) + self.weight" in str(raised.value)


def test_cells_are_visited_in_order() -> None:
    net = nn.SequentialCell(nn.SequentialCell(nn.ReLU(), nn.Tanh()), nn.Sigmoid())
    visited: list[str] = []
    net.apply(lambda cell: visited.append(type(cell).__name__))
    assert visited == ["ReLU", "Tanh", "SequentialCell", "Sigmoid", "SequentialCell"]
    assert [path for path, _ in net.cells_and_names()] == ["", "0", "0.0", "0.1", "1"]


def deep_tuple() -> Any:
    found: Any = X
    for _ in range(DEPTH):
        found = (found,)
    return found


class Returning(nn.Cell):
    def construct(self, x: Any) -> Any:
        found = x
        for _ in range(300):
            found = (found, 1)
        return found


class Identity(nn.Cell):
    def construct(self, x: Any) -> Any:
        return x


@pytest.mark.parametrize(("call", "message"), [
    (lambda x: Identity()(x), "argument 0 is a tuple nested more than 200 deep"),
    (lambda x: Returning()(X), "the network returns a tuple nested more than 200 deep"),
    (lambda x: ops.stack(x), "a tuple nested too deep to print"),
    (lambda x: Tensor(x), "a tuple nested too deep to print"),
    (lambda x: X.reshape(x), "a tuple nested too deep to print"),
    (lambda x: ops.Add().shard(x), "in_strategy is a tuple nested too deep to print"),
    (lambda x: ms.jit(lambda a: a)(x), "argument 0 is a tuple nested more than 200 deep"),
])  # fmt: skip
def test_nested_tuples(call: Callable[[Any], Any], message: str) -> None:
    with pytest.raises(MspcError, match=message) as raised:
        call(deep_tuple())
    assert "test_deep_nesting.py" in str(raised.value) or "returns" in message  # the command adds the caller's line
