"""Finds what a network computes of which a machine has no rate, so that the rate of another element type stands in.

Kinds of work take the rates of those that they are like, which are near; the products of another element type may be
ten times as fast.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from mspc.analysis.cost.kinds import kind_of_work
from mspc.analysis.cost.known_machines import KNOWN_MACHINES
from mspc.analysis.cost.machine import ATTENTION, CONVOLUTIONS, LIKE, PRODUCTS, TF32, UNROUNDED, Machine
from mspc.analysis.cost.nodes import work_of
from mspc.ir.graph import Graph, operand_types
from mspc.ir.late_dataclass import dataclass


@dataclass(frozen=True)
class MissingRate:
    """A kind of work, of all that are told apart by their forms, on an element type: `products` of `Float32`, or of
    `TF32`, as rates are called."""

    kind: str
    dtype: str


def missing_rates(graphs: Iterable[Graph], machine: Machine) -> tuple[MissingRate, ...]:
    """What nodes of graphs, and of those that they run, compute at `other_products`, in the order of the nodes; nothing
    of machines that come along, whose `other_products` are meant for what they do not list."""
    if machine.under({}) in KNOWN_MACHINES.values():
        return ()
    found: dict[MissingRate, None] = {}
    for graph in graphs:
        rates = machine.under(graph.attrs)
        for node in (node for each in graph.graphs() for node in each.nodes if work_of(node)):
            kind, dtype = kind_of_work(node), operand_types(node)[0].dtype
            if rates.known_rate(kind, dtype) is None:
                found[MissingRate(_without_form(kind), rates.name_of(kind, dtype))] = None
    return tuple(found)


def stand_in(machine: Machine, missing: MissingRate) -> str:
    """The name of rates of products that stand in: of `TF32` those of Float32 as it is, else those that are
    `other_products`; "" where that is none of them."""
    rates = machine.work.get(PRODUCTS, {})
    if missing.dtype == TF32 and UNROUNDED in rates:
        return UNROUNDED
    return next((name for name, rate in rates.items() if rate == machine.other_products), "")


def together(missing: Iterable[Sequence[MissingRate]]) -> tuple[MissingRate, ...]:
    """What several programs miss, each once."""
    return tuple(dict.fromkeys(each for those in missing for each in those))


def _without_form(kind: str) -> str:
    while LIKE.get(kind, PRODUCTS) != PRODUCTS:
        kind = LIKE[kind]
    return kind if kind in (*ATTENTION, *CONVOLUTIONS) else PRODUCTS
