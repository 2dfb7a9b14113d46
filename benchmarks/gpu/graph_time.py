"""The time of launches on a GPU without the host's: in a CUDA graph of many."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any


def microseconds(device: Any, launches: Sequence[Callable[[], None]], repeats: int = 20) -> float:
    """Return the time of all launches together, in a CUDA graph of many."""
    with device.stream("compute"):
        for launch in launches:
            launch()

        def many() -> None:
            for _ in range(repeats):
                for launch in launches:
                    launch()

        replay = device.capture(many)
        replay()
        begun = device.signal(timed=True)
        replay()
        ended = device.signal(timed=True)
    device.synchronize()
    return device.milliseconds(begun, ended) / repeats * 1000
