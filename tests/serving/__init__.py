"""Commands of mspc that cost tests no start of their own."""

from __future__ import annotations

import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
SERVED = [sys.executable, "-S", "-E", str(FOLDER / "client.py")]
"""Stands for `python -m mspc` in tests of one process that start nothing on several ranks; see `server.py`. What is
about processes themselves (mpirun, signals, hash seeds, the time of a start) starts them really."""
