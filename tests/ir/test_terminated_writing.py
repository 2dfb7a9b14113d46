"""A process that is terminated while it writes a file leaves nothing beside the file's place."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from mspc.ir.files.atomic_writing import UNFINISHED
from tests.printed_lines import lines_until

SLOWLY = """
import time
from pathlib import Path
from mspc.checkpoint.files import atomic_publication, write_synced
from mspc.checkpoint.sliced import in_threads
from mspc.ir.files.atomic_writing import write_atomically

def slowly(file):
    file.write(b"half"); file.flush(); print("writing", flush=True)
    while True: time.sleep(0.05)
"""
WAYS = {
    "a file": "write_atomically(Path('x'), slowly)",
    "a file of a checkpoint": "write_synced(Path('x'), slowly)",
    "files that get their names together": """
with atomic_publication(Path(".")) as beside:
    (beside / "rank_0").mkdir()
    write_synced(beside / "rank_0" / "x", slowly)
""",
    "a file in a thread": "in_threads([lambda: write_synced(Path('x'), slowly)], 2, print)",
}


@pytest.mark.parametrize("way", WAYS)
def test_what_is_not_finished_is_removed(tmp_path: Path, way: str) -> None:
    (tmp_path / "x").write_text("earlier")
    command = [sys.executable, "-c", SLOWLY + WAYS[way]]
    job = subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True)
    with job:
        assert lines_until(job, bool) == ["writing\n"]
        assert any(UNFINISHED.fullmatch(path.name) for path in tmp_path.iterdir())
        job.terminate()
    assert job.returncode == -signal.SIGTERM
    assert [path.name for path in tmp_path.iterdir()] == ["x"]
    assert (tmp_path / "x").read_text() == "earlier"
