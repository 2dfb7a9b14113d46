"""Commands of mspc that cost tests no start of their own."""

from __future__ import annotations

import sys
from pathlib import Path

FOLDER = Path(__file__).resolve().parent
SERVED = [sys.executable, "-S", "-E", str(FOLDER / "client.py")]
"""Stands for `python -m mspc` in tests; see `server.py`. It may start ranks under mpirun, or be started by it. Tests
about processes themselves (signals, faults, hash seeds, the time of a start) start them really."""
