"""Call handler of scripts started by plain Python, alone or under mpirun."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from types import TracebackType
from typing import Any

from mspc.compiler.driver import Compiled
from mspc.compiler.in_memory import compile_in_memory
from mspc.engine.calls import RankCalls, RanksWanted
from mspc.engine.job import explain, join_job, name_of
from mspc.engine.ranks.environment import mpi_size
from mspc.ir.diagnostics import MspcError
from mspc.ir.types import TensorType
from mspc.mindspore_api import context
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.context import FrozenContext
from mspc.runtime.device_choice import DeviceOptions
from mspc.runtime.pending import Pending

STAND_ALONE = "stand_alone"
TEST = "PYTEST_CURRENT_TEST"
"""Environment variable in which pytest stores the name of the running test."""


def pending_result(type: TensorType, name: str, ranks: int) -> Pending:
    """Return the placeholder of a result of a graph that was compiled but not run: only shape and dtype are known."""

    def arrive() -> Any:
        raise MspcError(
            f"{name} has no values: the test compiled it for {ranks} ranks in memory, and this process is one rank",
            notes=[
                "a test may look at shapes and dtypes, or leave device_num out to compute on one device",
                f"a script that mspc run SCRIPT --ranks {ranks} --simulate runs has all values",
            ],
            kind=RuntimeError,
        )

    return Pending(type.shape, type.dtype.numpy, arrive)


class PlainCalls(RankCalls):
    """Calls of a program started by plain Python.

    A test under pytest cannot be restarted on more ranks. If it requests more by `device_num` without a launcher, its
    calls are only compiled for that number, as in MindSpore's own compile tests: mistakes raise, and results have
    shapes but no values. In stand-alone mode the number of ranks has no effect, so that such calls run.
    """

    def call(self, target: Any, args: tuple[Any, ...]) -> Any:
        return self._compiled_alone(target, args) if self._only_compiles(target) else super().call(target, args)

    def call_on_all_ranks(self, target: Any, args: tuple[Any, ...] | None) -> Any:
        if args is not None and self._only_compiles(target):
            return self._compiled_alone(target, args)
        return super().call_on_all_ranks(target, args)

    def _only_compiles(self, target: Any) -> bool:
        frozen = context.freeze(target)
        return frozen.device_num > 1 and frozen.parallel_mode != STAND_ALONE and self._is_test_of_one_rank()

    def _is_test_of_one_rank(self) -> bool:
        return self.job.size == 1 and not mpi_size() and "pytest" in sys.modules and TEST in os.environ

    def _compiled_alone(self, target: Any, args: tuple[Any, ...]) -> Any:
        found: list[Compiled] = []
        compile_in_memory(target, args, lambda compiled, _: found.append(compiled))
        compiled = found[-1]
        made = [
            Tensor.from_array(pending_result(value.tensor_type, name_of(target), compiled.config.all_ranks))
            for value in compiled.rank_graph(0).results
        ]
        return compiled.traced.rebuild(made)

    def _check_ranks(self, frozen: FrozenContext) -> None:
        if frozen.parallel_mode != STAND_ALONE or not self._is_test_of_one_rank():
            super()._check_ranks(frozen)


def default_handler() -> RankCalls:
    """Return the handler of a script run by plain Python, alone or under mpirun. It joins the job at the script's first
    launch and ends the job if the script fails."""
    job = join_job(DeviceOptions())
    failed: list[BaseException] = []

    def finish() -> None:
        try:
            if not failed:
                job.finish()
        except SystemExit as stop:  # a step in flight failed; Python would exit with status 0 here
            sys.stderr.flush()
            os._exit(stop.code if isinstance(stop.code, int) else 1)

    atexit.register(finish)
    ordinary = sys.excepthook

    def fail(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        failed.append(error)
        if job.watch is not None and threading.current_thread() is threading.main_thread():
            job.fail(error)
        if isinstance(error, RanksWanted):
            error = error.mistake
        if isinstance(error, MspcError):
            sys.stdout.flush()
            print(explain(error)[0], file=sys.stderr, flush=True)
            raise SystemExit(error.exit_status)  # Python ends with it
        ordinary(kind, error, trace)

    sys.excepthook = fail
    return PlainCalls(job)
