"""A layer that gives every operator a strategy, as MoEV2 of mindformers does, sends rooms by four all-to-alls alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from mspc.commands.compile import CompileOptions
from mspc.commands.verify import verify_target
from mspc.ops.collective.collectives import AlltoAll
from tests.compiled_scripts import compiled_script

SCRIPT = """
import numpy as np
import mindspore as ms
from mindspore import Parameter, Tensor, nn, ops
from mindspore.ops import operations as P

DP, EP, ROOM, WIDTH, EXPERTS, CHOSEN = 8, {parts}, 4, 6, 8, 2
OUTER = DP // EP
random = np.random.RandomState(1)


def weight(*shape):
    return Parameter(Tensor(random.randn(*shape)))


class Experts(nn.Cell):
    def __init__(self):
        super().__init__()
        self.gate, self.up, self.down = weight(WIDTH, EXPERTS), weight(EXPERTS, WIDTH, 5), weight(EXPERTS, 5, WIDTH)
        self.route = P.MatMul().shard(((DP, 1), (1, 1)))
        self.softmax, self.topk = P.Softmax(-1).shard(((DP, 1, 1),)), P.TopK().shard(((DP, 1, 1),))
        self.places = ops.TopKRouter().shard(((DP, 1, 1),))
        self.pad = P.Concat(1).shard(((DP, 1, 1), (DP, 1, 1)))
        self.pad_rooms = P.Concat(2).shard(((DP, 1, 1, 1), (DP, 1, 1, 1)))
        self.dispatch, self.combine = (P.Gather(batch_dims=1).shard(((DP, 1, 1), (DP, 1, 1))) for _ in range(2))
        self.turn = P.Transpose().shard(((OUTER, 1, EP, 1, 1),))
        self.first, self.second = (P.BatchMatMul().shard(((OUTER, EP, 1, 1), (EP, 1, 1))) for _ in range(2))
        self.relu = P.ReLU().shard(((OUTER, EP, 1, 1),))
        self.mul, self.sum = P.Mul().shard(((DP, 1, 1, 1),) * 2), P.ReduceSum().shard(((DP, 1, 1, 1),))

    def construct(self, x):
        x = x.reshape(DP, -1, WIDTH)
        scores = self.route(x.reshape(-1, WIDTH), self.gate).reshape(DP, -1, EXPERTS)
        weights, experts = self.topk(self.softmax(scores), CHOSEN)
        tables, places = self.places(experts, ROOM, EXPERTS)
        given = self.dispatch(self.pad((ops.zeros((DP, 1, WIDTH), x.dtype), x)), tables, 1)
        given = self.turn(given.reshape(OUTER, EP, EXPERTS, ROOM, WIDTH), (0, 2, 1, 3, 4))
        given = given.reshape(OUTER, EXPERTS, EP * ROOM, WIDTH)
        found = self.second(self.relu(self.first(given, self.up)), self.down)
        found = self.turn(found.reshape(OUTER, EXPERTS, EP, ROOM, WIDTH), (0, 2, 1, 3, 4))
        found = self.pad_rooms((ops.zeros((DP, EXPERTS, 1, WIDTH), x.dtype), found.reshape(DP, EXPERTS, ROOM, WIDTH)))
        found = self.combine(found.reshape(DP, EXPERTS * (ROOM + 1), WIDTH), places, 1)
        found = self.sum(self.mul(found, weights.reshape(DP, -1, CHOSEN, 1)), 2)
        return (found * found).mean()


ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", device_num=DP, dataset_strategy=((DP, 1, 1),))
net = Experts()
ms.value_and_grad(net, 0, net.trainable_params())(Tensor(random.randn(1, 64, WIDTH)))
"""


@pytest.mark.parametrize("parts", [2, 8])
def test_it_sends_rooms_alone(parts: int, tmp_path: Path) -> None:
    script = tmp_path / "net.py"
    script.write_text(SCRIPT.format(parts=parts))
    graph = compiled_script(script, 8).graph
    rooms = [node for node in graph.nodes if isinstance(node.op, AlltoAll)]
    assert len(rooms) == 4
    assert {node.tensor_type.size for node in rooms} == {8 * 8 * 4 * 6}  # of all ranks
    verify_target(str(script), CompileOptions(), seed=1)
