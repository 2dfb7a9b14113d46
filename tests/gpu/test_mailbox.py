"""A rank's mailbox, whose peer is played: what it wrote is there before it is asked for."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from mspc.ops.collective.collectives import WORDS
from mspc.runtime.gpu.mailbox import Mailbox
from mspc.runtime.gpu.peers import Reached
from tests.gpu.emulated import EmulatedGpu
from tests.ops.cuda.cuda_emulator import NEEDED


@pytest.mark.skipif(NEEDED is None, reason="g++ is not installed")
def test_a_call_without_words_takes_no_turn(tmp_path: Path) -> None:
    """Nobody is heard in it, so that the peer may not have read what was sent in the call before."""
    device = EmulatedGpu(tmp_path)
    own, theirs = (device.zeros((2, 2, WORDS), "uint64") for _ in range(2))
    mailbox = Mailbox(device, own, Reached([[own.ctypes.data, theirs.ctypes.data]]), 0)

    def exchanged(numbers: list[int], heard: list[int]) -> list[int]:
        """The sums with what the peer wrote, whatever the number of the call is."""
        for side in range(2):
            mine = own[side, 1, : len(heard)]
            mine[...] = np.array(heard, np.uint64) | np.uint64(np.uint64(turn + (side - turn) % 2) << np.uint64(32))
        given, out = np.array(numbers, np.int32), np.zeros(len(numbers), np.int32)
        mailbox.exchange([given], [out], [len(numbers)], False, "sum", (0, 0))
        return out.tolist()

    turn = 1
    assert exchanged([1, 2, 3], [10, 20, 30]) == [11, 22, 33]
    sent: Any = theirs.copy()
    assert (sent[1, 0, :3] & np.uint64(0xFFFFFFFF)).tolist() == [1, 2, 3]
    turn = 2
    assert exchanged([], []) == []
    assert exchanged([4, 5, 6], [40, 50, 60]) == [44, 55, 66]
    assert theirs[1].tolist() == sent[1].tolist(), "what the peer may not have read stays"
    assert (theirs[0, 0, :3] & np.uint64(0xFFFFFFFF)).tolist() == [4, 5, 6]
