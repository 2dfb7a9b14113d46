"""This is a bar on a terminal that says how far a run is."""

from __future__ import annotations

import contextlib
import shutil
import sys
import time
from collections.abc import Generator

from mspc.api import state
from mspc.ir.diagnostics import is_notebook

__all__: tuple[str, ...] = ()

INTERVAL = 0.1
"""Seconds between two pictures, so that short steps do not wait for the terminal."""
WIDTH = 30
"""Characters of the bar itself, where the terminal is wide enough."""


class ProgressBar:
    """The last line of a terminal while a run continues: `epoch 2/10 [=====>    ] 45/156  12.3 steps/s, 9 s left`.

    Nothing is written where stderr is no terminal and no notebook shows it, or where several ranks write. It is gone
    before a callback writes.
    """

    def __init__(self) -> None:
        terminal = getattr(sys.stderr, "isatty", None)
        is_drawn = (terminal is not None and bool(terminal())) or is_notebook()
        self._shown = state.current().size == 1 and is_drawn
        self._last = 0.0
        self._picture = ""
        self._start = 0.0
        self._label = ""
        self._steps = 0

    def begin(self, label: str, steps: int) -> None:
        """A pass of so many steps begins."""
        self._label, self._steps, self._start = label, steps, time.monotonic()

    def show(self, step: int) -> None:
        """So many steps are done."""
        now = time.monotonic()
        if not self._shown or now - self._last < INTERVAL:
            return
        self._picture = self._text(step, now - self._start, _room())
        self._last = now
        self._draw(self._picture)

    @contextlib.contextmanager
    def away(self) -> Generator[None]:
        """A context in which others may write."""
        if not self._picture:
            yield
            return
        self._draw("")
        yield
        self._draw(self._picture)

    def end(self) -> None:
        """Take the bar away."""
        if self._picture:
            self._draw("")
            self._picture, self._last = "", 0.0

    def _draw(self, text: str) -> None:
        sys.stderr.write("\r" + text.ljust(_room()) + ("" if text else "\r"))
        sys.stderr.flush()

    def _text(self, step: int, spent: float, room: int) -> str:
        rate = step / spent if spent > 0 else 0.0
        left = f", {(self._steps - step) / rate:.0f} s left" if rate and step < self._steps else ""
        counted = f"{step}/{self._steps}  {rate:.1f} steps/s{left}"
        width = min(WIDTH, room - len(self._label) - len(counted) - 4)
        if width < 5:
            return f"{self._label} {counted}"[:room]
        done = min(width, width * step // max(1, self._steps))
        bar = ("=" * done + ">")[:width].ljust(width)
        return f"{self._label} [{bar}] {counted}"


def _room() -> int:
    """Characters that a line of the terminal holds."""
    return shutil.get_terminal_size().columns - 1
