"""NeighborExchangeV2: borders of four ranks in a square, what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc import Tensor, ops
from mspc.commands.run import run_script
from mspc.ir.diagnostics import MspcError
from mspc.ir.types import FLOAT32, TensorType
from mspc.ops.collective.exchange import NeighborExchangeV2

SQUARE = """
import numpy as np
import mindspore as ms
from mindspore import Tensor, nn, ops
from mindspore.communication import init, get_rank
from mindspore.ops import operations as P

init()
rank = get_rank()
row, column = divmod(rank, 2)
whole = np.arange(2 * 3 * 8 * 6, dtype=np.float32).reshape(2, 3, 8, 6)
mine = whole[:, :, 4 * row : 4 * row + 4, 3 * column : 3 * column + 3]

def at(down, right):
    inside = 0 <= row + down < 2 and 0 <= column + right < 2
    return 2 * (row + down) + column + right if inside else -1

ids = [at(*p) for p in ((-1, 0), (-1, 1), (0, 1), (1, 1), (1, 0), (1, -1), (0, -1), (-1, -1))]

class Net(nn.Cell):
    def __init__(self):
        super().__init__()
        # One row goes up and two down, two columns to the left and one to the right.
        self.exchange = P.NeighborExchangeV2(ids, [1, 2, 2, 1], ids, [2, 1, 1, 2], "NCHW")
    def construct(self, x):
        return self.exchange(x)

net = Net()
out = net(Tensor(mine)).asnumpy()
top, bottom = max(0, 4 * row - 2), min(8, 4 * row + 5)
left, right = max(0, 3 * column - 1), min(6, 3 * column + 5)
np.testing.assert_array_equal(out, whole[:, :, top:bottom, left:right])
weights = Tensor(np.ones(out.shape, np.float32))
gradient = ms.grad(lambda x: (net(x) * weights).sum())(Tensor(mine)).asnumpy()
# A place counts once for its own rank and once for every rank that has it as a border.
counts = np.zeros((8, 6), np.float32)
for r in range(2):
    for c in range(2):
        counts[max(0, 4 * r - 2) : min(8, 4 * r + 5), max(0, 3 * c - 1) : min(6, 3 * c + 5)] += 1
np.testing.assert_array_equal(gradient[1, 2], counts[4 * row : 4 * row + 4, 3 * column : 3 * column + 3])
print("rank", rank, "is right")
"""


def test_borders_of_four_ranks_in_a_square(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    script = tmp_path / "square.py"
    script.write_text(SQUARE)
    run_script(script, 4, simulate=True)
    assert sorted(capsys.readouterr().out.split("\n"))[1:] == [f"rank {rank} is right" for rank in range(4)]


NOBODY = (-1,) * 8
BELOW = (-1, -1, -1, -1, 1, -1, -1, -1)
GIVEN: dict[str, Any] = {
    "send_rank_ids": BELOW, "send_lens": (0, 1, 0, 0), "recv_rank_ids": BELOW, "recv_lens": (0, 2, 0, 0),
    "rank_list": (0, 1),
}  # fmt: skip
X = TensorType(FLOAT32, (1, 1, 32, 16))


def test_a_side_from_which_nothing_comes_stays_as_it_is() -> None:
    assert NeighborExchangeV2(**GIVEN).infer(X) == TensorType(FLOAT32, (1, 1, 34, 16))
    alone = GIVEN | {"recv_rank_ids": NOBODY, "recv_lens": (1, 2, 3, 4)}
    assert NeighborExchangeV2(**alone).infer(X) == X


@pytest.mark.parametrize(
    ("fields", "kind", "message"),
    [
        ({"data_format": "NHWC"}, ValueError, "data_format is 'NHWC'; it must be 'NCHW'"),
        ({"send_rank_ids": BELOW[:5]}, ValueError, "send_rank_ids must be 8 numbers from -1, not (-1, -1, -1, -1, 1)"),
        ({"send_lens": (0, 1, 0, 0, 2)}, ValueError, "send_lens must be 4 numbers from 0, not (0, 1, 0, 0, 2)"),
        ({"recv_lens": (0, -3, 0, 0)}, ValueError, "recv_lens must be 4 numbers from 0, not (0, -3, 0, 0)"),
        ({"recv_rank_ids": (-1, -1, -1, 0, 1, -1, -1, -1)}, ValueError,
         "recv_rank_ids (-1, -1, -1, 0, 1, -1, -1, -1) has a corner without both its sides"),
        ({"send_rank_ids": (1, -1, -1, -1, 1, -1, -1, -1)}, ValueError,
         "send_rank_ids (1, -1, -1, -1, 1, -1, -1, -1) must be different ranks of the group"),
        ({"recv_rank_ids": (8, -1, -1, -1, 1, -1, -1, -1)}, ValueError,
         "recv_rank_ids (8, -1, -1, -1, 1, -1, -1, -1) must be different ranks of the group"),
        ({"send_lens": (0, 35, 0, 0)}, None, "send_lens (0, 35, 0, 0) is more than the tensor (1, 1, 32, 16) has"),
        ({"send_lens": (0, 1.0, 0, 0)}, TypeError, "send_lens must be a list of integers, not (0, 1.0, 0, 0)"),
        ({"group": ("x",)}, TypeError, "group must be the name of a group, not ('x',)"),
    ],
)  # fmt: skip
def test_what_is_refused(fields: dict[str, Any], kind: type[Exception] | None, message: str) -> None:
    with pytest.raises(MspcError) as refused:
        NeighborExchangeV2(**(GIVEN | fields)).infer(X)
    assert refused.value.message == f"NeighborExchangeV2: {message}"
    assert refused.value.kind is kind


def test_it_takes_one_tensor_of_four_dimensions() -> None:
    with pytest.raises(MspcError, match="takes one tensor of 4 dimensions"):
        NeighborExchangeV2(**GIVEN).infer(TensorType(FLOAT32, (32, 16)))


def test_what_a_user_gives_is_checked_where_it_is_called() -> None:
    exchange = ops.NeighborExchangeV2([1], [0], [1], [0])
    with pytest.raises(ValueError, match="send_rank_ids must be 8 numbers from -1"):
        exchange(Tensor(np.ones((1, 1, 4, 4), np.float32)))
