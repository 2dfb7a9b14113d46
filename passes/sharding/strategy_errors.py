"""Errors of strategies that have one cause for many operators, the number of ranks, are reported once."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from mspc.ir.diagnostics import MspcError
from mspc.ir.graph import Node

MOST_PLACES = 5
"""Places of further strategies that an error names."""


class RanksError(MspcError):
    """A strategy that does not divide the number of ranks. used: the ranks that it uses."""

    used: int = 1


class UnevenError(MspcError):
    """A dimension whose size the number of slices does not divide."""

    size: int = 1
    shards: int = 1


def ranks_error(node: Node, used: int, message: str, note: str) -> RanksError:
    """Return the error of a strategy that uses `used` ranks, which do not divide those that there are."""
    error: Any = RanksError(f"{node.label}: {message}", notes=[note], frames=node.frames, kind=RuntimeError)
    error.used = used
    return error


def uneven_error(node: Node, where: str, size: int, shards: int) -> UnevenError:
    """Return the error of a dimension that does not divide into equal slices."""
    message = f"{node.label}: {where} is {size}, which {shards} does not divide"
    error: Any = UnevenError(message, notes=[_divisors_note(size)], frames=node.frames, kind=RuntimeError)
    error.size, error.shards = size, shards
    return error


def with_one_cause_once(errors: list[MspcError], used: set[int], ranks: int) -> list[MspcError]:
    """Join errors that have one cause, the number of ranks, and name numbers of ranks that would be right.

    used: ranks that strategies without a mistake use.
    """
    hidden: set[int] = set()
    unfit = [error for error in errors if isinstance(error, RanksError)]
    if unfit:
        step = math.lcm(*used, *(error.used for error in unfit))
        unfit[0].notes += (f"all strategies of the network divide {step} ranks, and multiples of {step}",)
        unfit[0].notes += _further_places(unfit, f"do not divide {ranks} either")
        hidden |= {id(error) for error in unfit[1:]}
    for shards in sorted({error.shards for error in errors if isinstance(error, UnevenError)}):
        if ranks % shards:
            continue  # such a number does not come from the number of ranks: each is a mistake of its own
        alike = [error for error in errors if isinstance(error, UnevenError) and error.shards == shards]
        if len(alike) == 1:
            continue
        common = _divisors_note(math.gcd(*(error.size for error in alike)), ", which fits all of these strategies")
        alike[0].notes = (common, *_further_places(alike, f"shard into {shards} slices, too"))
        hidden |= {id(error) for error in alike[1:]}
    return [error for error in errors if id(error) not in hidden]


def _further_places(errors: Sequence[MspcError], text: str) -> tuple[str, ...]:
    """Return a note with the places of all errors but the first."""
    first = str(errors[0].location)
    places = [place for place in dict.fromkeys(str(e.location) for e in errors if e.location) if place != first]
    more = f" and {len(places) - MOST_PLACES} more places" if len(places) > MOST_PLACES else ""
    return (f"strategies at {', '.join(places[:MOST_PLACES])}{more} {text}",) if places else ()


def _divisors_note(size: int, more: str = "") -> str:
    """Return into how many slices a dimension may be sharded."""
    legal = [n for n in range(1, size + 1) if size % n == 0][:8]
    if not legal[1:]:
        return "use 1 there"
    return f"shard it into {', '.join(map(str, legal[:-1]))} or {legal[-1]} slices{more}"
