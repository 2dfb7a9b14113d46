"""What a rank does whose mpirun was killed: nobody else would remove the files that Open MPI has made for the job."""

from __future__ import annotations

import os
import re
import shutil

_SESSION = re.compile(r"(ompi|prte)\.\S+")
_SEGMENT = re.compile(r"(?:^|/)sm_segment\.\S+$")
MAPS = "/proc/self/maps"


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
