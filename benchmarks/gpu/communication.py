"""What communication costs a step of the transformer: NCCL's rate, what is hidden, the host's part, memory.

    mpirun -n 4 python benchmarks/gpu/communication.py --data 2 --tensor 2 [--precision bf16] ...

Rank 0 prints
- the gradient reductions of the captured step, replayed alone, beside plain calls of NCCL on buffers of the same sizes;
- the step and the step without its gradient reductions, beside the limit: 1.05 times the latter and the reductions
  that nothing can hide, which are ready when only updates are left to compute;
- the host's time for a replayed step;
- bytes of the runtime's pool beside what the compiler predicted.
"""

import statistics
import time
from dataclasses import replace

import numpy as np
import transformer_program
from cupy.cuda import nccl

from mspc.api.call_handler import current
from mspc.communication import get_group_size, get_rank

REPEATS = 20
sizes, train, x, y = transformer_program.built()
for _ in range(5):
    train(x, y).asnumpy()
executor = current().compiled_calls[0].executor
device, step = executor.device, executor._step
graph = executor.graph
host = executor.comm
everyone = tuple(range(get_group_size()))


def gradient(work):
    return work.index >= 0 and "mirror_user_id" in graph.nodes[work.index].attrs


def milliseconds(run):
    """Median of a captured piece of work, the slowest rank's."""
    with device.stream("compute"):
        run()
        device.synchronize()
        found = []
        for _ in range(REPEATS):
            host.barrier(everyone)
            begun = device.signal(timed=True)
            run()
            ended = device.signal(timed=True)
            ended.synchronize()
            found.append(device.milliseconds(begun, ended))
    return float(host.all_reduce(np.array([statistics.median(found)]), "max", everyone)[0])


def captured(chosen):
    """A CUDA graph of some of the step's work, in its order and on its streams."""
    ordinary = step.work
    wanted = [chosen(ordinary[work.awaits] if work.awaits >= 0 else work) for work in ordinary]
    step.work = [work if is_wanted else _silent(work) for work, is_wanted in zip(ordinary, wanted, strict=True)]
    try:
        with device.stream("compute"):
            step.enqueue()
            device.synchronize()
            return device.capture(step.enqueue)
    finally:
        step.work = ordinary


def _silent(work):
    return replace(work, launch=lambda: None)


def plain_reductions(works):
    """The same reductions as plain calls, one after the other on fresh buffers, captured."""
    calls = []
    for work in works:
        node = graph.nodes[work.index]
        nbytes = sum(value.type.nbytes for value in node.inputs)
        comm = device.comm._group(tuple(sorted(node.op.rank_list))).comm
        buffer = device.zeros((nbytes // 4,), np.float32)
        calls.append((comm, buffer))

    def run():
        stream = device.xp.cuda.get_current_stream().ptr
        for comm, buffer in calls:
            comm.allReduce(buffer.data.ptr, buffer.data.ptr, buffer.size, nccl.NCCL_FLOAT32, nccl.NCCL_SUM, stream)

    with device.stream("compute"):
        run()
        device.synchronize()
        return device.capture(run)


def unhidden():
    """The gradient reductions behind the last work of the compute stream that is not an update, by their nodes."""
    found = []
    for work in reversed(step.work):
        if work.stream == "compute" and work.index >= 0 and graph.nodes[work.index].phase != "update":
            return found
        if gradient(work):
            found.append(work.index)
    return found


reductions = [work for work in step.work if gradient(work)]
lines = [f"{sizes.layers} layers, {sizes.precision}, data {sizes.data} x tensor {sizes.tensor}"]
with_all = milliseconds(captured(lambda work: True))
if reductions:
    nbytes = [sum(v.type.nbytes for v in graph.nodes[w.index].inputs) for w in reductions]
    members = [len(graph.nodes[w.index].op.rank_list) for w in reductions]
    traffic = sum(n * 2 * (m - 1) / m for n, m in zip(nbytes, members, strict=True))
    alone = milliseconds(captured(gradient))
    plain = milliseconds(plain_reductions(reductions))
    without = milliseconds(captured(lambda work: not gradient(work)))
    last = unhidden()
    rest = milliseconds(captured(lambda work: work.index in last)) if last else 0.0
    limit = 1.05 * without + rest
    lines += [
        f"gradient reductions: {len(reductions)}, {sum(nbytes) / 1e6:.1f} MB",
        f"  replayed alone {alone:.3f} ms, {traffic / alone / 1e6:.0f} GB/s; plain NCCL {plain:.3f} ms, "
        f"{traffic / plain / 1e6:.0f} GB/s: {plain / alone:.2f} of its rate",
        f"step {with_all:.3f} ms, without gradient reductions {without:.3f} ms: {with_all / without:.3f} times",
        f"  cannot hide: the last {len(last)}, alone {rest:.3f} ms; 1.05 times the step without reductions and these "
        f"{limit:.3f} ms: the step takes {with_all / limit:.3f} of it",
    ]
else:
    lines.append(f"step {with_all:.3f} ms, no gradient reductions")
device.synchronize()
hosts = []
for _ in range(REPEATS):
    executor.finish()
    begun = time.perf_counter()
    train(x, y)
    hosts.append(time.perf_counter() - begun)
    device.synchronize()
spent = 1000 * statistics.median(hosts)
lines.append(f"host time of a replayed step {spent:.3f} ms, {100 * spent / with_all:.1f} % of the step")
plan = executor.plan
stored = plan.weights + plan.states + plan.inputs + plan.constants
lines += [
    f"predicted: parameters {plan.weights / 1e6:.1f} MB, states {plan.states / 1e6:.1f} MB, "
    f"step {plan.arena / 1e6:.1f} MB (most alive at once {plan.lower_bound / 1e6:.1f} MB), "
    f"together {(stored + plan.arena) / 1e6:.1f} MB",
    f"measured: the pool holds {device.pool.used_bytes() / 1e6:.1f} MB, of it "
    + ", ".join(f"{name} {size / 1e6:.1f} MB" for name, size in device.workspaces.items()),
]
if get_rank() == 0:
    print("\n".join(lines), flush=True)
