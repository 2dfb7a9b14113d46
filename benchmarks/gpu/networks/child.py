"""A program of a comparison as a process of its own, which works only while it is asked to."""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
LINES = 12
"""The number of last lines of an error that are recorded."""


class Failed(Exception):
    """A program ended, or did not answer in time; its message says what it printed last."""


def launcher(peer: str, ranks: int) -> list[str]:
    """The command that starts a program on so many ranks, without the program's module; JAX has one process for all."""
    python = [sys.executable, "-m"]
    if ranks == 1 or peer == "jax":
        return python
    if peer == "mspc":
        from mspc.engine.ranks.launcher import find_mpirun

        return [find_mpirun(), "-n", str(ranks), "--bind-to", "none", "--allow-run-as-root", "--oversubscribe", *python]
    return [*python, "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), "-m"]


class Child:
    """A started program on `ranks` ranks. `limit` are the seconds within which every answer must come."""

    def __init__(self, arguments: list[str], environment: dict[str, str], limit: float, ranks: int) -> None:
        self.limit = limit
        self.errors = tempfile.TemporaryFile()
        self.started = time.perf_counter()
        self.process = subprocess.Popen(
            [*launcher(arguments[1], ranks), "benchmarks.gpu.networks.program", *arguments], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=self.errors, cwd=ROOT, env={**os.environ, **environment},
        )  # fmt: skip
        assert self.process.stdout is not None
        self.selector = selectors.DefaultSelector()
        self.selector.register(self.process.stdout, selectors.EVENT_READ)

    def ask(self, line: str) -> dict[str, Any]:
        """Return the program's answer to a line. Raises Failed."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(f"{line}\n".encode())
            self.process.stdin.flush()
        except BrokenPipeError:
            pass  # what it printed says why
        if not self.selector.select(self.limit):
            raise Failed(f"no answer within {self.limit:.0f} s")
        answer = self.process.stdout.readline()
        if not answer:
            status = self.process.wait()
            raise Failed(self.said() or f"ended with status {status}")
        return json.loads(answer)

    def said(self) -> str:
        """The last lines of what it printed as errors."""
        self.errors.seek(0)
        lines = self.errors.read().decode(errors="replace").strip().splitlines()
        return "\n".join(lines[-LINES:])

    def close(self) -> None:
        """End the program, whatever it does."""
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.errors, self.selector):
            try:
                stream.close()  # type: ignore[union-attr]  # pipes were asked for
            except BrokenPipeError:
                pass  # a line that nobody reads any more
