"""Compares one device that runs the ranks' network with the reference, which no pass but `grad` has changed.

The ranks are compared operator by operator with one device that runs the same passes as they do. An error in such a
pass is on both sides; it shows here.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cache, partial

from mspc.ir.graph import Graph
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
