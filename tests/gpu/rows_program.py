"""Rows that real GPUs exchange by their places, a process each: `mpirun -n 2 python tests/gpu/rows_program.py`.

FetchRows and SendRows are compared with NumPy's, on two streams, in one round and in several, and as steps of a graph
of which parts are captured.
"""

import sys
from typing import Any

import ml_dtypes
import numpy as np

from mspc.engine.job import join_job
from mspc.ops.collective.row_exchange import FetchRows, SendRows
from mspc.ops.cuda import expert_rows
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.device_choice import DeviceOptions
from tests.gpu.nccl_program import Bench, Steps
from tests.gpu.rows_programs import fetched_and_sent
from tests.ops.collective.test_collectives import drawn

DTYPES: list[Any] = [np.float32, ml_dtypes.bfloat16, np.float64, np.int32, np.float16]


def check(bench: Bench) -> None:
    job, tried = bench.job, 0
    rounds = expert_rows.ROUND_BYTES
    for number, (group, table, places) in enumerate(drawn(job.size, 3)):
        expert_rows.ROUND_BYTES = rounds if number % 2 else 100
        if job.rank in group and number % 3 == 0:
            _check_one(bench, group, table, places[group.index(job.rank)], DTYPES[number % len(DTYPES)])
            tried += 1
    expert_rows.ROUND_BYTES = rounds
    rng = np.random.default_rng(job.rank)
    everyone, table = tuple(range(job.size)), np.random.default_rng(9).normal(size=(4096 * job.size, 512))
    skewed = (rng.random(9000) ** 3 * len(table)).astype(np.int32)
    for limit in (rounds, 1 << 20):
        expert_rows.ROUND_BYTES = limit
        _check_one(bench, everyone, table, skewed, np.float32)
        _check_one(bench, everyone, table, skewed, ml_dtypes.bfloat16)
    bench.comm.check()
    print(f"rank {job.rank} checked {tried + 4} exchanges", flush=True)


def _check_one(bench: Bench, group: tuple[int, ...], table: Any, places: Any, dtype: Any) -> None:
    """Whole numbers are exact in every order."""
    job, device = bench.job, bench.device
    backend, mine = NumPyBackend(job.comm), group.index(job.rank)
    own = np.rint(8 * np.split(table, len(group))[mine]).astype(dtype)
    rows = np.rint(np.arange(own.shape[1] * places.size).reshape(-1, own.shape[1]) % 7 + mine).astype(dtype)
    places = places.astype(np.int32)
    fetch = FetchRows(total=len(table), rank_list=group)
    sends = [SendRows(size=len(own), total=len(table), sets=sets, rank_list=group) for sets in (False, True)]
    bench.comm.prepare([fetch.channel(job.rank)], together=False)
    for op, x, shape in [(fetch, own, rows.shape), *[(send, rows, own.shape) for send in sends]]:
        wanted = op.kernel(backend)(x, places)
        for stream in ("compute", "communication"):
            given, named, out = bench.put(x), bench.put(places), bench.put(np.zeros(shape, dtype))
            with device.stream(stream):
                launch = op.launch(device, out, given, named)
                launch()
                launch()
            np.testing.assert_array_equal(bench.get(out), wanted, f"{op} on {stream}")


def steps(bench: Bench) -> None:
    """A graph that fetches rows, adds, and sends them back: between exchanges parts of it are captured."""
    job, (count, width) = bench.job, (3000, 256)
    everyone = tuple(range(job.size))
    graph = fetched_and_sent(everyone, 1024, count, width)
    rng = np.random.default_rng(job.rank)
    run = Steps(bench, graph).run
    for _ in range(2):
        table = np.rint(4 * rng.normal(size=(1024, width))).astype(np.float32)
        places = rng.integers(-1, 1024 * job.size, count).astype(np.int32)
        fetched = FetchRows(total=1024 * job.size, rank_list=everyone).kernel(NumPyBackend(job.comm))(table, places)
        send = SendRows(size=1024, total=1024 * job.size, rank_list=everyone).kernel(NumPyBackend(job.comm))
        np.testing.assert_array_equal(run([table, places])[0], send(8 * fetched, places))
    print(f"rank {job.rank} made equal steps", flush=True)


def body() -> None:
    bench = Bench(job)
    steps(bench)
    check(bench)


if __name__ == "__main__":
    job = join_job(DeviceOptions("gpu", timeout=20))
    sys.exit(job.guard(body))
