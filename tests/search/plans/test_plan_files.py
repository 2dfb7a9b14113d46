"""Every row that a search prints is what its file compiles to, in all columns, usual plans' rows as the search's."""

from dataclasses import replace
from pathlib import Path

import pytest

from mspc.plans.files.plan_file import write_plan
from mspc.search.plans.alternatives import PlanRequest
from mspc.search.plans.row import PlanResult, file_name
from mspc.search.plans.table import plan_of_file, plans_for
from tests.memory_limits import Case, case_of

pytestmark = pytest.mark.usefixtures("brief_searches")

SHARE = 0.7
"""The share of the memory that the largest plan takes: the limit."""


def rows(case: Case, asked: PlanRequest, folder: Path) -> list[PlanResult]:
    """The plans of a search, each of them beside its file."""
    found = plans_for(case.captured, asked)
    for plan in found.plans:
        file = folder / file_name(plan)
        write_plan(file, found.files[plan.name])
        again = plan_of_file(case.captured, replace(asked, memory=0), file)
        assert again.columns == plan.columns, plan.name
        assert (again.mean_nbytes, again.rank) == (plan.mean_nbytes, plan.rank), plan.name
    return found.plans


@pytest.mark.share(3)
@pytest.mark.parametrize("seed", [2, 3, 5, 11])
def test_rows_are_what_their_files_compile_to(seed: int, tmp_path: Path) -> None:
    case = case_of(seed)
    plans = rows(case, case.asked, tmp_path)
    assert len(plans) >= 4
    limit = int(SHARE * max(plan.memory for plan in plans))
    least = min(plan.memory for plan in plans)
    within = rows(case, replace(case.asked, memory=max(limit, least)), tmp_path)
    assert all(plan.memory <= max(limit, least) for plan in within)
