"""Launches of which those between questions to the host become CUDA graphs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from functools import partial
from typing import Any

from mspc.ops.device import Launch
from mspc.runtime.gpu.launches import Several, asks, run_each
from mspc.runtime.gpu.on_host import HostQuery

FEWEST = 3
"""Launches from which on one CUDA graph takes less time than they do."""


class Replayed:
    """Launches in order, of which nothing asks the host where it is captured: the first run makes them one by one,
    which loads and prepares everything, the second one captures them, and the others replay that. Where they cannot be
    captured, the host decides what the GPU does not, and those in between are captured; where there is nothing to
    decide, they are always made one by one. loaded: they have run before."""

    def __init__(self, device: Any, launches: Sequence[Launch], loaded: bool = False) -> None:
        self._device, self._launches = device, launches
        self._loaded = loaded
        self._replay: Launch | None = None
        self._decides = any(isinstance(launch, HostQuery) for launch in launches)
        self._eager = len(launches) < FEWEST and not self._decides

    def __call__(self) -> None:
        if self._replay is None and self._loaded and not self._eager:
            self._capture()
        if self._replay is not None:
            self._replay()
            return
        self._each()
        self._loaded = True

    def _capture(self) -> None:
        try:
            self._replay = self._device.capture(self._each)
        except Exception as error:
            if self._decides:
                parts = in_parts(self._device, self._launches, loaded=True, by_host=True)
                self._replay = partial(run_each, parts)
                return
            self._eager = True
            node = getattr(error, "node", None)
            what = "a part of a step" if node is None else node.label
            warn_uncaptured(self._device, "makes launches one by one", what, error)

    def _each(self) -> None:
        run_each(self._launches)
        self._device.rejoin()


def warn_uncaptured(device: Any, does: str, what: str, error: Exception) -> None:
    """Say that something is no CUDA graph, and what the rank does instead."""
    told = f"{what} cannot be captured ({type(error).__name__}: {error})"
    print(f"warning: rank {device.comm.rank} {does}: {told}", file=sys.stderr, flush=True)


def in_parts(
    device: Any, launches: Sequence[Launch], loaded: bool = False, by_host: bool = False
) -> list[Launch]:  # fmt: skip
    """The launches, those together that stand between others that ask the host. by_host: it decides what the GPU could
    decide, too."""
    found: list[Launch] = []
    between: list[Launch] = []
    for launch in launches:
        if asks(launch) or (by_host and isinstance(launch, HostQuery)):
            found += [Replayed(device, between, loaded)] if between else []
            found.append(launch)
            between = []
        else:
            between.append(launch)
    return found + ([Replayed(device, between, loaded)] if between else [])


def one_launch(device: Any, launches: Sequence[Launch]) -> Launch:
    """One launch of them all, to be captured with others where none of them asks the host then."""
    together = Several(launches)
    if not any(isinstance(launch, HostQuery) for launch in launches):
        return together
    parts = in_parts(device, launches)
    if any(map(asks, launches)):
        return HostQuery(partial(run_each, parts))
    return HostQuery(lambda: together() if device.capturing else run_each(parts), decided=True)
