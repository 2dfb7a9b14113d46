"""Amount of output beside the requested results: `--verbose`, `--quiet` and the progress line."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from mspc.ir.diagnostics import MspcError, shown
from mspc.ir.graph import Graph
from mspc.ir.late_dataclass import dataclass
from mspc.passes.base import OnPass


@dataclass(frozen=True)
class Loudness:
    """The amount of output of a command.

    verbose: print every pass, whether it changed anything and how long it took, on stderr. quiet: only errors and
    results: no table, no warnings, no progress. part: for a compile in another command, which prints its own results.
    Raise MspcError if it is verbose and quiet.
    """

    verbose: bool = False
    quiet: bool = False
    part: bool = False

    def __post_init__(self) -> None:
        if self.verbose and self.quiet and not self.part:
            raise MspcError(
                "--verbose and --quiet exclude each other", notes=["leave one of the two out"], code="E0106"
            )

    def of_part(self) -> Loudness:
        """Return the loudness of a compile inside the command: it may report passes, and prints nothing else."""
        return Loudness(self.verbose, True, True)

    def on_pass(self) -> OnPass | None:
        """Return the function that reports every pass, or None."""
        return _Said() if self.verbose else None


NORMAL = Loudness()


class _Said:
    """Printer of a line for every pass. The time is that since the previous line."""

    def __init__(self) -> None:
        self._begin = time.perf_counter()

    def __call__(self, name: str, graph: Graph, changed: bool) -> None:
        taken = 1000 * (time.perf_counter() - self._begin)
        what = "changed" if changed else "left as it was"
        print(f"pass {name}: {what}, {len(graph.nodes)} operators, {taken:.1f} ms", file=sys.stderr, flush=True)
        self._begin = time.perf_counter()


INTERVAL = 0.05
"""Least seconds between two updates of a progress line, so that thousands of ranks cost no time."""


class ProgressLine:
    """A line that every text replaces and that is removed at the end. shown: if False, nothing is ever printed."""

    def __init__(self, shown: bool = True) -> None:
        self._terminal = shown and sys.stderr is not None and sys.stderr.isatty()
        self._last = 0.0
        self._width = 0

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._width:
            print("\r" + " " * self._width + "\r", end="", file=sys.stderr, flush=True)

    def show(self, text: str) -> None:
        now = time.monotonic()
        if not self._terminal or now - self._last < INTERVAL:
            return
        text = shown(text)
        print("\r" + text.ljust(self._width), end="", file=sys.stderr, flush=True)
        self._last, self._width = now, len(text)
