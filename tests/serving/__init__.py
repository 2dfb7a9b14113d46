"""Commands that tests run: those of mspc cost no start of their own."""

import subprocess
import sys
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).resolve().parent
SERVED = [sys.executable, "-S", "-E", str(FOLDER / "client.py")]
"""Stands for `python -m mspc` in tests; see `server.py`. It may start ranks under mpirun, or be started by it. Tests
about processes themselves (signals, faults, hash seeds, the time of a start) start them really."""
HANG = 600.0
"""Seconds after which a subprocess of a test counts as hung: ten times and more what any takes on a slow machine with
other work. Tests measure no speed; benchmarks do."""


def run_process(*command: object, status: int | None = None, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command and return its status and output, as text. status: of its end, if that is known."""
    words = list(map(str, command))
    done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=HANG, **options)
    assert status in (None, done.returncode), done.stdout + done.stderr
    return done


def succeed(*command: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command that must end with status 0."""
    return run_process(*command, status=0, **options)


def invoke(*words: object, status: int | None = None) -> Any:
    """Call the command line of mspc in this process. status: of its end, if that is known."""
    from typer.testing import CliRunner

    from mspc.cli import app

    done = CliRunner().invoke(app, list(map(str, words)))
    assert status in (None, done.exit_code), done.output
    return done


def serve(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run a command of mspc and return its status and output."""
    return run_process(*SERVED, *arguments, **options)
