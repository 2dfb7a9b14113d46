"""What a step gains where collectives go in pieces beside the products next to them, by the rates of machines: a
prediction, nothing is run.

    python -m benchmarks.pieces [--only 70B] [--layers 8]

Networks of this folder with tensor parallel layers, compiled for GPUs without pieces and with them (the setting
`computation_communication_fusion_level`, 0 and 3). For each machine: milliseconds of a layer, forward and backward, as
steps of so many layers and of half of them differ; the part of a step's communication that hides; and the memory of
a step's values. `slow` is an H200 whose link has 50 GB/s, as between hosts. What is chosen is the same for all of them.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from mspc.analysis.cost.known_machines import A100, H100, H200
from mspc.analysis.cost.machine import Link, Rate
from mspc.analysis.cost.timeline import Timeline
from mspc.api.state import Session
from mspc.compiler.driver import compile_call
from mspc.engine.capture import capture
from mspc.ir.graph import Graph
from mspc.ops.collective.base import Collective
from mspc.output.programs import config_of
from mspc.runtime.memory_plan import plan_memory

FOLDER = Path(__file__).resolve().parent / "networks"
MACHINES = MappingProxyType({
    "H200": H200, "H100": H100, "A100": A100, "slow": replace(H200, link=Link(12e-6, Rate.of(50e9))),
})  # fmt: skip
MILLI, GIB = 1e3, 1 << 30


@dataclass(frozen=True)
class Network:
    """A network. arguments: of its script, "{layers}" among them. ranks: that run it."""

    script: str
    arguments: str
    ranks: int


NETWORKS: Mapping[str, Network] = MappingProxyType({
    "LLaMA 3 70B, tensor 8, sequence": Network(
        "long_llama.py", "{layers} 8192 64 8 28672 128256 1 1 8 8192", 8),
    "the same, 4k words": Network("long_llama.py", "{layers} 8192 64 8 28672 128256 1 1 8 4096", 8),
    "LLaMA 3 8B, tensor 8, sequence": Network("long_llama.py", "{layers} 4096 32 8 14336 128256 1 1 8 8192", 8),
    "LLaMA 3 8B, tensor 4, sequence": Network("long_llama.py", "{layers} 4096 32 8 14336 128256 1 1 4 8192", 4),
    "LLaMA 3 8B, tensor 2, sequence": Network("long_llama.py", "{layers} 4096 32 8 14336 128256 1 1 2 8192", 2),
    "layers of width 8192, tensor 8, sums": Network("layers.py", "{layers} 8192 4 2048 64 1 8 bfloat16", 8),
    "layers of width 4096, data 2 x tensor 4, sums": Network("layers.py", "{layers} 4096 4 2048 32 2 4 bfloat16", 8),
    "layers of width 1024, data 2 x tensor 2, sums": Network("layers.py", "{layers} 1024 16 512 16 2 2 bfloat16", 4),
})  # fmt: skip


def rank_graph(network: Network, layers: int, level: int) -> Graph:
    """The program of rank 0."""
    arguments = network.arguments.format(layers=layers).split()
    captured = capture(FOLDER / network.script, arguments, Session.of_rank(0, network.ranks))
    config = replace(
        config_of(captured, network.ranks), device="GPU", computation_communication_fusion_level=level
    )  # type: ignore[call-arg]  # a setting
    return compile_call(captured.target, captured.args, config).rank_graph(0)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="", help="networks whose names have this in them")
    parser.add_argument("--layers", type=int, default=8, help="an even number")
    given = parser.parse_args()
    print("| network | machine | a layer | with pieces | | hidden | with pieces | pieces | memory, GiB |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, network in NETWORKS.items():
        if given.only.lower() not in name.lower():
            continue
        graphs = {n: [rank_graph(network, n, level) for level in (0, 3)] for n in (given.layers // 2, given.layers)}
        few, many = graphs.values()
        pieces = sum("piece" in node.attrs and isinstance(node.op, Collective) for node in many[1].nodes)
        memory = [plan_memory(graph).arena / GIB for graph in many]
        for machine, rates in MACHINES.items():
            times = [Timeline(graph, rates) for graph in many]
            layer = [
                (time.total - Timeline(graph, rates).total) / (given.layers - given.layers // 2)
                for time, graph in zip(times, few, strict=True)
            ]
            print(
                f"| {name} | {machine} | {layer[0] * MILLI:.2f} ms | {layer[1] * MILLI:.2f} ms "
                f"| {layer[1] / layer[0] - 1:+.1%} | {times[0].hidden:.0%} | {times[1].hidden:.0%} | {pieces} "
                f"| {memory[0]:.2f}, {memory[1]:.2f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()
