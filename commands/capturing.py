"""`mspc capture` runs a script of PyTorch in a process of its own and collects the files of its ranks."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from mspc.commands.captured import ranks_in
from mspc.commands.report.tables import print_line
from mspc.ir.diagnostics import MspcError, listed
from mspc.output.dumps import OutputFolder
from mspc.readers.pytorch.captured_kinds import read_kinds


def capture_script(
    script: Path, arguments: Sequence[str], ranks: int, out: Path, values: bool = False, every_rank: bool = False
) -> None:
    """Write the step of every rank to a folder: a file for one rank of each kind and the kinds of all, or a file for
    `every_rank`.

    Raises:
        MspcError: PyTorch or the script is missing, the script fails on a rank, or the folder holds other files.
    """
    if importlib.util.find_spec("torch") is None:
        raise MspcError("mspc capture needs PyTorch, which is not installed", notes=["pip install torch"])
    if not script.is_file():
        raise MspcError(f"there is no script {str(script)!r}", code="E0101")
    with OutputFolder(out) as folder:
        job = [sys.executable, "-P", "-m", "mspc.readers.pytorch.capture_job"]
        command = [*job, str(script), str(ranks), str(int(values)), str(int(values or every_rank)), *arguments]
        done = subprocess.run(command, env={**os.environ, "MSPC_CAPTURE": str(folder.room)})
        if done.returncode:
            raise MspcError(f"{script} cannot be captured on {ranks} rank{'s' * (ranks > 1)}: see above")
        assert ranks_in(folder.room) == ranks
        kinds = read_kinds(folder.room)
        folder.commit()
    print_line(f"captured {ranks} rank{'s' * (ranks > 1)} in {out}")
    for kind in kinds:
        print_line(f"  traced rank {kind.traced}, which is of one kind with {_shown(kind.ranks)}")


def _shown(ranks: Sequence[int]) -> str:
    """Return ascending ranks as `rank 3` or `ranks 0-3, 8-11`."""
    parts: list[list[int]] = []
    for rank in ranks:
        if parts and rank == parts[-1][-1] + 1:
            parts[-1][1:] = [rank]
        else:
            parts.append([rank])
    return f"rank{'s' * (len(ranks) > 1)} {listed(['-'.join(map(str, part)) for part in parts], 8)}"
