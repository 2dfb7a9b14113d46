"""Training steps of random networks of 2 to 24 ranks beside one device, in float64.

Graphs are checked behind every pass, as in all tests."""

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import numpy as np

from mspc.compiler.pipeline import rank_passes
from mspc.compiler.rank_graphs import rank_graphs
from mspc.passes.base import parse_passes, run_passes
from tests.graphs import Graph, MspcError
from tests.interpret import Apart, same, steps_global, steps_on_ranks
from tests.networks import GPU_PASSES, PASSES, RandomNetwork

TOLERANCE = 1e-12
GROWTH = 8.0
"""How many times what rounding errors of its parameters make of a network it may be apart beside."""
STEPS = 2
BATCH = 20
"""How many networks a process takes at once."""
WRONG, REFUSED, INTERNAL = "differs", "is refused", "internal error"


@dataclass
class Found:
    """The results of some networks. lines: of those that are not as they should be; operators: all that ran."""

    count: int = 0
    kinds: Counter[str] = field(default_factory=Counter[str])
    lines: list[str] = field(default_factory=list[str])
    operators: set[str] = field(default_factory=set[str])


def check(
    seed: int, grown: Callable[[int], RandomNetwork], steps: int = STEPS, device: str = "CPU"
) -> tuple[str, str, set[str]]:
    """(the error of a network's steps, "" if there is none, the message, the operators that ran). grown: the
    network of a seed. device: whose passes its graphs go through."""
    operators: set[str] = set()
    try:
        network = grown(seed)
        feeds = feeds_of(network, steps)
        ready = run_passes(grown(seed).graph, parse_passes(GPU_PASSES if device == "GPU" else PASSES))
        expected = steps_global(network.graph, feeds)
        operators = names_in(network.graph) | names_in(ready)
        if device == "GPU":
            operators |= names_in(rank_graphs(ready, rank_passes(device)).executable(0))
        found = steps_on_ranks(ready, feeds, rank_passes(device)[1:])
    except Apart as error:
        return WRONG, str(error), operators
    except MspcError as error:
        return REFUSED, error.render(), operators
    except Exception as error:  # the networks are legal: whatever else is raised is a fault
        return INTERNAL, f"{type(error).__name__}: {error}", operators
    message = difference(found, expected, TOLERANCE)
    if message:
        message = difference(found, expected, TOLERANCE + GROWTH * spread(seed, grown, feeds, expected))
    return (WRONG if message else ""), message, operators


def difference(found: Sequence[list[np.ndarray]], expected: Sequence[list[np.ndarray]], tolerance: float) -> str:
    """How the steps differ; "" where they are the same."""
    try:
        for left, right in zip(found, expected, strict=True):
            same(left, right, tolerance)
    except AssertionError as error:
        return str(error)
    return ""


def spread(
    seed: int, grown: Callable[[int], RandomNetwork], feeds: Sequence[dict[str, np.ndarray]],
    expected: Sequence[list[np.ndarray]],
) -> float:  # fmt: skip
    """How far rounding errors of its parameters move what one device computes: that some network divides by what is
    nearly nothing makes no rank wrong."""
    generator = np.random.default_rng(seed)

    def moved(array: np.ndarray) -> np.ndarray:
        errors = generator.choice([-4, 4], array.shape) * np.finfo(np.float64).eps
        return np.asarray(array * (1 + errors)) if array.dtype == np.float64 else array

    shifted = [{name: moved(array) for name, array in feed.items()} for feed in feeds]
    found = steps_global(grown(seed).graph, shifted)
    pairs = [pair for left, right in zip(found, expected, strict=True) for pair in zip(left, right, strict=True)]
    return max(
        (float(np.max(np.abs(a - b) / (1 + np.abs(b)), initial=0.0)) for a, b in pairs if a.dtype == np.float64),
        default=0.0,
    )


def feeds_of(network: RandomNetwork, steps: int) -> list[dict[str, np.ndarray]]:
    """The values of all parameters, for each step other floats of the inputs."""
    feeds = [network.feeds]
    floats = [p.name for p in network.graph.parameters if p.kind == "input" and p.tensor_type.dtype.is_float]
    for step in range(1, steps):
        feeds.append({**network.feeds, **{name: np.roll(network.feeds[name], step) for name in floats}})
    return feeds


def names_in(graph: Graph) -> set[str]:
    """The operators of a graph."""
    return {node.op.name for node in graph.nodes}


def check_all(
    seeds: Sequence[int], grown: Callable[[int], RandomNetwork], steps: int = STEPS, device: str = "CPU"
) -> Found:
    """`check` of some networks."""
    found = Found(len(seeds))
    for seed in seeds:
        kind, message, operators = check(seed, grown, steps, device)
        found.operators |= operators
        if kind:
            found.kinds[kind] += 1
            found.lines.append(f"seed {seed} {kind}: {' '.join(message.split())[:300]}")
    return found


def batches(first: int, count: int) -> Iterator[list[int]]:
    """The seeds of `count` networks."""
    generator = random.Random(first)
    seeds = [generator.getrandbits(48) for _ in range(count)]
    return (seeds[i : i + BATCH] for i in range(0, count, BATCH))
