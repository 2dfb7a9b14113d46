"""Finds the processes that one launcher has started on this host, before they say themselves which ranks they are."""

from __future__ import annotations

import os
import re

_RANK = re.compile(rb"(?:^|\0)(?:OMPI_COMM_WORLD_RANK|SLURM_PROCID)=(\d+)(?=\0|$)")


def ranks_of_this_launcher() -> dict[int, int]:
    """The process of every rank that was started by what has started this one, by rank; read from /proc, so {} where
    there is none."""
    launcher = os.getppid()
    found: dict[int, int] = {}
    try:
        processes = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:
        return found
    for process in processes:
        try:
            with open(f"/proc/{process}/stat", "rb") as file:
                parent = int(file.read().rpartition(b")")[2].split()[1])
            if parent != launcher:
                continue
            with open(f"/proc/{process}/environ", "rb") as file:
                rank = _RANK.search(file.read())
        except (OSError, ValueError, IndexError):
            continue
        if rank:
            found[int(rank[1])] = process
    return found
