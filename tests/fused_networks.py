"""Random networks as GPUs compute them beside the same networks without any fusion.

Each seed writes a network as people do (`tests/written`), which is trained for two steps: on the CPU, operator by
operator; compiled for GPUs, with kernels that g++ compiles; and by the dump of that. Losses, parameters and states must
be the same, but for rounding.
"""

from __future__ import annotations

import linecache
import random
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np

from mspc.compiler.call import describe_call
from mspc.compiler.config import Config
from mspc.compiler.driver import TracedCall, compile_traced, trace_call
from mspc.compiler.rank_graphs import RankGraphs
from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Graph, element_types
from mspc.ir.text.parser import parse
from mspc.ir.text.printer import print_graph
from mspc.ops.collective.one_rank import OneRank
from mspc.ops.op import REGISTRY, load_operators
from mspc.runtime.backend import NumPyBackend
from mspc.runtime.executor import Executor
from mspc.runtime.gpu.executor import GpuExecutor
from tests.stored_attention import has_gradients_of_attention, results_as_stored
from tests.written.network import Network

STEPS = 2
UNFUSED = ("slice_to_rank", "execute")
"""The passes without which no rank's graph runs."""
FLOOR, GROWTH, SHIFTS, SHIFTS_OF_JUMPS = 16.0, 8.0, 2, 8
"""How far results may be apart: so many roundings of their largest element, and so many times what roundings of the
parameters make of them, or what the CPU is away from Float64; parameters are rounded otherwise so many times, and the
CPU is compared with Float64 for each. Where rounding may choose another element, whose gradient is then wholly another,
they are rounded more often: each of two elements that are as large but for rounding is then the largest once."""
BATCH = 10
"""How many networks a process takes at once."""
WRONG, REFUSED, INTERNAL = "differs", "is refused", "internal error"

Arrays = dict[str, np.ndarray]


class Different(Exception):
    """A network's numbers are not those that they should be."""


@dataclass
class Found:
    """The results of some networks. lines: of those that are not as they should be. fused: the operators that only
    fusion makes, and how many there were."""

    count: int = 0
    kinds: Counter[str] = field(default_factory=Counter[str])
    lines: list[str] = field(default_factory=list[str])
    fused: Counter[str] = field(default_factory=Counter[str])


@dataclass
class Program:
    """A script that was read. values: its parameters and constants by name; feeds: its inputs."""

    call: TracedCall
    values: Arrays
    feeds: list[np.ndarray]

    def plain(self) -> Graph:
        """The graph without any fusion."""
        graph = compile_traced(self.call.again(Config())).graph
        return RankGraphs(graph, UNFUSED).executable(0)

    def for_gpus(self) -> Graph:
        return compile_traced(self.call.again(Config(device="GPU"))).rank_graph(0)


def program(text: str, path: Path) -> Program:
    """Reads a script of `Network`, as the file `path`."""
    path.write_text(text, encoding="utf-8")
    linecache.checkcache(str(path))
    names: dict[str, Any] = {"__name__": path.stem}
    exec(compile(text, str(path), "exec"), names)
    call = trace_call(names["step"], describe_call(names["arguments"], []), Config())
    traced = call.traced
    values = {name: np.asarray(array) for name, array in traced.constants.items()}
    values |= {name: parameter.asnumpy() for name, parameter in traced.parameters.items()}
    return Program(call, values, [argument.asnumpy() for argument in names["arguments"]])


# Steps of a graph

def steps_on_cpu(graph: Graph, values: Mapping[str, np.ndarray], feeds: Sequence[np.ndarray]) -> list[Arrays]:
    return _steps(Executor(graph, NumPyBackend(OneRank()), _own(graph, values)), feeds)


def steps_on_gpu(
    graph: Graph, values: Mapping[str, np.ndarray], feeds: Sequence[np.ndarray], device: Any
) -> list[Arrays]:
    return _steps(GpuExecutor(graph, device, _own(graph, values)), feeds)


def _own(graph: Graph, values: Mapping[str, np.ndarray]) -> Arrays:
    """Copies of what a graph stores, in its own element types."""
    stored = [p for p in graph.parameters if p.kind != "input"]
    return {p.name: np.array(values[p.name], p.tensor_type.dtype.numpy) for p in stored}


def _steps(executor: Any, feeds: Sequence[np.ndarray]) -> list[Arrays]:
    """For every step its results, and all parameters behind it, by name. Each step has other floats."""
    found: list[Arrays] = []
    for step in range(STEPS):
        fed = [np.roll(feed, step) if _is_float(feed) else feed for feed in feeds]
        results = executor.run([_as(p, feed) for p, feed in zip(executor.inputs, fed, strict=True)])
        made = {f"result {i} of step {step + 1}": np.asarray(result) for i, result in enumerate(results)}
        stored = [p.name for p in executor.graph.parameters if p.kind == "parameter"]
        made |= {f"{name} behind step {step + 1}": np.array(executor.parameter(name)) for name in stored}
        found.append(made)
    return found


def _as(parameter: Any, feed: np.ndarray) -> np.ndarray:
    return feed.astype(parameter.tensor_type.dtype.numpy)


def _is_float(array: np.ndarray) -> bool:
    return array.dtype.kind == "f" or array.dtype == ml_dtypes.bfloat16


# How far numbers may be apart

class Bounds:
    """The expected results of a network's steps, and the differences that are allowed.

    exact: all in Float64, from the same first values. plain: as the network says, without fusion.
    """

    def __init__(self, network: Network, exact: Program, plain: Program, unfused: Graph) -> None:
        graph = exact.plain()
        values = {**exact.values, **plain.values}
        self.expected = steps_on_cpu(graph, values, plain.feeds)
        self.rounding = _rounding(unfused)
        own = steps_on_cpu(unfused, plain.values, plain.feeds)
        self.apart: list[dict[str, float]] = [{} for _ in self.expected]
        self._may_be(_all_apart(own, self.expected))
        trained = [p for p in graph.parameters if p.trainable]  # not what optimizers count
        generator = np.random.default_rng(0)
        for _ in range(SHIFTS_OF_JUMPS if network.jumps else SHIFTS):
            moved = {**values, **{p.name: self._moved(values[p.name], generator) for p in trained}}
            feeds = [self._moved(feed, generator) for feed in plain.feeds]
            shifted = steps_on_cpu(graph, moved, feeds)
            self._may_be(_all_apart(shifted, self.expected))
            # A value of nothing but rounding (a gradient whose terms cancel) is another number of the same size there.
            self._may_be(_all_apart(steps_on_cpu(unfused, moved, feeds), shifted))

    def _may_be(self, apart: Sequence[Mapping[str, float]]) -> None:
        for known, found in zip(self.apart, apart, strict=True):
            known.update({name: max(known.get(name, 0.0), far) for name, far in found.items()})

    def _moved(self, array: np.ndarray, generator: np.random.Generator) -> np.ndarray:
        """In its own element type."""
        if not _is_float(array):
            return array
        moved = array.astype(np.float64) * (1 + generator.choice((-2, 2), array.shape) * self.rounding)
        return moved.astype(array.dtype)

    def add(self, graph: Graph, values: Mapping[str, np.ndarray], feeds: Sequence[np.ndarray]) -> None:
        """Values that kernels round on purpose in a graph may differ by as much more."""
        if not has_gradients_of_attention(graph):
            return
        exact = steps_on_cpu(graph, values, feeds)
        with results_as_stored():
            stored = steps_on_cpu(graph, values, feeds)
        for known, found in zip(self.apart, _all_apart(stored, exact), strict=True):
            known.update({name: known[name] + far for name, far in found.items()})

    def check(self, steps: Sequence[Arrays], what: str) -> None:
        """Raises Different where numbers are further away."""
        for found, wanted, apart in zip(steps, self.expected, self.apart, strict=True):
            if set(found) != set(wanted):
                raise Different(f"{what}: has {sorted(found)}, not {sorted(wanted)}")
            for name, far in _apart(found, wanted).items():
                largest = 1 + float(np.max(np.abs(wanted[name]), initial=0))
                bound = GROWTH * apart[name] + FLOOR * _eps(found[name].dtype) * largest
                if not far <= bound:
                    raise Different(f"{what}: {name} is {far:.2e} away, {bound:.2e} may be")


def _apart(found: Mapping[str, np.ndarray], wanted: Mapping[str, np.ndarray]) -> dict[str, float]:
    """The largest differences."""
    return {
        name: float(np.max(np.abs(found[name].astype(np.float64) - array.astype(np.float64)), initial=0.0))
        for name, array in wanted.items()
    }


def _all_apart(found: Sequence[Arrays], wanted: Sequence[Arrays]) -> list[dict[str, float]]:
    return [_apart(one, other) for one, other in zip(found, wanted, strict=True)]


def _rounding(graph: Graph) -> float:
    """The rounding of the coarsest element type that a graph computes in."""
    types = {type.dtype.numpy for node in graph.nodes for type in element_types(node.type)}
    return max(map(_eps, types), default=0.0)


def _eps(dtype: Any) -> float:
    """How coarse an element type is, 0 where it holds whole numbers."""
    dtype = np.dtype(dtype)
    return float(ml_dtypes.finfo(dtype).eps) if dtype.kind == "f" or dtype == ml_dtypes.bfloat16 else 0.0


# Networks

def check(seed: int, folder: Path) -> tuple[str, str, Counter[str]]:
    """(what is wrong with a network's steps, "" where nothing is, the message, the operators that fusion made)."""
    fused: Counter[str] = Counter()
    try:
        network = Network(seed)
        found = program(network.text, folder / f"network_{seed}.py")
        exact = found if network.precise else program(network.exact, folder / f"exact_{seed}.py")
        unfused, graph = found.plain(), found.for_gpus()
        fused.update(_made_by_fusion(unfused, graph))
        bounds = Bounds(network, exact, found, unfused)
        bounds.add(graph, found.values, found.feeds)
        bounds.check(steps_on_gpu(graph, found.values, found.feeds, _emulated(folder)), "on the GPU")
        read = parse(print_graph(graph), REGISTRY).main
        bounds.check(steps_on_cpu(read, found.values, found.feeds), "the dump on the CPU")
    except Different as error:
        return WRONG, str(error), fused
    except MspcError as error:
        return REFUSED, error.render(), fused
    except Exception as error:  # the networks are legal: whatever else is raised is a fault
        return INTERNAL, f"{type(error).__name__}: {error}", fused
    return "", "", fused


def _made_by_fusion(unfused: Graph, graph: Graph) -> Iterator[str]:
    """The operators that only the passes for GPUs have made."""
    there = {node.op.name for node in unfused.nodes}
    return (node.op.name for node in graph.nodes if node.op.name not in there)


def check_all(seeds: Sequence[int]) -> Found:
    """`check` of some networks."""
    load_operators()
    found = Found(len(seeds))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for seed in seeds:
            kind, message, fused = check(seed, folder)
            found.fused.update(fused)
            if kind:
                found.kinds[kind] += 1
                found.lines.append(f"seed {seed} {kind}: {' '.join(message.split())[:300]}")
    return found


def _emulated(folder: Path) -> Any:
    from tests.gpu.shared_kernels import SharingGpu  # late: it needs g++

    return SharingGpu(folder, _known_kernels())


@cache
def _known_kernels() -> dict[Any, Any]:
    """Those that this process has compiled; their libraries stay when the files are gone."""
    return {}


def batches(first: int, count: int) -> Iterator[list[int]]:
    """The seeds of `count` networks."""
    generator = random.Random(first)
    seeds = [generator.getrandbits(40) for _ in range(count)]
    return (seeds[i : i + BATCH] for i in range(0, count, BATCH))
