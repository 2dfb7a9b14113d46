"""Compares one device that runs the ranks' network with the reference, which no pass but `grad` has changed.

The ranks are compared operator by operator with one device that runs the same passes as they do. An error in such a
pass is on both sides; it shows here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields, replace
from functools import cache, partial

from mspc.ir.graph import Graph, Node
from mspc.ops.control.regions import Scan
from mspc.verify.difference import ComparedValue
from mspc.verify.one_device import OneDevice, Values
from mspc.verify.same_values import Comparison


def compare_with_reference(
    reference: OneDevice, wanted: Sequence[Sequence[Values]], passed: Graph, expected: Sequence[Sequence[Values]]
) -> list[ComparedValue]:
    """Return the rows of all values that differ.

    Args:
        reference: one device with the reference. wanted: the values that it computes. passed, expected: the same of
            one device after the passes.
    """
    noise = cache(partial(reference.noise, wanted))
    own = len(reference.feeds) > 1
    comparison = Comparison(reference.graph, passed, 1, reference.weights, wanted, noise, own, reference.mark)
    rows = comparison.results(expected) + comparison.parameters(expected)
    return [replace(row, kind=f"reference {row.kind}") for row in rows if not row.same]


def has_micro_batches(graph: Graph) -> bool:
    """Whether the graph has a loop over micro-batches."""
    return any(isinstance(node.op, Scan) and node.op.micro_batches for node in graph.nodes)


def reason_not_comparable(graph: Graph) -> str:
    """Say why the parts of a batch, one after the other, give other values than a loop over them; "" if they do not."""
    draws = next((node for each in graph.graphs() for node in each.nodes if _draws(node)), None)
    if draws is None:
        return ""
    return f"{draws.label} draws other random numbers if parts of the batch have operators of their own"


def _draws(node: Node) -> bool:
    """Whether an operator may draw random numbers: all that do have seeds. Those with `keep_prob` draw none at 1."""
    seeded = any(field.name.lower().startswith("seed") for field in fields(node.op))
    return seeded and getattr(node.op, "keep_prob", None) != 1.0
