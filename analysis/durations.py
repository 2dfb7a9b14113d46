"""How long a rank's nodes take on a GPU, roughly: enough to decide what should run beside a collective.

Constants are those measured on H200s joined by NVLink (NCCL 2.27, CUDA 13); other machines differ, but what is decided
by them is right on all: only the order of independent nodes, and the same one on every rank.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

from mspc.ir.graph import Graph, Node, Value, element_types
from mspc.ir.types import TensorType
from mspc.ops.collective.collectives import Collective
from mspc.ops.control.structural import shows

PRODUCTS = {2: 600e12, 4: 300e12, 8: 50e12}
"""Operations per second of matrix products by bytes of an element; Float32 rounds to TF32."""
MEMORY = 3.2e12
"""Bytes per second that an operator reads and writes."""
LAUNCH = 1.5e-6
"""Seconds between two kernels of a CUDA graph."""
LATENCY = 12e-6
"""Seconds of a collective of no bytes."""
LINK = 340e9
"""Bytes per second that a rank sends in a collective."""


def seconds(node: Node) -> float:
    """Time of one node that runs, by itself."""
    if isinstance(node.op, Collective):
        return LATENCY + sent(node) / LINK
    moved = sum(value.type.nbytes for value in node.inputs) + node.type.nbytes
    return LAUNCH + max(moved / MEMORY, _operations(node))


def sent(node: Node) -> float:
    """Bytes that a rank sends in a collective, by ring algorithms."""
    group = len(getattr(node.op, "rank_list", ())) or 2
    operand = sum(value.type.nbytes for value in node.inputs)
    name = node.op.name
    if name == "AllReduce":
        return 2 * (group - 1) / group * operand
    if name == "AllGather":
        return (group - 1) * operand
    if name in ("ReduceScatter", "AlltoAll"):
        return (group - 1) / group * operand
    return operand


def _operations(node: Node) -> float:
    """Seconds on the tensor cores; 0 for what is bound by memory."""
    name = node.op.name
    if "MatMul" in name and len(node.inputs) >= 2:
        x, y = (element_types(value.type)[0] for value in node.inputs[:2])
        out = element_types(node.type)[0]
        # b m k, b k n, b m n: the product of the three sizes is b (b m n k)^2.
        batch = math.prod(out.shape[:-2]) if len(out.shape) > 2 else 1
        count = 2 * math.sqrt(x.size * y.size * out.size / max(batch, 1))
        return count / _rate(x)
    if "FlashAttention" in name:
        types = [element_types(value.type)[0] for value in node.inputs]
        operations: Callable[[Sequence[TensorType]], float] = getattr(node.op, "operations", lambda _: 0.0)
        return operations(types) / _rate(types[0])
    return 0.0


def _rate(type: TensorType) -> float:
    return PRODUCTS.get(type.dtype.itemsize, PRODUCTS[8])


class Timeline:
    """A step of a graph in the order of its nodes, on one stream and on several.

    compute, communication: seconds of the nodes of either kind by themselves. total: seconds of the step with what has
    an attribute `stream` beside the rest, each such stream for itself.
    """

    def __init__(self, graph: Graph) -> None:
        self.compute = self.communication = 0.0
        main = 0.0
        sides: dict[object, float] = {}
        over: dict[Value, float] = {}
        for node in graph.nodes:
            ready = max((over.get(value, 0.0) for value in node.inputs), default=0.0)
            if shows(node):
                over[node] = ready
                continue
            time = seconds(node)
            if isinstance(node.op, Collective):
                self.communication += time
            else:
                self.compute += time
            stream = node.attrs.get("stream")
            if stream:
                over[node] = sides[stream] = max(sides.get(stream, 0.0), main) + time
            else:
                main = max(main, ready) + time
        self.total = max(main, *sides.values()) if sides else main

    @property
    def alone(self) -> float:
        """Seconds of the step with everything one after the other."""
        return self.compute + self.communication

    @property
    def hidden(self) -> float:
        """The part of the communication that costs no time, 0 to 1."""
        return (self.alone - self.total) / self.communication if self.communication else 1.0
