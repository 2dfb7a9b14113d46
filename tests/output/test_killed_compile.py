"""A compile that is ended while it writes its files leaves nothing for long."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from mspc.output.dumps import OutputFolder
from tests.printed_lines import lines_until


def _compiling(folder: Path) -> subprocess.Popen[str]:
    """A compile that waits in the middle of writing its files."""
    code = (
        "import time; from pathlib import Path; from mspc.output.dumps import OutputFolder\n"
        "with OutputFolder(Path('out')) as output:\n"
        "    output.write('rank_0/x_0000.ir', ''); print('writing', flush=True)\n"
        "    while True: time.sleep(0.1)"
    )
    job = subprocess.Popen([sys.executable, "-c", code], cwd=folder, stdout=subprocess.PIPE, text=True)
    assert lines_until(job, bool) == ["writing\n"]
    return job


def test_a_terminated_compile_takes_its_folder_away(tmp_path: Path) -> None:
    with _compiling(tmp_path) as job:
        assert list(tmp_path.iterdir())
        job.terminate()
    assert job.returncode == 128 + signal.SIGTERM
    assert list(tmp_path.iterdir()) == []


def test_the_next_compile_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    with _compiling(tmp_path) as job:
        job.kill()
    (left,) = tmp_path.iterdir()
    with _compiling(tmp_path) as running:
        assert not left.exists()
        (other,) = tmp_path.iterdir()
        with OutputFolder(tmp_path / "out"):
            assert other.exists()
        running.terminate()
    assert list(tmp_path.iterdir()) == []
