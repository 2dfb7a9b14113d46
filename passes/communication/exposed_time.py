"""How long a rank's computation stands still for each collective, in the order in which nodes are to be launched."""

from __future__ import annotations

from mspc.analysis.cost.machine import Machine
from mspc.ir.graph import Graph, Node
from mspc.passes.communication.schedule_communication import ScheduleFacts, launch_order


def exposed_seconds(graph: Graph, machine: Machine) -> dict[Node, float]:
    """Seconds on a machine in which the main stream waits for a collective; those for which it never does are left out.

    Collectives that are apart, as most sums of gradients, have a stream of their own.
    """
    facts = ScheduleFacts(graph, machine)
    main = 0.0
    sides = [0.0, 0.0]
    over = [0.0] * len(facts.nodes)
    cause: list[int | None] = [None] * len(facts.nodes)  # the collective that a view shows
    found: dict[Node, float] = {}
    for i in launch_order(facts):
        if facts.is_collective[i] and not facts.nodes[i].regions:
            apart = facts.apart[i]
            over[i] = sides[apart] = max(sides[apart], main) + facts.costs[i]
            cause[i] = i
            continue
        last = max(facts.operands[i], key=over.__getitem__, default=None)
        ready = 0.0 if last is None else over[last]
        if facts.is_view[i]:
            over[i], cause[i] = ready, None if last is None else cause[last]
            continue
        awaited = None if last is None else cause[last]
        if ready > main and awaited is not None:
            node = facts.nodes[awaited]
            found[node] = found.get(node, 0.0) + ready - main
        main = max(main, ready) + facts.costs[i]
        over[i] = main
    return found
