"""Simulates ranks for `--simulate`: every rank runs the script from the top, in a thread of this process, in turns."""

from __future__ import annotations

import contextlib
import sys
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from mspc.api import state
from mspc.compiler.config import Config
from mspc.compiler.driver import Compiled, TracedCall
from mspc.engine.calls import RankCalls, RanksWanted
from mspc.engine.job import Job
from mspc.engine.script import ScriptError, run_script_as
from mspc.engine.user_state import UserState
from mspc.ir.diagnostics import ExecutionError, MspcError
from mspc.runtime.comm.local import LocalComm, World
from mspc.runtime.device_choice import Hardware, Wishes
from mspc.runtime.faults.failure import StoppedByOther


class SimulatedJob(Job):
    """One rank's place in a simulation: its own state is in place only while its script runs."""

    def __init__(self, comm: LocalComm, user: UserState, hardware: Hardware) -> None:
        aside, meeting, by_hand = (LocalComm(comm.world, comm.rank, channel) for channel in (1, 2, 3))
        super().__init__(comm, aside, None, hardware, meeting=meeting, by_hand=by_hand)
        self.user = user
        self._inside = 0

    def say(self, text: str) -> None:
        self.comm.world.ranks[self.rank].said = text

    @contextlib.contextmanager
    def outside_user_code(self) -> Generator[None]:
        self._inside += 1
        if self._inside > 1:
            yield
            self._inside -= 1
            return
        self.user.leave()
        try:
            yield
            self.comm.pause()
        finally:
            self.user.enter()
            self._inside -= 1


class SharedCompiles:
    """What the ranks' launchers share: a graph is compiled by the first rank that launches it.

    Ranks launch their own copies of one network; the copies are told apart by the order in which a rank
    launches them, and are the same program when the front end finds the same graph in them.
    """

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._compiled: dict[int, dict[tuple[Config, str], Compiled]] = {}
        self._compiles: Counter[int] = Counter()

    def compiled(self, number: int, call: TracedCall, compiled: Callable[[TracedCall], Compiled]) -> Compiled:
        """The program of a rank's compile with this number: another rank's, or a new one that `compiled` makes. It is
        stored until every rank has made so many compiles."""
        known, key = self._compiled.setdefault(number, {}), (call.config, call.text)
        found = known.get(key)
        if found is None:
            found = known[key] = compiled(call)
        self._compiles[number] += 1
        if self._compiles[number] == self._ranks:
            del self._compiled[number], self._compiles[number]
        return found


class SimulatedCalls(RankCalls):
    """A launcher that looks for what another rank has compiled already."""

    has_own_process: ClassVar[bool] = False

    def __init__(
        self, job: Job, ranks_given: bool, script_folder: str, shared: SharedCompiles, strategies: Path | None = None
    ) -> None:
        super().__init__(job, ranks_given, script_folder, strategies)
        self._shared = shared
        self._compiles = 0

    def compiled(self, call: TracedCall) -> Compiled:
        self._compiles += 1
        return self._shared.compiled(self._compiles, call, super().compiled)


def simulate_script(
    path: Path, ranks: int, ranks_given: bool, only_rank: int | None, arguments: Sequence[str],
    wishes: Wishes | None = None, profiler: Callable[[], Any] = lambda: None, strategies: Path | None = None,
) -> None:  # fmt: skip
    """Run a script on `ranks` simulated ranks. `profiler` makes what times the steps of one rank. strategies: a file by
    which operators are sharded.

    Raises:
        RanksWanted: the script asks for another number, and `--ranks` was not given.
        MspcError: the first failure of a rank, with the rank's number in its message. SystemExit: a
        rank's own.
    """
    shared = SharedCompiles(ranks)
    users: list[UserState] = []
    modules = set(sys.modules)

    def main(comm: LocalComm) -> None:
        session = state.Session.of_rank(comm.rank, ranks)
        user = UserState(session, None, only_rank is None or only_rank == comm.rank, modules)
        users.append(user)
        job = SimulatedJob(comm, user, simulated_hardware(wishes, comm.rank))
        job.profile = profiler()
        user.handler = SimulatedCalls(job, ranks_given, str(path.resolve().parent), shared, strategies)
        user.enter()
        try:
            _naming(comm.rank, ranks, lambda: run_script_as("__main__", path, arguments))
        finally:
            user.leave()
        if job.profile is not None:
            job.profile.end(job)

    try:
        World(ranks).run(main)
    finally:
        for user in users:
            user.close()


def simulated_hardware(wishes: Wishes | None, rank: int) -> Hardware:
    """The device of a simulated rank, which rank 0 says is not the one that was requested."""

    def warn(text: str) -> None:
        if rank == 0:
            print(f"warning: {text}", file=sys.stderr, flush=True)

    return Hardware(wishes, simulated=True, warn=warn)


def _naming(rank: int, ranks: int, body: Callable[[], object]) -> None:
    """Run a rank's script; a failure names the rank where there are several."""
    try:
        body()
    except (RanksWanted, StoppedByOther):
        raise
    except SystemExit as stop:
        if stop.code not in (None, 0):
            raise
    except ScriptError as error:
        if ranks == 1:
            raise
        raise _RankError(rank, error) from None
    except ExecutionError as error:
        if ranks == 1 or f"rank {rank}" in error.message:
            raise
        raise _RankError(rank, error) from None


class _RankError(MspcError):
    """A rank's failure under a line that names the rank."""

    def __init__(self, rank: int, error: MspcError) -> None:
        super().__init__(error.message)
        self.exit_status = error.exit_status
        self._rank, self._error = rank, error

    def render(self, width: int | None = None) -> str:
        return f"rank {self._rank} failed:\n{self._error.render(width)}"
