"""A rank announces what it is about to do together with others, for the message if they never come."""

from __future__ import annotations

import os

from mspc.ir.diagnostics import ExecutionError
from mspc.ir.printable import shown


def missed(rank: int, said: str, other: int, where: str) -> ExecutionError:
    """The error of a rank that waits for one that is elsewhere. said: what that rank does and where, then a note a
    line."""
    what, *notes = said.split("\n")
    return ExecutionError(f"rank {rank} {what}, but rank {other} {where}", notes=notes)


def first_line(said: str) -> str:
    return said.partition("\n")[0]


def tell(text: str) -> None:
    """Print to stderr at once, whatever state the process is in."""
    data = (shown(text.rstrip("\n"), lines=True) + "\n").encode(errors="replace")
    try:
        os.write(2, data)
    except OSError:
        pass
