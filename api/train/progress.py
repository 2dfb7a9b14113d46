"""A bar on a terminal that says how far a run is."""

from __future__ import annotations

import shutil
import sys
import time

from mspc.api import state

__all__: tuple[str, ...] = ()

INTERVAL = 0.1
"""Seconds between two pictures, so that short steps do not wait for the terminal."""
WIDTH = 30
"""Characters of the bar itself, where the terminal is wide enough."""


class ProgressBar:
    """The last line of a terminal while a run goes on: `epoch 2/10 [=====>    ] 45/156  12.3 steps/s, 9 s left`.

    Nothing is written where stderr is no terminal, or where several ranks write. It is gone before a callback writes.
    """

    def __init__(self) -> None:
        terminal = getattr(sys.stderr, "isatty", None)
        self._shown = state.current().size == 1 and terminal is not None and bool(terminal())
        self._last = 0.0
        self._visible = False
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
        room = shutil.get_terminal_size().columns - 1
        sys.stderr.write("\r" + self._text(step, now - self._start, room).ljust(room))
        sys.stderr.flush()
        self._last, self._visible = now, True

    def hide(self) -> None:
        """Take the bar away, until it is shown again."""
        if self._visible:
            sys.stderr.write("\r" + " " * (shutil.get_terminal_size().columns - 1) + "\r")
            sys.stderr.flush()
            self._visible, self._last = False, 0.0

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
