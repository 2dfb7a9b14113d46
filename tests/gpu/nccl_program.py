"""Collectives on real GPUs, one process each: `mpirun -n 4 python tests/gpu/nccl_program.py check`, or
`every`, `hang 4`, `kill 4`, `stop 4`, `pause 4`.

check compares every collective with NumPy, as a method, as a launch, and as a launch in a CUDA graph that is replayed
with other values. every runs the cases of tests/ops/collective, gradients too, as steps of a graph. hang, kill
and stop lose rank 1 in a replayed step, at an AllReduce of so many elements: the others must say so and end. pause lets
it go on after a while, and nothing ends.
"""

import os
import signal
import subprocess
import sys
import time
from types import SimpleNamespace
from typing import Any

import ml_dtypes
import numpy as np

from mspc.engine.job import join_job
from mspc.ops.collective.collectives import AllGather, AllReduce, AlltoAll, Broadcast, NeighborExchange, ReduceScatter
from mspc.runtime.device_choice import DeviceOptions, DeviceRequest
from mspc.runtime.faults.stopped import END, packed
from mspc.runtime.gpu.executor import GpuExecutor
from mspc.runtime.gpu.peers import PeerLaunch
from tests.graphs import ExecutionError, Graph, Op
from tests.operators import Barrier, PasteSlices, Receive, Send
from tests.ops.collective.every import check_all
from tests.runtime.graphs import GraphMaker

DTYPES: list[Any] = [
    np.float32, ml_dtypes.bfloat16, np.float16, np.float64, np.int32, np.int64, np.uint8, np.bool_, np.int16,
]  # fmt: skip
SHAPES = [(8, 12), (4, 8, 12), (24,)]


def whole_numbers(rng: Any, shape: tuple[int, ...], dtype: Any) -> Any:
    """Small whole numbers: their sums and products are exact in every element type and order."""
    return rng.integers(0, 3, shape).astype(dtype)


class Bench:
    """This rank's GPU, and how arrays get there and back."""

    def __init__(self, job: Any) -> None:
        self.job = job
        job.hardware.choose(DeviceRequest(), job.size)
        job.hardware.agree(job.comm)
        job.hardware.prepare(False, job.comm, job.watch)
        self.device = job.hardware.device
        self.comm = self.device.comm

    def put(self, array: Any) -> Any:
        array = np.ascontiguousarray(array).reshape(np.shape(array))
        found = self.device.empty(array.shape, array.dtype)
        self.set(found, array)
        return found

    def set(self, target: Any, array: Any) -> None:
        array = np.ascontiguousarray(array).reshape(target.shape)
        with self.device.stream("communication"):
            self.device.send(array, target)
        self.device.synchronize()

    def get(self, array: Any) -> Any:
        found = np.empty(array.shape, array.dtype)
        self.device.synchronize()
        with self.device.stream("communication"):
            array = self.device.xp.ascontiguousarray(array).reshape(array.shape)
            self.device.receive(array, found)
        self.device.synchronize()
        return found


def groups(size: int) -> list[tuple[int, ...]]:
    """All ranks, forwards and backwards, and on four ranks the rows and columns of 2 x 2."""
    everyone = tuple(range(size))
    found = [everyone, everyone[::-1]]
    return [*found, (0, 1), (2, 3), (0, 2), (1, 3)] if size == 4 else found


def cases(ranks: tuple[int, ...]) -> list[tuple[Op, tuple[int, ...]]]:
    found: list[tuple[Op, tuple[int, ...]]] = []
    count = len(ranks)
    for shape in SHAPES:
        found += [(AllReduce(op=op, rank_list=ranks), shape) for op in ("sum", "max", "min", "prod")]
        for axis in range(len(shape)):
            found += [(AllGather(axis=axis, rank_list=ranks), shape)]
            found += [(ReduceScatter(op="sum", axis=axis, rank_list=ranks), shape)]
            found += [
                (AlltoAll(split_count=count, split_dim=axis, concat_dim=other, rank_list=ranks), shape)
                for other in range(len(shape))
            ]
    return found


def check_one(bench: Bench, op: Op, arrays: list[Any], again: list[Any], counts: dict[str, int]) -> None:
    """As a method of the communicator, as a launch, and captured."""
    device, host = bench.device, bench.job.comm
    plain = SimpleNamespace(xp=np, comm=host, step=0)
    on_gpu = SimpleNamespace(xp=device.xp, comm=bench.comm, step=0)
    wanted, wanted_again = (as_tuple(op.kernel(plain)(*given)) for given in (arrays, again))
    inputs = [bench.put(array) for array in arrays]
    with device.stream("communication"):
        found = as_tuple(op.kernel(on_gpu)(*inputs))
    same(op, "method", [bench.get(array) for array in found], wanted)
    single = not isinstance(op, Broadcast | NeighborExchange | Barrier) and len(wanted) == 1
    outs = tuple(bench.put(np.zeros(array.shape, array.dtype)) for array in wanted)
    with device.stream("communication"):
        launch = op.launch(device, outs[0] if single else outs, *inputs)
        if launch is None:
            counts["plain"] += 1
            return
        launch()
    same(op, "launch", [bench.get(array) for array in outs], wanted)
    with device.stream("communication"):
        replay = device.capture(launch)
    for target, array in zip(inputs, again, strict=True):
        bench.set(target, array)
    with device.stream("communication"):
        replay()
        replay()
    same(op, "replay", [bench.get(array) for array in outs], wanted_again)
    counts["launched"] += 1


def as_tuple(found: Any) -> tuple[Any, ...]:
    return tuple(found) if isinstance(found, tuple | list) else (found,)


def same(op: Op, how: str, found: list[Any], wanted: tuple[Any, ...]) -> None:
    for got, right in zip(found, wanted, strict=True):
        right = np.asarray(right)
        if got.shape != right.shape or got.tobytes() != right.tobytes():
            raise ExecutionError(f"{op}: the {how} gives\n{got}\nfor {got.dtype}, not\n{right}")


def check(bench: Bench) -> None:
    job = bench.job
    counts = {"launched": 0, "plain": 0}
    for ranks in groups(job.size):
        if job.rank not in ranks:
            continue
        bench.comm.prepare([(ranks, -1)], together=False)
        for number, (op, shape) in enumerate(cases(ranks)):
            dtype = DTYPES[number % len(DTYPES)]
            rng = np.random.default_rng([job.rank, number])
            given = [[whole_numbers(rng, shape, dtype)] for _ in range(2)]
            check_one(bench, op, *given, counts)
    everyone, other = tuple(range(job.size)), (job.rank + 1) % job.size
    before = (job.rank - 1) % job.size
    for number, dtype in enumerate(DTYPES):
        rng = np.random.default_rng([job.rank, 99, number])
        given = [[whole_numbers(rng, shape, dtype) for shape in ((2, 3), (5,), (1,))] for _ in range(2)]
        check_one(bench, AllReduce(rank_list=everyone), *given, counts)
        check_one(bench, Broadcast(root_rank=job.size - 1, rank_list=everyone), *given, counts)
        check_one(bench, Barrier(rank_list=everyone), *given, counts)
        exchange = NeighborExchange(
            send_rank_ids=(other, before), recv_rank_ids=(before, other), recv_shapes=((2, 3), (5,)), rank_list=everyone
        )
        check_one(bench, exchange_of(exchange, dtype), given[0][:2], given[1][:2], counts)
        paste = PasteSlices(shape=(3, 3), begins=((1, 0), (0, 0), (0, 2)))
        parts = [[whole_numbers(rng, s, dtype) for s in ((2, 3), (1, 2), (1, 1))] for _ in range(2)]
        check_one(bench, paste, *parts, counts)
    messages(bench)
    in_place(bench)
    counts["direct"] = large(bench)
    bench.comm.check()
    marks(bench)
    print(f"rank {job.rank} checked {counts['launched']} launches, {counts['plain']} by CuPy alone, "
          f"{counts['direct']} directly", flush=True)  # fmt: skip


def exchange_of(op: NeighborExchange, dtype: Any) -> NeighborExchange:
    from dataclasses import replace

    from mspc.ir.types import dtype_of

    return replace(op, recv_type=dtype_of(np.dtype(dtype)))


def messages(bench: Bench) -> None:
    """Rank 0 sends to rank 1 under two tags, which may be received in the other order."""
    device, rank = bench.device, bench.job.rank
    if rank > 1:
        return
    x = bench.put(np.arange(6.0, dtype=np.float32).reshape(2, 3))
    outs = [bench.put(np.zeros((2, 3), np.float32)) for _ in range(2)]
    ops: list[Op] = [Send(sr_tag=tag, dest_rank=1) if rank == 0 else Receive(sr_tag=tag, src_rank=0) for tag in (1, 2)]
    with device.stream("communication"):
        launches = [op.launch(device, out, *([x] if rank == 0 else [])) for op, out in zip(ops, outs, strict=True)]
        for launch in launches:
            launch()
        device.rejoin()  # what is sent leaves from memory of its launch
    for out in outs:
        assert bench.get(out).tolist() == [[0, 1, 2], [3, 4, 5]]


def in_place(bench: Bench) -> None:
    """All ranks get the same bits, also of sums that are rounded."""
    device, job = bench.device, bench.job
    everyone = tuple(range(job.size))
    rng = np.random.default_rng(job.rank)
    for dtype in (np.float32, ml_dtypes.bfloat16):
        x = bench.put(rng.standard_normal(100_003).astype(dtype))
        with device.stream("communication"):
            AllReduce(rank_list=everyone).launch(device, x, x)()
        found = bench.get(x).view(np.uint8)
        assert (job.comm.all_gather(found[None], everyone, 0) == found).all(), "ranks have different bits"


def large(bench: Bench) -> int:
    """Collectives that go through the peers' memory, on two streams; how many did."""
    device, job, direct = bench.device, bench.job, 0
    for ranks in groups(job.size):
        if job.rank not in ranks:
            continue
        ops: list[Op] = [AllReduce(op=op, rank_list=ranks) for op in ("sum", "max", "min", "prod")]
        ops += [AllGather(rank_list=ranks), AllGather(axis=1, rank_list=ranks)]
        ops += [ReduceScatter(rank_list=ranks), ReduceScatter(axis=1, rank_list=ranks)]
        for number, op in enumerate(ops):
            dtype = (np.float32, ml_dtypes.bfloat16, np.float16, np.float64, np.int32, np.int64)[number % 6]
            shape = (1040, 1025) if isinstance(op, AllReduce) else (96, 2048)
            wanted: list[Any] = []
            given: list[Any] = []
            for round_ in range(2):
                rng = np.random.default_rng([job.rank, number, round_])
                given.append(whole_numbers(rng, shape, dtype))
                wanted.append(op.kernel(SimpleNamespace(xp=np, comm=job.comm, step=0))(given[-1]))
            for name in ("communication", "reduction"):
                x, out = bench.put(given[0]), bench.put(np.zeros(np.shape(wanted[0]), dtype))
                with device.stream(name):
                    launch: Any = op.launch(device, out, x)
                    direct += bool(isinstance(launch, PeerLaunch))
                    launch()
                same(op, f"launch on {name}", [bench.get(out)], (wanted[0],))
                with device.stream(name):
                    replay = device.capture(launch)
                bench.set(x, given[1])
                with device.stream(name):
                    replay()
                    replay()
                same(op, f"replay on {name}", [bench.get(out)], (wanted[1],))
    return direct


def marks(bench: Bench) -> None:
    """A replayed step leaves its place where the host reads it."""
    device = bench.device
    device.progress.graph = 3
    with device.stream("compute"):
        mark, end = device.progress.mark(17), device.progress.mark()
        replay = device.capture(mark)
        device.send(np.array([5], np.int64), device.step)
        replay()
    device.synchronize()
    assert bench.job.watch.marks() == packed(3, 5, 17)
    with device.stream("compute"):
        end()
        device.progress.wait(device.signal())
    assert bench.job.watch.marks() == packed(3, 5, END)


class Steps:
    """A graph's steps on the GPU: node by node, captured, replayed; all give the same."""

    def __init__(self, bench: Bench, graph: Graph) -> None:
        bench.comm.prepare_for(graph, together=False)
        alone = SimpleNamespace(rank=bench.job.rank, size=1)  # ranks outside a group have nothing to agree on
        self.executor = GpuExecutor(graph, bench.device, {}, host=alone)

    def run(self, fed: list[Any]) -> list[Any]:
        found = [[pending.fetch() for pending in self.executor.run(fed)] for _ in range(3)]
        for later in found[1:]:
            for one, first in zip(later, found[0], strict=True):
                np.testing.assert_array_equal(one, first, "a step gives other numbers than the one before")
        return found[0]


def every(bench: Bench) -> None:
    compared = check_all(bench.job.comm, lambda graph: Steps(bench, graph))
    bench.comm.check()
    print(f"rank {bench.job.rank} checked {compared} results of steps", flush=True)


def lose(bench: Bench, how: str, size: int) -> None:
    """Rank 1 does not come to the AllReduce of step 3, of so many elements."""
    device, job = bench.device, bench.job
    make = GraphMaker()
    everyone = tuple(range(job.size))
    node = make.node(AllReduce(rank_list=everyone), make.parameter("x", (size,)), instance="w")
    graph = make.returns(node)
    job.watch.graph_of = lambda rank, number: graph
    job.watch.describe = lambda rank, number, index: ExecutionError(f"at {node.label}", frames=node.frames)
    bench.comm.prepare([(everyone, -1)], together=True)
    x = bench.put(np.ones(size, np.float32))
    with device.stream("compute"):
        launch: Any = node.op.launch(device, x, x)  # type: ignore[attr-defined]  # operators have launches
        launch = device.progress.before(0, launch, isinstance(launch, PeerLaunch))
        end = device.progress.mark()
        launch()
        replay = device.capture(lambda: (launch(), end()))
        for step in range(1, 5):
            if step == 3 and job.rank == 1:
                print(f"event {time.time()}", flush=True)
                if how == "kill":
                    os.kill(os.getpid(), signal.SIGKILL)
                if how == "hang":
                    time.sleep(3600)
                if how == "pause":
                    subprocess.Popen(["sh", "-c", f"sleep 6; kill -CONT {os.getpid()}"])
                os.kill(os.getpid(), signal.SIGSTOP)
            job.step(0, step)
            device.send(np.array([step], np.int64), device.step)
            replay()
            done = device.signal()
            if how == "kill":
                done.synchronize()  # in C: the watch must see the end of rank 1 all the same
            else:
                device.progress.wait(done)


def body() -> None:
    bench = Bench(job)
    how = sys.argv[1]
    if how == "check":
        check(bench)
    elif how == "every":
        every(bench)
    else:
        lose(bench, how, int(sys.argv[2]))


if __name__ == "__main__":
    job = join_job(DeviceOptions("gpu", timeout=20))
    sys.exit(job.guard(body))
