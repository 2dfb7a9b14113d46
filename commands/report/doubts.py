"""This module prints the warning about rates that were measured on a busy machine."""

from __future__ import annotations

from collections.abc import Sequence

LISTED = 5
"""Doubts that are listed."""


def doubts_text(what: str, doubts: Sequence[str], do: str) -> str:
    """A warning with the reasons. what: is not to be believed. do: what would help."""
    more = len(doubts) - LISTED
    listed = [f"  note: {why}" for why in [*doubts[:LISTED], *([f"and {more} more"] if more > 0 else [])]]
    head = f"warning: {what} is not to be believed: the machine was busy, or ranks shared its cores"
    return "\n".join([head, *listed, f"  note: {do}"])
