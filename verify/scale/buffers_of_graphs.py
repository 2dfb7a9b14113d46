"""The buffers in which the results of graphs lie on CPUs, as the executor plans them where there is a compiler."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from mspc.ir.graph import Graph, Node
from mspc.ir.types import TensorType
from mspc.ops.cpu.loops.program import has_loop
from mspc.ops.op import Op
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.buffers import BufferPlan, kernels_into, plan_buffers
from mspc.runtime.comm.arrivals import arrival_kernels
from mspc.runtime.comm.interface import OneRank
from mspc.runtime.compiled_loops import large_calls
from mspc.runtime.plan import lifetimes
from mspc.runtime.regions.kernels import is_planned
from mspc.runtime.regions.region import handed_over


def buffer_plan(graph: Graph, compiles: bool, is_region: bool = False) -> BufferPlan:
    """The plan of a graph. compiles: where there is a compiler, the program that it is of is compiled. is_region: it is
    run by a node of another one."""
    backend = NumPyBackend(OneRank())
    handed = {*handed_over(graph).values()} if is_region else set[tuple[Node, int]]()
    calls = large_calls(graph) if compiles else {}
    loops = {i: _has_loop(op, tuple(operands), tuple(results)) for i, (op, operands, results) in calls.items()}
    updates = {i for i, (_, is_update) in loops.items() if is_update}
    planned = [i for i, node in enumerate(graph.nodes) if node.regions and is_planned(node, backend)]
    made = dict.fromkeys([*(i for i, (is_loop, _) in loops.items() if is_loop), *planned], _none)
    others = {*arrival_kernels(graph, backend), *updates}
    return plan_buffers(graph, kernels_into(graph.nodes, backend, others, made), lifetimes(graph).last_use, handed)


def _none(*operands: Any, **named: Any) -> Any:
    """In the place of a kernel, of which only is asked whether it is there."""
    raise NotImplementedError


@lru_cache(maxsize=4096)
def _has_loop(op: Op, operands: tuple[TensorType, ...], results: tuple[TensorType, ...]) -> tuple[bool, bool]:
    return has_loop(NumPyBackend(OneRank()), (op, operands, results))
