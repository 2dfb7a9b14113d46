"""Launches that ask the host while they run."""

from __future__ import annotations

from mspc.ops.device import Launch


class HostQuery:
    """A launch that asks the host while it runs.

    run: waits for what the host has to know. decided: where it is captured with others it does not, as the GPU decides
    then; else it is no part of what is captured.
    """

    def __init__(self, run: Launch, decided: bool = False) -> None:
        self._run = run
        self.decided = decided

    def __call__(self) -> None:
        self._run()


def like(launch: Launch, run: Launch) -> Launch:
    """What runs a launch among other things, and asks the host as that does."""
    return HostQuery(run, launch.decided) if isinstance(launch, HostQuery) else run
