"""AlltoAllV: pieces of different sizes between ranks, and their gradients."""

from __future__ import annotations

from typing import Any

import pytest

from mspc.ir.diagnostics import MspcError
from mspc.ir.types import FLOAT32, TensorType
from mspc.ops.collective.collectives import AlltoAllV


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
