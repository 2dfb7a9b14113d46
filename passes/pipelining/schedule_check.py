"""The proof that a schedule is right: every action is there once, and no stage waits for what does not come."""

from __future__ import annotations

from mspc.ir.diagnostics import raise_all
from mspc.passes.pipelining.order_check import check
from mspc.passes.pipelining.schedules.action import Schedule
from mspc.passes.pipelining.schedules.completeness import Lines, incompleteness
from mspc.passes.pipelining.schedules.events import programs_of
from mspc.passes.pipelining.schedules.problem import Problem


def check_schedule(schedule: Schedule, lines: Lines | None = None) -> list[Problem]:
    """What is wrong with a schedule, nothing where it runs to its end.

    Messages are found by tensor and micro-batch, and sends return at once: what holds for the messages of the graphs
    that are made by the schedule says `order_check.check`. Orders are looked at where all actions are there.

    lines: where each entry of each stage stands, if anywhere.
    """
    found = incompleteness(schedule, lines)
    return found or check(programs_of(schedule, lines), in_order=False)


def require_schedule(schedule: Schedule, lines: Lines | None = None) -> None:
    """Raises MspcError with all that `check_schedule` finds."""
    raise_all([problem.error() for problem in check_schedule(schedule, lines)])
