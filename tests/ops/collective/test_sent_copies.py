"""Messages that a GPU sends by hand leave beside the step: what comes behind does not change what is on its way."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from mspc.ops.collective.point_to_point import Send
from tests.runtime.gpu.fake_gpu import FakeDevice, fake, fake_move


class Late(FakeDevice):
    """A device on which nothing that is begun aside is over before it has to be. made: arrays."""

    def __init__(self, comm: Any) -> None:
        super().__init__(comm)
        self._begun: list[Callable[[], None]] = []
        self.made = 0

    def empty(self, shape: tuple[int, ...], dtype: Any) -> Any:
        self.made += 1
        return super().empty(shape, dtype)

    def on_side_stream(self, name: str, launch: Any) -> None:
        self._begun.append(launch)

    def rejoin(self) -> None:
        for launch in self._begun:
            launch()
        self._begun.clear()
        self.rejoined += 1


def test_a_loop_sends_on_before_its_messages_have_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("mspc.ops.collective.gpu_launch.move", fake_move)
    sent: list[list[float]] = []
    device = Late(SimpleNamespace(send=lambda array, rank, tag: sent.append(array.tolist())))
    x, out = fake(np.zeros(2)), fake(np.zeros(2))
    launch = Send(sr_tag=4, dest_rank=1).launch(device, out, x)  # type: ignore[arg-type]  # for moves alone
    assert launch is not None
    for step in range(3):
        for turn in range(4):
            x[...] = 10 * step + turn
            launch()
            assert out.tolist() == x.tolist()
        device.rejoin()
    assert sent == [[10.0 * step + turn] * 2 for step in range(3) for turn in range(4)]
    assert device.made == 4, "memory is used again at the next step"
