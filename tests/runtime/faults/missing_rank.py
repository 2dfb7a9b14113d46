"""A rank of a job whose GPUs are played: each leaves marks in memory, and the main thread sits in C with the lock of
the interpreter released, as in a wait for a stream. Rank 1 does not come to the collective of step 3."""

from __future__ import annotations

import os
import signal
import sys
import time
from typing import Any

import numpy as np

from mspc.engine.job import join_job
from mspc.ir.diagnostics import ExecutionError
from mspc.runtime.faults.stopped import END, packed
from tests.runtime.graphs import GraphMaker, Plus, TotalOfRanks

FOREVER = 3600


def body() -> None:
    how = sys.argv[1]
    make = GraphMaker()
    x = make.parameter("x", (2, 3))
    total = make.node(TotalOfRanks(tuple(range(job.size))), make.node(Plus(), x, x), instance="reduce")
    graph = make.returns(total)
    place = np.zeros(1, np.int64)
    watch: Any = job.watch
    watch.describe = lambda rank, number, index: ExecutionError(
        f"at {graph.nodes[index].label}", frames=graph.nodes[index].frames
    )
    watch.graph_of = lambda rank, number: graph
    watch.marks = lambda: int(place[0])
    watch.patience = 2.0
    for step in (1, 2):
        job.step(0, step)
        place[0] = packed(0, step, 1)
        job.comm.barrier(tuple(range(job.size)))
        place[0] = packed(0, step, END)
        job.step_done()
    time.sleep(0.6)  # every watch has seen the end of step 2
    if job.rank == 1:
        print(f"event {time.time()}", flush=True)
        if how == "end":
            return
        if how == "wait":
            time.sleep(FOREVER)
        job.step(0, 3)
        if how == "kill":
            place[0] = packed(0, 3, 1)
            time.sleep(0.6)
            os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(FOREVER)
    job.step(0, 3)
    place[0] = packed(0, 3, 1)
    time.sleep(FOREVER)


if __name__ == "__main__":
    job = join_job()
    sys.exit(job.guard(body))
