"""This module is for ranks whose mpirun has ended before them: nobody else would remove the files that Open MPI has
made for the job.
"""

from __future__ import annotations

import os
import re
import shutil

_SESSION = re.compile(r"(ompi|prte)\.\S+")
_SEGMENT = re.compile(r"(?:^|/)sm_segment\.\S+$")
DAEMONS = ("prted", "orted")
"""Programs of mpirun that run ranks on hosts other than its own."""
LAST_WORDS = re.compile(rb"rank (\d+) ends (.*): (?:mpirun|prted|orted)\b")
"""Finds what `orphaned` says in what a rank has printed: the rank, and where it was."""
MAPS = "/proc/self/maps"


def name_of(pid: int) -> str:
    """What the program of a process is called; "" where that is not known."""
    try:
        with open(f"/proc/{pid}/comm", encoding="utf-8", errors="replace") as file:
            return file.read().strip()
    except OSError:
        return ""


def orphaned(parent: str, rank: int, place: str) -> str:
    """The message about a rank whose parent, a program of this name, has ended: mpirun, or its part on another host.
    Why it has, a rank cannot know."""
    if parent in DAEMONS:
        return f"rank {rank} ends {place}: {parent}, mpirun's part on this host, was killed or has lost mpirun's host"
    return f"rank {rank} ends {place}: mpirun was killed or has lost a host"


def remove_files_of_job(session: str) -> None:
    """Remove the session folder of this rank's mpirun, and the shared memory that this rank has mapped with others.

    All ranks do this at once; what is gone already is no mistake.
    """
    if _SESSION.fullmatch(os.path.basename(session)):
        shutil.rmtree(session, ignore_errors=True)
    for path in shared_segments():
        try:
            os.unlink(path)
        except OSError:
            continue


def shared_segments(maps: str = MAPS) -> list[str]:
    """The files through which this process shares memory with ranks of this host, in Open MPI's names."""
    try:
        with open(maps, encoding="utf-8", errors="replace") as file:
            mapped = {line.split(maxsplit=5)[5].rstrip("\n") for line in file if line.count("/")}
    except (OSError, IndexError):
        return []
    return sorted(path for path in mapped if _SEGMENT.search(path))
