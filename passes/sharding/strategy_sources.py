"""Who has said how an operator is cut, in words that `strategy_from` and the reasons of collectives have."""

from __future__ import annotations

SHARD, FILE, PLAN = "shard()", "the strategy file", "the plan"
GIVEN = (SHARD, FILE, PLAN)
"""Those who go before all that is found."""
