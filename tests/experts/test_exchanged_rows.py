"""Rows travel to ranks of their experts and to no others, each once each way, whatever the routing is."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc.commands.run import run_script
from mspc.runtime.comm.local import LocalComm

RANKS, EACH, WIDTH, EXPERTS, CHOSEN = 8, 6, 4, 8, 2
SCRIPT = """
import numpy as np
import mspc as ms
from mspc import Parameter, Tensor, nn, ops
from mspc.communication import get_rank, init

init()
ms.set_auto_parallel_context(parallel_mode="semi_auto_parallel", dataset_strategy="data_parallel")
drawn = np.random.RandomState(3)


class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        self.before = Parameter(Tensor(drawn.randn({width}, {width})), name="before")
        self.up = Parameter(Tensor(drawn.randn({experts}, {width}, 6)), name="up")
        self.down = Parameter(Tensor(drawn.randn({experts}, 6, {width})), name="down")
        self.first, self.second = (ops.auto_generate.GroupedMatmul(3, 0) for _ in range(2))
        for product in (self.first, self.second):
            product.shard((({outer}, 1), ({parts}, 1, 1), (1,)))

    def construct(self, x, experts, weights):
        rows, back = ops.moe_token_permute(ops.matmul(x, self.before), experts)
        taken = ops.one_hot(experts.reshape(-1), {experts}, Tensor(1.0, ms.float64), Tensor(0.0, ms.float64))
        ends = ops.cumsum(taken.sum(0), 0).astype(ms.int64)
        hidden = ops.silu(self.first([rows], [self.up], None, None, None, None, None, ends)[0])
        found = self.second([hidden], [self.down], None, None, None, None, None, ends)[0]
        return (ops.moe_token_unpermute(found, back, weights) ** 2).mean()


net = Net()
step = nn.TrainOneStepCell(net, nn.SGD(net.trainable_params(), 0.1))
experts = np.array({routing}, np.int32)
mine = slice(get_rank() * {each}, (get_rank() + 1) * {each})
x = drawn.randn(experts.shape[0], {width})
step(Tensor(x[mine]), Tensor(experts[mine]), Tensor(np.ones(experts.shape)[mine]))
"""
ROUTINGS = {
    "drawn": lambda r: r.integers(0, EXPERTS, (RANKS * EACH, CHOSEN)),
    "one expert for all": lambda r: np.full((RANKS * EACH, CHOSEN), 5),
    "near experts alone": lambda r: np.arange(RANKS).repeat(EACH)[:, None] + np.zeros((1, CHOSEN), int),
}


def script(tmp_path: Path, parts: int, routing: Any) -> Path:
    path = tmp_path / "net.py"
    path.write_text(SCRIPT.format(
        width=WIDTH, experts=EXPERTS, outer=RANKS // parts, parts=parts, each=EACH, routing=routing.tolist()
    ))  # fmt: skip
    return path


@pytest.mark.parametrize("name", ROUTINGS)
@pytest.mark.parametrize("parts", [2, 4, 8])
def test_what_travels(parts: int, name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    routing = ROUTINGS[name](np.random.default_rng(4))
    sent: list[tuple[int, int, int]] = []
    exchange = LocalComm.exchange

    def counted(self: LocalComm, sends: Sequence[tuple[int, Any]], receives: Any) -> Any:
        sent.extend((self.rank, to, len(array)) for to, array in sends if array.dtype.kind == "f" and to != self.rank)
        return exchange(self, sends, receives)

    monkeypatch.setattr(LocalComm, "exchange", counted)
    run_script(script(tmp_path, parts, routing), RANKS, simulate=True)
    wanted = 0
    for token, chosen in enumerate(routing):
        rank = token // EACH
        owners = [rank // parts * parts + expert // (EXPERTS // parts) for expert in chosen]
        wanted += sum(owner != rank for owner in owners)
    assert sum(rows for *_, rows in sent) == 4 * wanted  # there and back, and the same for gradients
    assert all(rank // parts == to // parts for rank, to, _ in sent)
