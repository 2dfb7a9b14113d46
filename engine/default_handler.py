"""Makes what runs the calls of a script that plain Python has started, alone or under mpirun."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from types import TracebackType

from mspc.engine.calls import RankCalls, RanksWanted
from mspc.engine.job import explain, join_job
from mspc.ir.diagnostics import MspcError
from mspc.runtime.device_choice import Wishes


def default_handler() -> RankCalls:
    """The launcher of a script run by plain Python, alone or under mpirun: it joins the job at its first
    launch, and the job ends when the script fails."""
    job = join_job(Wishes())
    failed: list[BaseException] = []

    def finish() -> None:
        try:
            if not failed:
                job.finish()
        except SystemExit as stop:  # steps under way have failed; at this point Python would end with status 0
            sys.stderr.flush()
            os._exit(stop.code if isinstance(stop.code, int) else 1)

    atexit.register(finish)
    ordinary = sys.excepthook

    def fail(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        failed.append(error)
        if job.watch is not None and threading.current_thread() is threading.main_thread():
            job.fail(error)
        if isinstance(error, RanksWanted):
            error = MspcError(
                f"the script sets device_num={error.ranks}, but runs on one rank",
                error.place,
                notes=[f"start it with mspc run SCRIPT --ranks {error.ranks}, or under mpirun -n {error.ranks}"],
            )
        if isinstance(error, MspcError):
            print(explain(error)[0], file=sys.stderr)
            return
        ordinary(kind, error, trace)

    sys.excepthook = fail
    return RankCalls(job)
