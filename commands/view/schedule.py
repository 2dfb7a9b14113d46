"""The page shows when every node of a rank's program runs and what it takes, as a machine's description predicts."""

from __future__ import annotations

from typing import Any

from mspc.analysis.cost.machine import PRODUCTS, Machine
from mspc.analysis.cost.nodes import moved_bytes, work_of
from mspc.analysis.cost.timeline import StreamTimeline
from mspc.ir.graph import Graph

LARGE = 1e12
"""Amounts at which the rates of the roofline are read: bytes, and floating-point operations."""
DIGITS = 5
"""Digits of a time that the page holds."""


def rounded(number: float) -> float:
    """A number with as many digits as the page holds."""
    return float(f"{number:.{DIGITS}g}")


def schedule(graph: Graph, machine: Machine) -> dict[str, Any]:
    """The predicted step: `begin` and `seconds` of every node (None for views, which do not run), `operations` and
    `moved`, bytes that it reads and writes; sums of the step in seconds."""
    timeline = StreamTimeline(graph, machine)
    spans = [timeline.spans.get(node) for node in graph.nodes]
    return {
        "begin": [None if span is None else rounded(span[0]) for span in spans],
        "seconds": [None if span is None else rounded(span[1]) for span in spans],
        "operations": [work_of(node) for node in graph.nodes],
        "moved": [moved_bytes(node) for node in graph.nodes],
        "total": timeline.total,
        "compute": timeline.compute,
        "communication": timeline.communication,
        "hidden": timeline.hidden,
    }


def machine_facts(machine: Machine) -> dict[str, Any]:
    """What the page says of the machine that times are predicted for. rates: operations per second of products."""
    return {
        "name": machine.name,
        "source": " ".join(machine.source.split()),
        "memory": machine.memory.at(LARGE),
        "rates": {name: rate.at(LARGE) for name, rate in machine.work.get(PRODUCTS, {}).items()},
        "other": machine.other_products.at(LARGE),
        "ranks_per_host": machine.ranks_per_host,
    }
