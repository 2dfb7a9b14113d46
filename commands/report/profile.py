"""Tables of `mspc run --profile`: the most expensive nodes, and memory.

Equal nodes of repeated layers are one row, and a result of several tensors is summarized; the trace has every node.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Sequence
from typing import Any

from mspc.analysis.cost.machine import H200, PRODUCTS
from mspc.analysis.cost.nodes import work_of
from mspc.commands.facts.graph import GRADIENTS
from mspc.commands.report.tables import TextTable, alike, layer_kind, print_table, size_text, with_times
from mspc.engine.profile import WARMUP_STEPS, GatheredProfile
from mspc.ir.graph import Graph, element_types, operand_types
from mspc.ir.types import TensorType, TupleType, Type
from mspc.runtime.comm.local import LocalComm
from mspc.runtime.memory_plan import plan_memory
from mspc.runtime.profile import NodeCost, NodeTiming, costs, nodes_of, sums
from mspc.runtime.workspaces import cpu_kernel_bytes

LISTED = 10
GIGA, TERA = 1e9, 1e12


def show_profile(gathered: GatheredProfile) -> None:
    """Print the tables and sums of a run's times on rank 0, or a warning if there are none."""
    executor = gathered.executor
    if executor is None or not gathered.steps[0]:
        why = "a first step on the CPU prepares, run 2 or more"
        why = "the script ran no network" if executor is None else why
        print(f"warning: {gathered.file} holds no times of rank 0: {why}", file=sys.stderr, flush=True)
        return
    print_table(cost_table(gathered.steps[0], gathered.first[0], executor))
    compute, communication, step = sums(gathered.steps[0], executor.graph)
    print(f"compute {_ms(compute)}, communication {_ms(communication)}, step {_ms(step)}")
    if hasattr(executor, "memory"):
        print_table(memory_table(executor))
    else:
        print(cpu_memory_line(executor.graph))
    for note in _notes(gathered):
        print(f"note: {note}")
    print(f"trace in {gathered.file}; ui.perfetto.dev shows it")


def cpu_memory_line(graph: Graph) -> str:
    """Return the planned peak of a step, the memory of kernels beside it, and the most that the process has used."""
    planned, kernels = size_text(plan_memory(graph).peak), size_text(cpu_kernel_bytes(graph))
    used = size_text(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024)
    return (
        f"memory: planned peak {planned}, kernels at most {kernels} beside it; this process used {used} at most, with "
        "Python, the script and all its ranks here"
    )


def cost_table(steps: Sequence[Sequence[NodeTiming]], first: int, executor: Any) -> TextTable:
    """Return the most expensive nodes of one rank. first: number of the first step. executor: that ran the steps."""
    last = first + len(steps) - 1
    which = f"steps {first} to {last}" if last > first else f"step {first}"
    kind = "the first graph that trains" if executor.trains else "the first graph; none trains"
    joined = joined_costs(costs(steps, executor.graph))[:LISTED]
    rows = [
        (
            layer_kind(those[0].label), str(len(those)), those[0].stream, _ms(sum(c.seconds for c in those)),
            f"{100 * sum(c.share for c in those):.1f} %", _place_and_result(those),
        )
        for those in joined
    ]  # fmt: skip
    table = TextTable(
        f"profile of {executor.graph.name} ({kind}), rank {executor.rank}, median of {which}",
        ("node", "nodes", "stream", "time", "share", "cell, line, result, rate"), rows, (1, 3, 4), below=(5,),
    )  # fmt: skip
    runs = [sum(c.runs for c in those) for those in joined]
    texts = [f"{count:,}" * (count > len(those)) for count, those in zip(runs, joined, strict=True)]
    return with_times(table, 2, texts)


def joined_costs(found: Sequence[NodeCost]) -> list[list[NodeCost]]:
    """Return equal nodes of repeated layers together, the most expensive first."""
    joined = alike(found, lambda c: (layer_kind(c.label), str(c.type), c.stream, c.line, layer_kind(c.scope), c.runs))
    return sorted(joined.values(), key=lambda those: -sum(c.seconds for c in those))


def rate_text(costs: Sequence[NodeCost]) -> str:
    """Return the rate of equal nodes: `412 TFLOP/s` of matmuls, convolutions and attention, `3,120 GB/s` of others."""
    seconds, operations, moved = (
        sum(amounts) for amounts in zip(*((c.seconds, c.operations, c.moved) for c in costs), strict=True)
    )
    if not seconds or not (operations or moved):
        return ""
    if operations >= seconds * TERA:
        return f"{operations / seconds / TERA:,.3g} TFLOP/s"
    return f"{operations / seconds / GIGA:,.3g} GFLOP/s" if operations else f"{moved / seconds / GIGA:,.3g} GB/s"


def _limits(executor: Any) -> str:
    """Return the rate of the GPU's memory by its clock, and the rates of matmuls that estimates assume."""
    device, machine = executor.device, H200.under(executor.graph.attrs)
    dtypes = dict.fromkeys(operand_types(node)[0].dtype for node, _ in nodes_of(executor.graph) if work_of(node))
    texts = [f"the memory of {device.name} moves at most {device.memory_rate / GIGA:,.0f} GB/s"]
    for dtype in dtypes:
        rate = max(rate for _, rate in machine.work_rate(PRODUCTS, dtype).points)
        texts.append(f"estimates assume {rate / TERA:,.0f} TFLOP/s for matmuls of {dtype}")
    return "; ".join(texts)


def _place_and_result(costs: Sequence[NodeCost]) -> str:
    """Return the innermost cell, the line, the result and the rate of equal nodes: `gradient of a-Dense, net.py:13,
    Float32 (16, 256), 54 GB/s`."""
    cost = costs[0]
    cell = layer_kind(cost.scope.removeprefix(GRADIENTS)).rpartition("/")[2]
    cell = "gradient of " * cost.scope.startswith(GRADIENTS) + cell if cell else ""
    line = ":".join(cost.line.split(":")[:2])
    return ", ".join(text for text in (cell, line, result_text(cost.type), rate_text(costs)) if text)


def result_text(result: Type) -> str:
    """Return `Float32 (16, 256)`, or `18 tensors, 4.5 MiB` for a tuple of several."""
    if not isinstance(result, TupleType):
        return f"{result.dtype} {result.shape}" if isinstance(result, TensorType) else str(result)
    tensors = element_types(result)
    if len(tensors) == 1:
        return result_text(tensors[0])
    return f"{len(tensors)} tensors, {size_text(sum(tensor.nbytes for tensor in tensors))}"


def memory_table(executor: Any) -> TextTable:
    """Return the table of a GPU's memory: planned bytes and bytes in use."""
    parts = executor.memory()
    device = executor.device
    rows = [*parts.items(), ("planned together", sum(parts.values()))]
    rows.append((f"in use on GPU {device.index} (by all graphs)", device.pool.used_bytes()))
    return TextTable("device memory", ("for", "bytes"), [(name, size_text(size)) for name, size in rows], (1,))


def _notes(gathered: GatheredProfile) -> list[str]:
    notes: list[str] = []
    steps, first = gathered.steps[0], gathered.first[0]
    timed = len({t.index for times in steps for t in times})
    if timed > LISTED:
        notes.append(f"{timed} nodes ran; the table has the most expensive ones, and the trace has all")
    if first <= WARMUP_STEPS:
        notes.append(f"step {first} may still prepare; a run of {WARMUP_STEPS + 1} steps or more gives better times")
    if hasattr(gathered.executor, "memory"):
        notes.append(_limits(gathered.executor))
    plain = {t.index: 0.0 for times in steps for t in times if t.plain}
    if plain:
        taken = sum(t.duration for times in steps for t in times if t.plain) / 1000 / len(steps)
        notes.append(f"{len(plain)} nodes have no kernel of their own for GPUs; they take {_ms(taken)}")
    if gathered.job.size > 1 and isinstance(gathered.job.comm, LocalComm):
        notes.append("simulated ranks take turns: the time of a collective holds work of the other ranks")
    return notes


def _ms(seconds: float) -> str:
    return f"{1000 * seconds:.3f} ms"
