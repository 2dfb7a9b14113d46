"""Lists all shardings of one operator on a mesh: every axis goes to a factor of its rule, or holds replicas."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache
from itertools import combinations
from itertools import product as product_of

from mspc.ir.late_dataclass import dataclass
from mspc.ir.layout import Axes, Layout
from mspc.passes.lib.choices import ShardingChoice, composite_conflict, make_choice
from mspc.sharding.factors import Rule


@dataclass(frozen=True, eq=False)
class Domain:
    """What an operator may choose. gradients: for every choice how the gradient of every operand comes out of the
    operator's own gradient, sharded as it is: partial over each axis that shards what the operand does not have."""

    choices: tuple[ShardingChoice, ...]
    gradients: tuple[tuple[Layout, ...], ...]


MOST = 400
"""Choices of an operator up to which those are among them that let partial sums pass."""
THROUGH_ALL = -1
"""In place of an operand: partial sums pass where all operands are partial over the same ranks."""


@lru_cache(maxsize=4096)
def domain_of(rule: Rule, mesh: tuple[int, ...], product: bool, passing: tuple[int, ...] = ()) -> Domain:
    """The choices for an operator. A product of matrices takes as many ranks as any choice does; others may be computed
    by several ranks alike. Axes of one dimension are in ascending order.

    Args:
        passing: operands whose partial sums may pass through the operator, which is linear in them.
    """
    factors = [f for f in range(len(rule.names)) if f not in rule.frozen and rule.sizes[f] > 1]
    found: dict[ShardingChoice, tuple[Layout, ...]] = {}
    assignments = _assignments(rule, mesh, factors)
    for axes in assignments:
        choice = make_choice(rule, mesh, axes)
        found.setdefault(choice, gradients_of(rule, mesh, axes))
    if passing and len(found) <= MOST:
        found |= _let_through(rule, mesh, assignments, passing)
    if product:
        found = _with_least_work(found)
    return Domain(tuple(found), tuple(found.values()))


def domain_of_forms(
    rule: Rule, other: Rule | None, mesh: tuple[int, ...], product: bool, passing: tuple[int, ...]
) -> Domain:
    """The choices by a rule, and beside them those of another form of the operator, whose rule counts the same points
    otherwise."""
    own = domain_of(rule, mesh, product, passing)
    if other is None:
        return own
    more = domain_of(other, mesh, product)
    points = math.prod(rule.sizes) / math.prod(other.sizes)
    found = dict(zip(own.choices, own.gradients, strict=True))
    known = {(choice.inputs, choice.outputs) for choice in found}
    for choice, gradients in zip(more.choices, more.gradients, strict=True):
        if (choice.inputs, choice.outputs) not in known:
            found[replace(choice, work=choice.work * points)] = gradients
    found = _with_least_work(found) if product else found
    return Domain(tuple(found), tuple(found.values()))


def _with_least_work(choices: Mapping[ShardingChoice, tuple[Layout, ...]]) -> dict[ShardingChoice, tuple[Layout, ...]]:
    least = min(choice.work for choice in choices)
    return {choice: gradients for choice, gradients in choices.items() if choice.work <= least * 1.0001}


def _let_through(
    rule: Rule, mesh: tuple[int, ...], assignments: list[tuple[Axes, ...]], passing: tuple[int, ...]
) -> dict[ShardingChoice, tuple[Layout, ...]]:
    """The ways in which partial sums over axes that shard nothing pass. Gradients come out complete along these
    axes."""
    found: dict[ShardingChoice, tuple[Layout, ...]] = {}
    for axes in assignments:
        if rule.reduction != "sum" and any(axes[f] for f in rule.reduced):
            continue  # partial means, or maxima, do not add up with partial sums
        free = [a for a in range(len(mesh)) if all(a not in sharding for sharding in axes)]
        for count in range(1, len(free) + 1):
            for passed, operand in product_of(combinations(free, count), passing):
                choice = make_choice(rule, mesh, axes, operand, passed)
                found.setdefault(choice, gradients_of(rule, mesh, axes))
        if len(found) > MOST:
            return {}
    return found


def _assignments(rule: Rule, mesh: tuple[int, ...], factors: list[int]) -> list[tuple[Axes, ...]]:
    found: list[tuple[Axes, ...]] = [((),) * len(rule.names)]
    for axis, size in enumerate(mesh):
        for axes in list(found):
            for f in factors:
                if rule.sizes[f] % (size * math.prod(mesh[a] for a in axes[f])) == 0:
                    found.append((*axes[:f], (*axes[f], axis), *axes[f + 1 :]))
    return [axes for axes in found if not composite_conflict(rule, mesh, axes) and _ascending(rule, axes)]


def _ascending(rule: Rule, axes: tuple[Axes, ...]) -> bool:
    """Whether the axes of every dimension ascend, so that there is one layout for every set of axes."""
    for dims in (*rule.inputs, *rule.outputs):
        for dim in dims:
            sharding = [a for f in dim for a in axes[f]]
            if sharding != sorted(sharding):
                return False
    return True


def gradients_of(rule: Rule, mesh: tuple[int, ...], axes: tuple[Axes, ...]) -> tuple[Layout, ...]:
    """How the gradients of an operator's operands come out, as `Domain` says."""
    found: list[Layout] = []
    for dims in rule.inputs:
        own = {f for dim in dims for f in dim}
        partial = [a for f, sharding in enumerate(axes) if f not in own for a in sharding]
        found.append(Layout.of(mesh, [[a for f in dim for a in axes[f]] for dim in dims], partial))
    return tuple(found)


def comes_so(choice: ShardingChoice, partial: Mapping[int, frozenset[Layout]]) -> bool:
    """Whether the partial sums that a choice takes are there: nothing makes them of anything else."""
    return all(
        not layout.partial or layout in partial.get(i, partial.get(THROUGH_ALL, ()))
        for i, layout in enumerate(choice.inputs)
    )
