"""Programs beside the one that a search has made, of which one may be quicker: the search adds up operators and
collectives one by one, and cannot know what is fused, what hides and what travels together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from typing import cast

from mspc.compiler.config import Config
from mspc.compiler.driver import Compiled
from mspc.ir.graph import Graph
from mspc.ops.op import Op
from mspc.passes.search.terms import Terms
from mspc.passes.sharding.choices import rule_of

SHARES = (0.9, 0.75, 0.5)
"""Of the memory that the search's plan takes: limits within which others are looked for."""


def relatives(
    config: Config, plain: Compiled, peak: int, searched: Callable[[Config], Compiled],
    within: Callable[[int], Compiled], whole: Callable[[], Compiled] | None,
) -> Iterator[tuple[str, Callable[[], Compiled]]]:  # fmt: skip
    """(what it is, how it is made) of every one; they are the same whatever limit of memory is asked for.

    Args:
        plain: what the search finds without a limit, and the bytes that it takes. searched, within: a search with other
        settings, and within other limits. whole: where nothing is cut, None where the script says what is.
    """
    yield "a search without a limit", lambda: plain
    by_bytes = replace(config, search_terms=Terms(mesh=config.search_terms.mesh))
    yield "a search by bytes alone", partial(searched, by_bytes)
    for share in SHARES:
        yield f"a search within {int(peak * share)} bytes of memory", partial(within, int(peak * share))
    if whole is not None:
        yield "every rank computing the whole", whole


def leave_whole(graph: Graph) -> None:
    """Give the operators of a graph, read but not compiled yet, strategies that cut nothing: for small networks the
    quickest, since nothing is sent."""
    for node in graph.nodes:
        rule = rule_of(node)
        if rule is not None:
            dims = cast(Op, node.op).strategy_dims(rule)
            node.in_strategy = tuple(tuple(1 for _ in dim) for dim in dims)
