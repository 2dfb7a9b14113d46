"""The sample of checkpoints: a run that resumes on other ranks ends where one ends that nobody has ended."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

from tests.conftest import HANG


def test_going_on_with_other_ranks(root: Path, tmp_path: Path, commands: dict[str, str]) -> None:
    shutil.copytree(root / "samples/checkpoints", tmp_path / "sample", ignore=shutil.ignore_patterns("CKP*"))
    done = subprocess.run(
        ["sh", "run.sh", "--simulate"], cwd=tmp_path / "sample", env=commands, capture_output=True, text=True,
        check=False, timeout=HANG,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "resumes after epoch 2 step 3: checkpoints/CKP-2_3" in done.stdout
    assert "10 tensors, apart by " in done.stdout
