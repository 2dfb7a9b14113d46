"""A rank of a job that goes wrong in its third step, in the way that the command line names; for tests
under mpirun."""

from __future__ import annotations

import os
import signal
import sys
import time

import numpy as np

from mspc.engine.job import join_job
from mspc.ir.diagnostics import ExecutionError
from tests.executors import Executor, NumPyBackend
from tests.runtime.graphs import GraphMaker, Plus, TotalOfRanks


def go_wrong(how: str) -> None:
    """Run the fault on rank 1."""
    print(f"event {time.time()}", flush=True)
    if how == "raise":
        raise ValueError("user code is wrong")
    if how == "exit":
        sys.exit(3)
    if how == "exit 0":
        sys.exit(0)
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "alone":
        job.aside.all_gather(np.ones(1), tuple(range(job.size)), 0)
    if how == "_exit":
        os._exit(0)


def body() -> None:
    how = sys.argv[1]
    make = GraphMaker()
    x = make.parameter("x", (2, 3))
    total = make.node(TotalOfRanks(tuple(range(job.size))), make.node(Plus(), x, x), instance="reduce")
    executor = Executor(make.returns(total), NumPyBackend(job.comm), {}, job.cursor)
    if job.watch is not None:
        job.watch.describe = lambda rank, number, index: ExecutionError(
            f"at {executor.graph.nodes[index].label}", frames=executor.graph.nodes[index].frames
        )
    for step in range(1, 40):
        job.step(0, step)
        executor.run([np.ones((2, 3), np.float32)])
        if step == 3 and job.rank == 1 and how != "alone":
            go_wrong(how)
        job.step_done()
        if step == 3 and job.rank == 1:
            go_wrong(how)
        if how == "interrupt":
            print("event", flush=True)
            time.sleep(0.2)
    print(f"rank {job.rank} ended")


if __name__ == "__main__":
    job = join_job()
    sys.exit(job.guard(body))
