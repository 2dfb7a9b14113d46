"""Plugin with the fixture `mspc_budget`. pytest loads it if mspc is installed."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

import pytest


@pytest.fixture
def mspc_budget() -> Callable[..., None]:
    """`mspc_budget(target, max_bytes="3MB", ...)`: fail the test if a compile breaks a budget, as `mspc check` does.

        def test_the_network_stays_within_its_budget(mspc_budget):
            mspc_budget("net.py", ranks=8, max_bytes="3MB", max_collectives={"AllGather": 4})
    """
    from mspc.commands.budget.limits import budget_of
    from mspc.commands.check import Limits, breach_table, checked_target
    from mspc.commands.compile import CompileOptions
    from mspc.commands.report.tables import OTHERWISE, fit

    def check(
        target: str | os.PathLike[str], *, ranks: int | None = None, inputs: Sequence[str] = (),
        max_bytes: str | int | None = None, max_memory: str | int | None = None,
        max_collectives: int | Mapping[str, int] | None = None, max_step: str | None = None,
        forbid: str | Sequence[str] | None = None, budget: str | os.PathLike[str] | None = None, name: str = "",
    ) -> None:  # fmt: skip
        """Fail the test if a compile breaks a budget.

        Args:
            target: the folder of a compile, a graph, a script, or a network as in 'net.py:Net(32, 16)'. ranks, inputs:
            for a script or a network, as in `mspc compile`. max_bytes, max_memory: sizes. max_collectives: a number,
            or numbers by operator. max_step: a time as in '3ms'. forbid: collectives. budget: a TOML file; the other
            arguments override its limits. name: of the budget in a file with several.

        Raises:
            MspcError: the target or an argument cannot be read. pytest.fail.Exception: a limit is broken.
        """
        counts = dict(max_collectives) if isinstance(max_collectives, Mapping) else max_collectives
        given = {"max-bytes": max_bytes, "max-memory": max_memory, "max-collectives": counts, "max-step": max_step,
                 "forbid": forbid}  # fmt: skip
        file = None if budget is None else Path(budget)
        compiling = CompileOptions(ranks, inputs=tuple(inputs))
        checked = checked_target(os.fspath(target), compiling, Limits(budget_of(given), file, name))
        if checked.broken:
            tables = ["\n".join(fit(breach_table(breach), OTHERWISE).lines) for breach in checked.broken]
            pytest.fail("\n\n".join([checked.verdict, *tables]), pytrace=False)

    return check
