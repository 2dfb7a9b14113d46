"""Compares a loop over micro-batches on one device with the parts of the batch one after the other, as a script that
knows no stages adds them up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from functools import cache, partial

from mspc.ir.graph import Graph, Node
from mspc.verify.difference import ComparedValue
from mspc.verify.one_device import OneDevice, Values
from mspc.verify.same_values import Comparison


def compare_parts(
    parts: Graph, device: OneDevice, expected: Sequence[Sequence[Values]]
) -> tuple[list[ComparedValue], str]:
    """(rows of what differs, why nothing is compared).

    Args:
        parts: the graph without a loop. device: with it. expected: what that computed.
    """
    draws = next((node for graph in parts.graphs() for node in graph.nodes if _draws(node)), None)
    if draws is not None:
        return [], f"{draws.label} draws other random numbers where parts of the batch have operators of their own"
    alone = replace(device, graph=parts)
    wanted = alone.run()
    noise = cache(partial(alone.noise, wanted))
    comparison = Comparison(parts, device.graph, 1, device.weights, wanted, noise, False, device.mark)
    rows = comparison.results(expected) + comparison.parameters(expected)
    return [row for row in rows if not row.same], ""


def _draws(node: Node) -> bool:
    """Whether an operator may draw random numbers: all that do have seeds."""
    seeded = any(field.name.lower().startswith("seed") for field in fields(node.op))
    return seeded and getattr(node.op, "keep_prob", 0.0) < 1.0
