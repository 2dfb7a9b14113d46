"""Names where an operator's strategy comes from, in the words of `strategy_from` and of the reasons of collectives."""

from __future__ import annotations

SHARD, FILE, PLAN = "shard()", "the strategy file", "the plan"
GIVEN = (SHARD, FILE, PLAN)
"""Those who go before all that is found."""
