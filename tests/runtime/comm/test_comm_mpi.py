"""Collectives under MPI give the bits of the simulation."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from mspc.engine.ranks.mpirun import find_mpirun, mpirun_environment
from mspc.runtime.comm.local import World
from tests.conftest import HANG
from tests.runtime.comm.collectives import digest, results


def test_mpi_equals_the_simulation_bit_for_bit() -> None:
    script = Path(__file__).with_name("collectives.py")
    command = [find_mpirun(), "-n", "3", "--oversubscribe", "--bind-to", "none", sys.executable, str(script)]
    done = subprocess.run(
        command, env=mpirun_environment(), capture_output=True, text=True, timeout=HANG, check=False
    )
    assert done.returncode == 0, done.stderr
    simulated = World(3).run(lambda comm: digest(results(comm)))
    assert sorted(done.stdout.split("\n")[:3]) == [f"{rank} {text}" for rank, text in enumerate(simulated)]
