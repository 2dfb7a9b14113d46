"""One program of compare.py: a network in one framework, which takes steps when it is told to.

    python -m benchmarks.gpu.networks.program NETWORK PEER --size cpu --device cpu --dtype f32 [--nothing-dropped]

With `--data D --tensor T --stages S` it is one of as many ranks, each with a GPU of its own and its part of the batch;
the first one reads and prints, and JAX has one process for all. Stages are for mspc's program only.

It reads lines. A number N takes N steps and prints a line of JSON: their seconds by the clock and of the processor (all
threads), both until the device has done its work, and the last loss. The last line, `end`, prints the most memory
that it had. Anything that a framework prints goes to standard error.
"""

from __future__ import annotations

import argparse
import hashlib
import importlib
import json
import os
import resource
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from benchmarks.gpu.networks.sizes import NETWORKS, Optimizer, sizes_of

PEERS = {"mspc": "mspc", "torch": "torch", "torch.compile": "torch", "jax": "jax"}
"""The framework in which each peer is written."""


class Ranks(NamedTuple):
    """The number of ranks that share the batch, of those that share each layer, and of stages that share the layers."""

    data: int = 1
    tensor: int = 1
    stages: int = 1

    @property
    def count(self) -> int:
        return self.data * self.tensor * self.stages


ONE_RANK = Ranks()


def next_line() -> str:
    """Return the next line of a rank's input."""
    return sys.stdin.readline()


@dataclass(frozen=True)
class Task:
    """The input from which a framework makes a training step. `device` is "gpu" or "cpu", `dtype` "bf16", "tf32" or
    "f32", `mode` that of torch.compile, or "" for none. Stages work on `micro_batches` in the order of `schedule`."""

    network: str
    sizes: Any
    data: tuple[Any, ...]
    optimizer: Optimizer
    device: str
    dtype: str
    mode: str
    ranks: Ranks = ONE_RANK
    micro_batches: int = 1
    schedule: str = "1f1b"


class Program(NamedTuple):
    """`step()` starts a step and gives its loss, `value(loss)` reads it, `wait()` waits for the device, `peak()` is the
    most bytes that the device held. `parameters` are their names and shapes. `line()` is what the first rank is told;
    `speaks`: whether this is the first."""

    step: Callable[[], Any]
    value: Callable[[Any], float]
    wait: Callable[[], None]
    peak: Callable[[], int]
    parameters: dict[str, tuple[int, ...]]
    line: Callable[[], str] = next_line
    speaks: bool = True


def resident() -> int:
    """The most bytes that this process had in memory."""
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def digest(parameters: dict[str, tuple[int, ...]]) -> str:
    """Return a digest that is equal if names and shapes are."""
    text = "\n".join(f"{name} {tuple(map(int, shape))}" for name, shape in sorted(parameters.items()))
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def serve(program: Program, out: Any) -> None:
    """Answer every line that the first rank is told."""
    while line := program.line():
        if line.strip() == "end":
            if program.speaks:
                print(json.dumps({"peak": program.peak(), "resident": resident()}), file=out, flush=True)
            return
        steps, loss = int(line), None
        program.wait()
        clock, processor = time.perf_counter(), time.process_time()
        for _ in range(steps):
            loss = program.step()
        program.wait()
        clock, processor = time.perf_counter() - clock, time.process_time() - processor
        said = {"seconds": clock, "processor": processor, "loss": program.value(loss)}
        if program.speaks:
            print(json.dumps({**said, "parameters": digest(program.parameters)}), file=out, flush=True)


def main() -> None:
    """Build the network and serve."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("network", choices=NETWORKS)
    parser.add_argument("peer", choices=PEERS)
    parser.add_argument("--size", choices=("gpu", "cpu"), required=True)
    parser.add_argument("--device", choices=("gpu", "cpu"), required=True)
    parser.add_argument("--dtype", choices=("bf16", "tf32", "f32"), required=True)
    parser.add_argument("--mode", default="default", help="of torch.compile")
    parser.add_argument("--data", type=int, default=1, help="ranks that share the batch")
    parser.add_argument("--tensor", type=int, default=1, help="ranks that share each layer")
    parser.add_argument("--stages", type=int, default=1, help="stages that share the layers")
    parser.add_argument("--micro-batches", type=int, default=1, help="of the stages")
    parser.add_argument("--schedule", default="1f1b", help="of the stages")
    parser.add_argument("--nothing-dropped", action="store_true", help="dropout and dropped paths with rates of zero")
    options = parser.parse_args()
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    network, sizes = sizes_of(options.network, options.size, not options.nothing_dropped)
    mode = options.mode if options.peer == "torch.compile" else ""
    task = Task(
        options.network, sizes, network.data(sizes), network.optimizer, options.device, options.dtype, mode,
        Ranks(options.data, options.tensor, options.stages), options.micro_batches, options.schedule,
    )  # fmt: skip
    framework = importlib.import_module(f"benchmarks.gpu.networks.steps_in_{PEERS[options.peer]}")
    serve(framework.built(task), out)


if __name__ == "__main__":
    main()
