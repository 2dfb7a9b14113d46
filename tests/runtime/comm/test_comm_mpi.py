"""Collectives under MPI give the bits of the simulation."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from mspc.engine.ranks.mpirun import find_mpirun, mpirun_environment
from mspc.runtime.comm.local import World
from tests.conftest import HANG
from tests.runtime.comm.collectives import digest, results

COMPUTES = 2.0
SENT = f"""
import time
import numpy as np
from mspc.runtime.comm.mpi import MpiComm
comm, array = MpiComm(), np.arange(300_000, dtype=np.uint8)
comm.barrier((0, 1))
begin = time.perf_counter()
if comm.rank == 0:
    comm.send(array, 1, 1)
    array[:] = 0
    time.sleep({COMPUTES})
else:
    found = comm.receive(0, 1, array.shape, array.dtype)
    assert (found == array).all()
    print(time.perf_counter() - begin)
comm.finalize()
"""


def test_mpi_equals_the_simulation_bit_for_bit() -> None:
    script = Path(__file__).with_name("collectives.py")
    command = [find_mpirun(), "-n", "3", "--oversubscribe", "--bind-to", "none", sys.executable, str(script)]
    done = subprocess.run(
        command, env=mpirun_environment(), capture_output=True, text=True, timeout=HANG, check=False
    )
    assert done.returncode == 0, done.stderr
    simulated = World(3).run(lambda comm: digest(results(comm)))
    assert sorted(done.stdout.split("\n")[:3]) == [f"{rank} {text}" for rank, text in enumerate(simulated)]


def test_a_message_arrives_while_its_sender_computes() -> None:
    """Where ranks cannot read each other's memory, MPI hands long messages over only as both call it."""
    command = [find_mpirun(), "-n", "2", "--oversubscribe", "--bind-to", "none", sys.executable, "-c", SENT]
    environment = {**mpirun_environment(), "OMPI_MCA_smsc": "^cma,xpmem,knem"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=HANG, check=False)
    assert done.returncode == 0, done.stderr
    assert float(done.stdout) < COMPUTES / 2
