"""What running collectives beside computation saves, by the cost model of the compiler: a prediction, nothing is run.

    python benchmarks/schedule.py [--layers N --width N --batch N --sequence N --heads N --data N --tensor N]

A transformer's training step on one rank, in both precisions: seconds with everything one after the other, with
collectives on a stream of their own in the order of the program, and in the order that the compiler chooses; the part
of the communication that costs no time; the memory of a step in both orders. `analysis/machine.py` has the constants.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from mspc.analysis.cost.nodes import seconds
from mspc.analysis.cost.timeline import Timeline
from mspc.api.state import Session
from mspc.compiler.driver import Compiled, compile_call
from mspc.compiler.pipeline import PER_RANK
from mspc.engine.capture import capture
from mspc.ir.graph import Graph
from mspc.ops.collective.base import Collective
from mspc.output.programs import config_of
from mspc.passes.base import find_pass, run_passes
from mspc.runtime.memory_plan import plan_memory

SCRIPT = Path(__file__).resolve().parent / "networks" / "layers.py"
SCHEDULE = "schedule_communication"


def rank_graph(compiled: Compiled, *, scheduled: bool) -> Graph:
    """Rank 0's graph as it would run."""
    names = [name for name in PER_RANK[1:-1] if name != SCHEDULE] + [SCHEDULE] * scheduled + [PER_RANK[-1]]
    return run_passes(compiled.graph, [find_pass("slice_to_rank", {"rank": 0}), *map(find_pass, names)])


def row(what: str, graph: Graph, timeline: Timeline, total: float) -> None:
    plan = plan_memory(graph)
    hidden = (timeline.alone - total) / timeline.communication if timeline.communication else 1.0
    print(
        f"  {what:34} {total * 1e3:7.2f} ms   {hidden:6.1%} of communication hidden   "
        f"arena {plan.arena / 1e6:7.1f} MB ({plan.arena / max(1, plan.lower_bound):.3f} x the most alive)"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    sizes = {"layers": 12, "width": 1024, "batch": 16, "sequence": 512, "heads": 16, "data": 2, "tensor": 2}
    for name, size in sizes.items():
        parser.add_argument(f"--{name}", type=int, default=size)
    options = vars(parser.parse_args())
    ranks = options["data"] * options["tensor"]
    for dtype in ("float32", "bfloat16"):
        captured = capture(SCRIPT, [*(str(options[name]) for name in sizes), dtype], Session.of_rank(0, ranks))
        compiled = compile_call(captured.target, captured.args, config_of(captured, ranks))
        plain, beside = rank_graph(compiled, scheduled=False), rank_graph(compiled, scheduled=True)
        alone = Timeline(plain)
        print(
            f"{dtype}: computation {alone.compute * 1e3:.2f} ms, communication {alone.communication * 1e3:.2f} ms "
            f"in {sum(isinstance(node.op, Collective) for node in plain.nodes)} collectives"
        )
        row("one stream", plain, alone, alone.alone)
        for node in plain.nodes:
            if isinstance(node.op, Collective):
                node.attrs["stream"] = "communication"
        row("two streams, order of the program", plain, alone, Timeline(plain).total)
        row("two streams, scheduled", beside, alone, Timeline(beside).total)
        forward = sum(
            seconds(node) for node in plain.nodes if isinstance(node.op, Collective) and node.phase == "forward"
        )
        floor = (alone.compute + forward) * 1e3
        print(f"  {'computation + forward reductions':34} {floor:7.2f} ms: no order does better")


if __name__ == "__main__":
    main()
