"""Under mpirun a rank that raises, exits or dies ends the job within 3 seconds, with one message about
the network."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from mspc.engine.ranks.launcher import find_mpirun, mpirun_environment
from mspc.runtime.faults.call_log import VARIABLE
from mspc.runtime.faults.culprits import explain
from mspc.runtime.faults.formats.reading import read_records
from tests.conftest import HANG, LOADED
from tests.printed_lines import lines_until
from tests.shares import is_taken

LIMIT = 3.0 * LOADED
AT_NODE = "in step 3, at TotalOfRanks 'reduce'"


def start(how: str, ranks: int = 3, records: Path | None = None) -> subprocess.Popen[str]:
    script = Path(__file__).with_name("faulty_job.py")
    command = [
        find_mpirun(),
        "-n",
        str(ranks),
        "--oversubscribe",
        "--bind-to",
        "none",
        sys.executable,
        str(script),
        how,
    ]
    environment = {**mpirun_environment(), "PYTHONPATH": str(Path(__file__).parents[3])}
    if records is not None:
        environment[VARIABLE] = str(records)
    return subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, process_group=0
    )


FAULTS = {
    "raise": f"rank 1 failed {AT_NODE}",
    "exit 0": "rank 1 has ended while rank 0 waits for it: in step 4, at TotalOfRanks 'reduce'",
    "alone": "rank 0 waits for rank 1, which waits elsewhere: in step 4, at TotalOfRanks 'reduce'",
    "kill": f"rank 1 was killed or left without a word {AT_NODE}",
}
MORE = {"exit": FAULTS["raise"], "_exit": FAULTS["kill"]}
"""They end as others do, and are tried by `--thorough`."""


def test_a_failing_rank_ends_the_job_with_one_message(tmp_path: Path) -> None:
    """The jobs run at once, since they mostly wait."""
    faults = FAULTS | (MORE if is_taken(1) else {})
    jobs = {how: start(how, records=tmp_path / how) for how in faults}
    for how, job in jobs.items():
        out, err = job.communicate(timeout=HANG)
        over = time.time()
        assert job.returncode != 0
        assert over - float(out.split("event ")[1].split()[0]) < LIMIT
        said = [line for line in err.split("\n") if "rank" in line and "TotalOfRanks" in line]
        assert len(said) == 1, err
        # Ranks 0 and 2 wait for rank 1, and the one that sees its end first writes the message.
        assert faults[how] in said[0] or faults[how].replace("rank 0", "rank 2") in said[0]
        if how == "alone":
            assert "note: rank 1 is after step 3" in err
        if how == "raise":
            assert "ValueError: user code is wrong" in err
            assert "faulty_job.py" in err
        if how in ("kill", "_exit", "exit 0", "alone"):
            assert "net.py:12:5" in err
            assert "    out = self.op(x)" in err
        if how in ("kill", "exit 0"):
            assert f"note: mspc explain-hang {os.path.relpath(tmp_path / how)} compares the calls of the ranks" in err
            records, _ = read_records([tmp_path / how])
            assert [record.rank for record in records] == ([0, 2] if how == "kill" else [0, 1, 2])
            (found,) = explain(records, 3).explanations
            assert (found.rank, found.fault) == (1, "no record" if how == "kill" else "stopped before")
        else:
            assert how == "alone" or not (tmp_path / how).exists()


def test_a_job_without_faults_ends_well() -> None:
    job = start("nothing")
    out, err = job.communicate(timeout=HANG)
    assert job.returncode == 0, err
    assert sorted(line for line in out.split("\n") if line.endswith("ended")) == [
        f"rank {r} ended" for r in range(3)
    ]


def test_an_interrupt_ends_all_ranks() -> None:
    job = start("interrupt")
    lines_until(job, lambda lines: "event" in lines[-1])
    started = time.time()
    os.killpg(job.pid, signal.SIGINT)
    job.communicate(timeout=HANG)
    assert job.returncode != 0
    assert time.time() - started < LIMIT
