"""Launches of which those between questions to the host become CUDA graphs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mspc.ops.device import Launch
from mspc.runtime.gpu.launches import OnHost

FEWEST = 3
"""Launches from which on one CUDA graph takes less time than they do."""


class Replayed:
    """Launches in order, of which nothing asks the host: the first run makes them one by one, which loads and prepares
    everything, the second one captures them, and the others replay that. loaded: they have run before."""

    def __init__(self, device: Any, launches: Sequence[Launch], loaded: bool = False) -> None:
        self._device, self._launches = device, launches
        self._loaded = loaded
        self._replay: Launch | None = None

    def __call__(self) -> None:
        if self._replay is None and self._loaded and len(self._launches) >= FEWEST:
            self._replay = self._device.capture(self._each)
        if self._replay is not None:
            self._replay()
            return
        self._each()
        self._loaded = True

    def _each(self) -> None:
        for launch in self._launches:
            launch()
        self._device.rejoin()


def in_parts(device: Any, launches: Sequence[Launch], loaded: bool = False) -> list[Launch]:
    """The launches, those together that stand between others that ask the host."""
    found: list[Launch] = []
    between: list[Launch] = []
    for launch in launches:
        if isinstance(launch, OnHost):
            found += [Replayed(device, between, loaded)] if between else []
            found.append(launch)
            between = []
        else:
            between.append(launch)
    return found + ([Replayed(device, between, loaded)] if between else [])


def one_launch(device: Any, launches: Sequence[Launch]) -> Launch:
    """One launch of them all, to be captured with others where none of them asks the host."""
    if not any(isinstance(launch, OnHost) for launch in launches):
        return lambda: _run(launches)
    parts = in_parts(device, launches)
    return OnHost(lambda: _run(parts))


def _run(launches: Sequence[Launch]) -> None:
    for launch in launches:
        launch()
