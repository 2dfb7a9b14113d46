"""How long a search takes on large networks: LLaMA-like ones of 8 and 405 billion parameters, and how it grows.

    python benchmarks/search.py [--largest] [--memory 80GB] [--only 8B] [--stages]

Prints for every network the seconds of tracing and differentiation, of the plan and of the solver, the bytes that the
plan sends, and its gap to the solver's lower bound. Nothing is computed and no weight is allocated. With a memory
limit, collectives, copies and recomputation have the rates of an H200. With `--stages` the same networks, with
their layers as one graph, are divided into stages: wall and CPU seconds from the built network to the complete table,
and the plans.
"""

from __future__ import annotations

import argparse
import os
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from mspc import Parameter, Tensor, lazy_inline, nn, ops, set_auto_parallel_context
from mspc.commands.options import size_of
from mspc.common.initializer import initializer
from mspc.compiler.call import describe_call
from mspc.compiler.config import Config
from mspc.compiler.driver import trace_call
from mspc.engine.capture import CapturedCall
from mspc.engine.garbage import collect_rarely
from mspc.ir.types import INT32, TensorType
from mspc.mindspore_api.context import freeze
from mspc.passes.base import find_pass
from mspc.search.calibration.machine_file import machine_of
from mspc.search.layouts import cheapest
from mspc.search.plans.alternatives import PlanRequest, terms_for
from mspc.search.stages.launch import search_in_stages
from mspc.search.stages.network import AskedStages

ROWS, SEQUENCE = 64, 4096


@dataclass(frozen=True)
class Size:
    """A network: layers, width, heads, heads of keys, hidden width, words; ranks to shard it for. step: by how much the
    hidden width grows from layer to layer, so that none is like another."""

    layers: int
    width: int
    heads: int
    groups: int
    hidden: int
    words: int
    ranks: int
    rows: int = ROWS
    step: int = 0


SIZES = {
    "8B, 64 ranks": Size(32, 4096, 32, 8, 14336, 128256, 64),
    "24 layers, 8 ranks": Size(24, 1024, 16, 16, 4096, 32000, 8),
    "96 layers, 8 ranks": Size(96, 1024, 16, 16, 4096, 32000, 8),
    "24 unequal layers, 8 ranks": Size(24, 1024, 16, 16, 4096, 32000, 8, step=64),
    "96 unequal layers, 8 ranks": Size(96, 1024, 16, 16, 4096, 32000, 8, step=64),
}
LARGEST = {"405B, 8192 ranks": Size(126, 16384, 128, 8, 53248, 128256, 8192, 8192)}


STAGES = {"8B, 64 ranks": ((2, 4, 8), 8), "405B, 8192 ranks": ((16,), 32)}
"""Numbers of stages that are tried, and of micro-batches."""


def weight(*shape: int) -> Parameter:
    return Parameter(initializer("normal", list(shape)))


class Norm(nn.Cell):
    def __init__(self, size: Size) -> None:
        super().__init__()
        self.weight = Parameter(initializer("ones", [size.width]))
        self.norm = ops.RmsNorm(1e-5)

    def construct(self, x: Tensor) -> Tensor:
        return self.norm(x, self.weight)[0]


class Layer(nn.Cell):
    def __init__(self, size: Size) -> None:
        super().__init__()
        depth = size.width // size.heads
        self.depth, self.heads, self.groups = depth, size.heads, size.groups
        self.norm1, self.norm2 = Norm(size), Norm(size)
        self.wq, self.wo = weight(size.width, size.width), weight(size.width, size.width)
        self.wk, self.wv = weight(size.width, depth * size.groups), weight(size.width, depth * size.groups)
        self.gate, self.up = weight(size.width, size.hidden), weight(size.width, size.hidden)
        self.down = weight(size.hidden, size.width)
        self.shared = size.heads // size.groups
        self.scores, self.mix = ops.BatchMatMul(transpose_b=True), ops.BatchMatMul()

    def split(self, x: Tensor, heads: int) -> Tensor:
        rows, sequence = x.shape[0], x.shape[1]
        return ops.transpose(ops.reshape(x, (rows, sequence, heads, self.depth)), (0, 2, 1, 3))

    def construct(self, x: Tensor) -> Tensor:
        rows, sequence, width = x.shape
        y = self.norm1(x)
        query = self.split(ops.matmul(y, self.wq), self.heads)
        key, value = (self.split(ops.matmul(y, w), self.groups) for w in (self.wk, self.wv))
        query = ops.reshape(query, (rows, self.groups, self.shared * sequence, self.depth))
        scores = ops.softmax(self.scores(query, key) * (self.depth**-0.5), -1)
        mixed = ops.reshape(self.mix(scores, value), (rows, self.heads, sequence, self.depth))
        mixed = ops.reshape(ops.transpose(mixed, (0, 2, 1, 3)), (rows, sequence, width))
        x = x + ops.matmul(mixed, self.wo)
        y = self.norm2(x)
        return x + ops.matmul(ops.silu(ops.matmul(y, self.gate)) * ops.matmul(y, self.up), self.down)


class FoldedLayer(Layer):
    """One that is one graph with those that are equal."""

    @lazy_inline
    def __init__(self, size: Size) -> None:
        super().__init__(size)


class Network(nn.Cell):
    def __init__(self, size: Size, layer: type[Layer] = Layer) -> None:
        super().__init__()
        self.table = weight(size.words, size.width)
        wider = [replace(size, hidden=size.hidden + size.step * i) for i in range(size.layers)]
        self.layers = nn.CellList([layer(each) for each in wider])
        self.norm = Norm(size)
        self.head = weight(size.width, size.words)

    def construct(self, ids: Tensor) -> Tensor:
        x = ops.gather(self.table, ids, 0)
        for layer in self.layers:
            x = layer(x)
        return ops.reduce_mean(ops.matmul(self.norm(x), self.head))


def measure(name: str, size: Size, memory: int = 0) -> None:
    """Search a plan, within so many bytes on a rank where they are not 0, and print what it took."""
    noted: dict[str, Any] = {}
    place = cheapest.place_forward

    def timed(search: Any) -> Any:
        begin = time.perf_counter()
        found = place(search)
        noted["search"], noted["found"] = time.perf_counter() - begin, found
        return found

    cheapest.place_forward = timed
    network = Network(size)
    step = nn.TrainOneStepCell(network, nn.Adam(network.trainable_params()))
    config = Config(
        ranks=size.ranks, mode="auto_parallel", dataset_strategy="full_batch", search_mode="dynamic_programming"
    )
    begin = time.perf_counter()
    call = trace_call(step, describe_call([TensorType(INT32, (size.rows, SEQUENCE))], []), config)
    graph = call.traced.graph
    graph.attrs |= {"mode": config.mode, "ranks": config.ranks, "outputs": "whole"} | config.attributes()
    if memory:
        graph.attrs |= replace(terms_for(machine_of("h200")), memory=memory).attributes()
    for parameter, fed in zip([p for p in graph.parameters if p.kind == "input"], call.fed, strict=True):
        parameter.layout = fed.layout
    for each in ("decompose", "grad", "simplify", "check_strategies"):
        graph, _ = find_pass(each).apply(graph)
    ready = time.perf_counter()
    find_pass("search_sharding").apply(graph)
    placed = time.perf_counter()
    cheapest.place_forward = place
    found = noted["found"].assignment
    gap = 1 - found.proven / found.cost
    held = graph.attrs.get("search_held")
    print(
        f"{name}: tracing {ready - begin:.2f} s, plan {placed - ready:.2f} s (solver {noted['search']:.2f} s); "
        f"{found.cost / 1e9:.3f} GB sent per rank, gap {gap:.2%}, mesh {noted['found'].mesh}"
        + (f", {held / 1e9:.1f} GB of memory" if held else "")
    )


def measure_stages(name: str, size: Size, memory: int = 0) -> None:
    """Search stages of a network, and print what it took."""
    stages, micro_batches = STAGES[name]
    network = Network(size, FoldedLayer)
    cell = nn.PipelineCell(network, micro_batches)
    step = nn.TrainOneStepCell(cell, nn.Adam(network.trainable_params()))
    set_auto_parallel_context(parallel_mode="auto_parallel", full_batch=True)
    captured = CapturedCall(
        step, (TensorType(INT32, (size.rows, SEQUENCE)),), freeze(), Path(__file__), global_types=True
    )  # fmt: skip
    begin, processor = time.perf_counter(), _processor()
    asked = PlanRequest(size.ranks, machine_of("h200"), memory=memory)
    plans = search_in_stages(captured, asked, AskedStages(stages), lambda _: None)
    took, own = time.perf_counter() - begin, _processor() - processor
    for row in plans.plans:
        told = f"{row.schedule} in {row.stages} stages, a step of {row.step:.3f} s, {row.memory / 1e9:.1f} GB"
        print(f"    {row.name}: {told}")
    print(f"{name}: {took:.2f} s, {own:.2f} s of CPU, gap {plans.gap:.1%}")


def _processor() -> float:
    """Seconds of processor of this process and of those that it has forked."""
    return sum(os.times()[:4])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--largest", action="store_true", help="the network of 405 billion parameters, too")
    parser.add_argument("--memory", metavar="SIZE", help="of a rank")
    parser.add_argument("--only", metavar="NAME", default="", help="networks whose names have this in them")
    parser.add_argument("--stages", action="store_true", help="search stages, too")
    given = parser.parse_args()
    collect_rarely()  # as the command does
    sizes = SIZES | (LARGEST if given.largest else {})
    for name, size in sizes.items():
        if given.only in name and (not given.stages or name in STAGES):
            memory = size_of(given.memory, "--memory") if given.memory else 0
            (measure_stages if given.stages else measure)(name, size, memory)


if __name__ == "__main__":
    main()
