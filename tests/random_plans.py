"""Plans of random networks beside what their files compile to.

Each seed grows a network (`tests/networks.py`) and cuts it in one of the ways of `mspc search`, with the script's
strategies or without them, some within a limit of memory; the plan goes through its file, and the network compiled by
that file must come to the same in every column: time, computation, communication that nothing hides, bytes,
collectives, memory.
"""

from __future__ import annotations

import random
from dataclasses import astuple, dataclass, replace
from functools import cache
from pathlib import Path

from mspc.analysis.cost.nodes import sent_bytes
from mspc.analysis.cost.timeline import StreamTimeline
from mspc.compiler.config import Config, Fed
from mspc.compiler.driver import Compiled, TracedCall, compile_traced
from mspc.compiler.frontend.trace import Traced
from mspc.compiler.program_figures import sent_by_ranks
from mspc.ir.diagnostics import MspcError
from mspc.ir.layout import Layout
from mspc.plans.files.plan_file import write_plan
from mspc.runtime.memory_plan import plan_memory
from mspc.search.calibration.machine_file import machine_of
from mspc.search.plans.alternatives import WAYS, Alternative, terms_for
from tests.networks import RandomNetwork, usable

MACHINE = machine_of("")
OWN = "as configured"
REFUSED = "refused"
"""In place of a difference: the network cannot be cut in that way, so no plan is printed."""


@dataclass(frozen=True)
class Figures:
    """The columns of a search's table."""

    step: float
    compute: float
    nbytes: float
    mean_nbytes: float
    collectives: int
    memory: int

    @classmethod
    def of(cls, compiled: Compiled) -> Figures:
        """The cost of a program."""
        sent = sent_by_ranks(compiled)
        graph = compiled.rank_graph(sent.rank)
        timed = StreamTimeline(graph, MACHINE)
        collectives = sum(sent_bytes(node) > 0 for node in graph.nodes)
        return cls(timed.total, timed.compute, sent.most, sent.mean, collectives, plan_memory(graph).peak)


_names = cache(usable)


def call_of(seed: int, config: Config) -> TracedCall:
    """A network as the front end would have read it."""
    network = RandomNetwork(seed, _names())
    inputs = [p for p in network.graph.parameters if p.kind == "input"]
    fed = [Fed(p.tensor_type, p.tensor_type, p.layout) for p in inputs if isinstance(p.layout, Layout)]
    config = replace(config, ranks=network.ranks)
    network.graph.attrs = {}
    return TracedCall(config, Traced(network.graph, {}, {}, None), fed)


def drawn(seed: int) -> tuple[Alternative, Config]:
    """The way in which a network is cut, and what it is compiled with."""
    rng = random.Random(seed ^ 0xA5)
    way = rng.choice([*WAYS, WAYS[0], Alternative(OWN, {"mode": rng.choice(["semi_auto_parallel", "auto_parallel"])})])
    way = replace(way, free=way.free or rng.random() < 0.4)
    memory = rng.choice([0, 0, 20_000, 60_000]) if way is WAYS[0] or way.name == WAYS[0].name else 0
    config = Config(dataset_strategy="full_batch", search_terms=replace(terms_for(MACHINE), memory=memory))
    return way, replace(config, parallel_optimizer=rng.random() < 0.3, parallel_optimizer_threshold=0)


def check(seed: int, folder: Path) -> str:
    """How what a plan's file compiles to is other than the plan; "" where it is the same, and `REFUSED`."""
    way, config = drawn(seed)
    call = call_of(seed, replace(config, **way.settings))
    if way.free:
        for node in call.traced.graph.nodes:
            node.in_strategy = node.out_strategy = None
    try:
        compiled = compile_traced(call)
    except MspcError:
        return REFUSED
    file = folder / "plan.toml"
    write_plan(file, compiled.strategies.plan(compiled.config.ranks))
    by_file = replace(config, mode="auto_parallel", strategies_from=str(file))
    try:
        again = compile_traced(call_of(seed, by_file))
    except MspcError as error:
        return f"{way.name}: {error.render()}"
    first, second = Figures.of(compiled), Figures.of(again)
    return "" if astuple(first) == astuple(second) else f"{way.name}: {first} is not {second}"
