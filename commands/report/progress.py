"""One line on stderr says what is being done, on a terminal only."""

from __future__ import annotations

import sys
import time
from types import TracebackType

from mspc.ir.diagnostics import shown

INTERVAL = 0.05
"""Seconds between two texts, so that thousands of ranks do not cost time."""


class ProgressLine:
    """A line that every text replaces and that is gone at the end. shown: nothing is ever printed otherwise."""

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
