"""Check of this machine's memory against the inputs and parameters of a rank's graph: a file may ask for any shape."""

from __future__ import annotations

import os
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Graph
from mspc.ir.types import TensorType
from mspc.runtime.data import full_type


def check_memory(graph: Graph, file: str) -> None:
    """Compare the bytes of inputs, which are read in full, and of the rank's parameters with the machine's memory.
    Raise MspcError with the largest if they do not fit."""
    sizes: dict[str, int] = {}
    for parameter in graph.parameters:
        type = full_type(parameter) if parameter.kind == "input" else parameter.type
        sizes[f"{parameter.kind} {parameter.name!r}"] = type.nbytes if isinstance(type, TensorType) else 0
    total, memory = sum(sizes.values()), os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if total > memory:
        largest = max(sizes, key=lambda name: sizes[name])
        raise MspcError(
            f"{file}: inputs and parameters take {_gib(total)} GiB, {largest} alone {_gib(sizes[largest])}; "
            f"this machine has {_gib(memory)} GiB"
        )


CONTROL_GROUP = Path("/sys/fs/cgroup")
"""Directory in which Linux shows the limits of a container's processes."""


def available_bytes() -> int:
    """Return the memory available to this process: the free memory of the machine, or less if its container has a
    limit."""
    found = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    with suppress(OSError, ValueError, StopIteration):
        lines = Path("/proc/meminfo").read_text().splitlines()
        found.append(1024 * next(int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")))
    with suppress(OSError, ValueError):  # "max" if there is no limit
        limit = int((CONTROL_GROUP / "memory.max").read_text())
        found.append(limit - int((CONTROL_GROUP / "memory.current").read_text()))
    return max(0, min(found))


REMEDY = "use more ranks, a smaller batch, or shard larger tensors over the ranks"


@contextmanager
def explain_memory_errors(what: str) -> Generator[None]:
    """Return a context that converts a MemoryError to an MspcError. what: the arrays that are made."""
    try:
        yield
    except MemoryError as error:
        raise MspcError(f"there is no memory for {what}: {error}", code="E0803") from None


def _gib(nbytes: int) -> str:
    return f"{nbytes / 2**30:.1f}" if nbytes < 2**80 else "more than 10^15"
