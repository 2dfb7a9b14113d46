"""AlltoAllV: pieces of different sizes between ranks, and their gradients."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from mspc.ir.builder import Builder
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Graph, Parameter
from mspc.ir.types import FLOAT32, TensorType
from mspc.ops.collective.collectives import AlltoAllV
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.comm.local import LocalComm, World
from mspc.runtime.executor import Executor

COUNTS = [[1, 0, 2], [3, 1, 0], [0, 0, 2]]
"""How many blocks each rank sends to each."""


def test_pieces_arrive_in_order_and_gradients_go_back() -> None:
    def main(comm: LocalComm) -> list[Any]:
        sends = COUNTS[comm.rank]
        receives = [row[comm.rank] for row in COUNTS]
        op, _ = AlltoAllV(block_size=2).with_ranks((0, 1, 2)).call("x", sends, np.array(receives))
        graph = Graph("main")
        x = Parameter("x", TensorType(FLOAT32, (2 * sum(sends),)))
        graph.parameters.append(x)
        b = Builder(graph)
        out = b.emit(op, x)
        (back,) = op.gradient(b, [x], out, out)
        graph.results = [value for value in (out, back) if value is not None]
        given = 10 * comm.rank + np.arange(2 * sum(sends), dtype=np.float32)
        return [given, *Executor(graph, NumPyBackend(comm), {}).run([given])]

    found = World(3).run(main)
    np.testing.assert_array_equal(found[0][1], [0, 1, 10, 11, 12, 13, 14, 15])
    np.testing.assert_array_equal(found[1][1], [16, 17])
    np.testing.assert_array_equal(found[2][1], [2, 3, 4, 5, 20, 21, 22, 23])
    for given, _, back in found:
        np.testing.assert_array_equal(back, given)


@pytest.mark.parametrize(("sends", "receives", "block", "message"), [
    ((1, 2), (1,), 1,
     "AlltoAllV: recv_numel_list must be 2 numbers from 0 on, one for each rank of the group, not (1,)"),
    ((1, -1), (1, 1), 1,
     "AlltoAllV: send_numel_list must be 2 numbers from 0 on, one for each rank of the group, not (1, -1)"),
    ((1, 2), (1, 1), 1, "AlltoAllV: the tensor has shape (4,), and send_numel_list says (3,)"),
    ((2, 2), (1, 1), 0, "AlltoAllV: block_size must be at least 1, not 0"),
])  # fmt: skip
def test_numbers_that_do_not_fit(sends: Any, receives: Any, block: int, message: str) -> None:
    op, _ = AlltoAllV(block_size=block).with_ranks((0, 1)).call("x", sends, receives)
    with pytest.raises(MspcError) as raised:
        op.infer(TensorType(FLOAT32, (4,)))
    assert raised.value.message == message
