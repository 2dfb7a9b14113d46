"""The sample of checkpoints under `mspc launch --max-restarts`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.conftest import HANG
from tests.serving import SERVED

MSPC = [sys.executable, "-m", "mspc"]


def test_a_run_whose_rank_is_killed_ends_as_an_undisturbed_one(
    samples: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = (samples / "checkpoints/train.py").read_text()
    behind = "        if run_context.original_args().cur_step_num >= asked.steps:\n"
    assert behind in text
    killed = (
        "        if os.environ.get('MSPC_RESTARTS') == '0' and run_context.original_args().cur_step_num == 11:\n"
        "            if os.environ['RANK_ID'] == '1':\n"
        "                os.kill(os.getpid(), 9)\n"
    )
    Path("train.py").write_text("import os\n" + text.replace(behind, killed + behind))
    options = ["train.py", "--tensor", "2", "--steps", "16"]
    done = subprocess.run(
        [*MSPC, "launch", "--worker_num", "2", "--join", "True", "--max-restarts", "1", "--tail_worker_log", "0",
         *options, "--directory", "kept"],
        capture_output=True, text=True, check=False, timeout=HANG,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "error: rank 1 ended the job with status " in done.stderr
    assert "note: restart 1 of 1" in done.stderr
    lines = done.stdout.splitlines()
    resumed = [number for number, line in enumerate(lines) if line.startswith("resumes after epoch 2 step ")]
    assert len(resumed) == 1
    undisturbed = subprocess.run(
        [*SERVED, "run", "train.py", "--ranks", "2", "--simulate", "--only-rank", "0", "--", *options[1:],
         "--directory", "others"],
        capture_output=True, text=True, check=True, timeout=HANG,
    )  # fmt: skip
    expected = [line for line in undisturbed.stdout.splitlines() if line.startswith("epoch")]
    assert len(expected) == 16
    assert lines[resumed[0] + 1 :] == expected[resumed[0] + 1 - len(lines) :]
