"""`mspc capture` runs a script of PyTorch in a process of its own and collects the files of its ranks."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from tempfile import TemporaryDirectory

from mspc.commands.captured import RANK_FILE, ranks_in
from mspc.commands.report.tables import print_line
from mspc.ir.diagnostics import MspcError


def capture_script(script: Path, arguments: Sequence[str], ranks: int, out: Path, values: bool) -> None:
    """Write the step of every rank to a folder.

    Raises:
        MspcError: PyTorch or the script is missing, the script fails on a rank, or the folder holds other files.
    """
    if importlib.util.find_spec("torch") is None:
        raise MspcError("mspc capture needs PyTorch, which is not installed", notes=["pip install torch"])
    if not script.is_file():
        raise MspcError(f"there is no script {str(script)!r}", code="E0101")
    if out.exists() and not all(RANK_FILE.fullmatch(each.name) for each in out.iterdir()):
        raise MspcError(f"{out} holds files that mspc capture did not write", notes=["name another folder with --out"],
                        code="E0108")  # fmt: skip
    with TemporaryDirectory(prefix="mspc-", dir=out.absolute().parent) as place:
        job = [sys.executable, "-P", "-m", "mspc.readers.pytorch.capture_job"]
        command = [*job, str(script), str(ranks), str(int(values)), *arguments]
        done = subprocess.run(command, env={**os.environ, "MSPC_CAPTURE": place})
        if done.returncode:
            raise MspcError(f"{script} cannot be captured on {ranks} rank{'s' * (ranks > 1)}: see above")
        assert ranks_in(Path(place)) == ranks
        shutil.rmtree(out, ignore_errors=True)
        shutil.copytree(place, out)
    print_line(f"captured {ranks} rank{'s' * (ranks > 1)} in {out}")
