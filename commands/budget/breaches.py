"""Where a compile breaks its budget, and the collectives that do."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from mspc.commands.budget.limits import ANY, BYTES, COLLECTIVES, FORBID, MEMORY, Budget, Forbidden
from mspc.commands.facts.model import CollectiveFact, Facts, RankFacts, cell_of
from mspc.ir.diagnostics import MspcError
from mspc.ir.nearest import did_you_mean

MOST_NAMED = 5
PARTS = ("weights", "states", "inputs", "constants", "step")
"""Parts of a rank's memory, which together are all of it."""


@dataclass(frozen=True)
class Breach:
    """A limit that does not hold. key: of the limit. message: what is, and what may be. ranks: that break it by as
    much. collectives: that do, those that send most first. memory: bytes of the parts, where the limit is on them."""

    key: str
    message: str
    ranks: tuple[int, ...]
    collectives: tuple[CollectiveFact, ...] = ()
    memory: tuple[tuple[str, int], ...] = ()


def breaches(facts: Facts, budget: Budget) -> list[Breach]:
    """The limits that a compile breaks, each on the ranks that break it most.

    Raises:
        MspcError: the text says too little for a limit, or has no cell in which something is forbidden.
    """
    if not facts.kinds:
        raise MspcError(f"{facts.name} is a plan, which sends nothing", notes=["check the folder of its compile"])
    found: list[Breach] = []
    if budget.nbytes is not None:
        found += _bytes(facts, budget.nbytes)
    if budget.memory is not None:
        found += _memory(facts, budget.memory)
    for operator, most in (budget.collectives or {}).items():
        found += _count(facts, operator, most)
    for forbidden in budget.forbidden:
        _check_cell(facts, forbidden)
        found += _forbidden(facts, forbidden)
    return found


def _bytes(facts: Facts, most: int) -> Iterator[Breach]:
    worst = max(facts.kinds, key=lambda kind: kind.bytes_sent)
    if worst.bytes_sent > most:
        message = f"{worst.bytes_sent} bytes are sent in a step, {most} may be"
        yield Breach(BYTES, message, worst.ranks, _largest_first(worst, lambda _: True))


def _memory(facts: Facts, most: int) -> Iterator[Breach]:
    kinds = [(kind.peak_bytes, kind) for kind in facts.kinds if kind.peak_bytes is not None]
    if not kinds:
        raise MspcError(f"{facts.name} does not say what memory a rank takes, which {MEMORY} limits")
    taken, worst = max(kinds, key=lambda entry: entry[0])
    if taken > most:
        parts = tuple((name, int(getattr(worst.memory, name))) for name in PARTS)
        yield Breach(MEMORY, f"a step takes {taken} bytes of memory, {most} may be", worst.ranks, memory=parts)


def _count(facts: Facts, operator: str, most: int) -> Iterator[Breach]:
    def counts(fact: CollectiveFact) -> bool:
        return operator in (ANY, fact.row.operator)

    worst = max(facts.kinds, key=lambda kind: sum(map(counts, kind.collectives)))
    meeting = _largest_first(worst, counts)
    if len(meeting) > most:
        what = "collective" if operator == ANY else operator
        message = f"{len(meeting)} {what}{'s' * (len(meeting) != 1)} in a step, {most} may be"
        yield Breach(COLLECTIVES, message, worst.ranks, meeting)


def _forbidden(facts: Facts, forbidden: Forbidden) -> Iterator[Breach]:
    def is_one(fact: CollectiveFact) -> bool:
        return forbidden.operator in (ANY, fact.row.operator) and _is_inside(fact, forbidden.cell)

    worst = max(facts.kinds, key=lambda kind: sum(map(is_one, kind.collectives)))
    meeting = _largest_first(worst, is_one)
    if meeting:
        message = f"{forbidden} is forbidden, and there {'is one' if len(meeting) == 1 else f'are {len(meeting)}'}"
        yield Breach(FORBID, message, worst.ranks, meeting)


def _is_inside(fact: CollectiveFact, cell: str) -> bool:
    cells = (cell_of(fact.scope), *(tensor.cell for tensor in fact.tensors))
    return not cell or any(own == cell or own.startswith(f"{cell}/") for own in cells)


def _largest_first(kind: RankFacts, wanted: Callable[[CollectiveFact], bool]) -> tuple[CollectiveFact, ...]:
    return tuple(sorted(filter(wanted, kind.collectives), key=lambda fact: -fact.row.bytes))


def _check_cell(facts: Facts, forbidden: Forbidden) -> None:
    """Raise MspcError where nothing is in the cell: a name that was mistaken would forbid nothing for ever."""
    known: dict[str, None] = {}
    scopes = [name.rpartition("/")[0] for name in facts.layouts or ()]
    for scope in (*scopes, *(scope for kind in facts.kinds for scope in kind.scopes)):
        parts = scope.split("/")
        known.update(dict.fromkeys("/".join(parts[:depth]) for depth in range(1, len(parts) + 1)))
    if forbidden.cell and forbidden.cell not in known:
        notes = did_you_mean(forbidden.cell, known) or [f"the first are {', '.join([*known][:MOST_NAMED])}"]
        raise MspcError(f"{facts.name} has no cell {forbidden.cell!r}, in which {FORBID} has something", notes=notes)
