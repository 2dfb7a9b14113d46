"""Simulates ranks for `--simulate`: every rank runs the script from the top, in a thread of this process, in turns."""

from __future__ import annotations

import contextlib
import os
import random
import sys
from collections import Counter
from collections.abc import Callable, Generator, Sequence
from io import TextIOBase
from pathlib import Path
from types import ModuleType
from typing import Any, ClassVar

import numpy as np

from mspc.compiler.config import Config
from mspc.compiler.driver import Compiled, TracedCall
from mspc.engine.calls import RankCalls, RanksWanted
from mspc.engine.job import Job
from mspc.engine.script import ScriptError, run_script_as
from mspc.ir.diagnostics import ExecutionError, MspcError
from mspc.mindspore_api import call_handler, state
from mspc.mindspore_api.errors import is_library
from mspc.runtime.comm.local import LocalComm, World
from mspc.runtime.device_choice import Hardware, Wishes
from mspc.runtime.faults.record import StoppedByOther

# Separates everything global that a script can see and change, so that simulated ranks each have their own.


class UserState:
    """One simulated rank's modules, random generators, arguments, working folder, session and output.

    Between `enter` and `leave` this rank's script runs; only one rank is inside at a time.

    Args:
        session: of the rank. handler: that its cells call. shown: whether its output is printed. shared_modules: names
            of modules that are no rank's own; those that are there now when None. Names of modules of mspc, Python and
            installed libraries that are loaded later are added to it. Other imports of a script are set aside while
            this rank's runs.
    """

    def __init__(
        self,
        session: state.Session,
        handler: call_handler.CallHandler | None,
        shown: bool,
        shared_modules: set[str] | None = None,
    ) -> None:
        self._session = session
        self.handler = handler
        # Unseeded ranks differ, as processes do, but equally in every run.
        self._bits: Any = np.random.MT19937(np.random.SeedSequence((0x72616E6B, session.rank)))
        self._random = random.Random(session.rank).getstate()
        self._modules: dict[str, ModuleType] = {}
        self._aside: dict[str, ModuleType] = {}
        self._shared = set(sys.modules) if shared_modules is None else shared_modules
        self._arguments = list(sys.argv)
        self._path = list(sys.path)
        self._folder = os.getcwd()
        self._output: Any = LineWriter(sys.stdout) if shown else Nowhere()
        self._before: tuple[Any, ...] = ()
        self._main = sys.modules["__main__"]

    def enter(self) -> None:
        """Put this rank's state in place."""
        self._before = (
            state.swap(self._session), call_handler.install(self.handler), np.random.get_bit_generator(),
            random.getstate(), sys.argv, sys.path, sys.stdout,
        )  # fmt: skip
        np.random.set_bit_generator(self._bits)
        random.setstate(self._random)
        self._aside = self._taken_out()
        sys.modules.update(self._modules)
        sys.argv, sys.path, sys.stdout = self._arguments, self._path, self._output
        if os.getcwd() != self._folder:
            os.chdir(self._folder)

    def leave(self) -> None:
        """Take this rank's state away again, as it is now."""
        self._bits = np.random.get_bit_generator()
        self._random = random.getstate()
        self._arguments, self._path, self._output = sys.argv, sys.path, sys.stdout
        self._folder = os.getcwd()
        main = sys.modules.pop("__main__")
        self._modules = {"__main__": main, **self._taken_out()}
        sys.modules.update({**self._aside, "__main__": self._main})
        session, handler, bits, numbers, sys.argv, sys.path, sys.stdout = self._before
        state.swap(session)
        call_handler.install(handler)
        np.random.set_bit_generator(bits)
        random.setstate(numbers)

    def _taken_out(self) -> dict[str, ModuleType]:
        """The modules that are a script's own, `__main__` aside, which are there no longer."""
        fresh = sys.modules.keys() - self._shared
        if not fresh:
            return {}
        # A copy: asking a module that is imported late for its file may import others.
        own = [name for name, module in list(sys.modules.items()) if name in fresh and _is_users(module)]
        self._shared |= fresh.difference(own)
        return {name: sys.modules.pop(name) for name in own if name != "__main__"}

    def close(self) -> None:
        """Print the rest of an unfinished line."""
        self._output.flush_line()


class LineWriter(TextIOBase):
    """Passes complete lines on, so that lines of several ranks do not mix."""

    def __init__(self, target: Any) -> None:
        self._target = target
        self._line = ""

    @property
    def encoding(self) -> str:  # type: ignore[override]  # a plain attribute in the base
        return getattr(self._target, "encoding", "utf-8")

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        lines, newline, rest = (self._line + text).rpartition("\n")
        if newline:
            self._target.write(lines + newline)
        self._line = rest
        return len(text)

    def flush(self) -> None:
        self._target.flush()

    def flush_line(self) -> None:
        if self._line:
            self._target.write(self._line + "\n")
            self._line = ""
        self._target.flush()


class Nowhere(TextIOBase):
    """Takes text and drops it."""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        return len(text)

    def flush_line(self) -> None:
        """Nothing is left."""


class HeldBack(TextIOBase):
    """Holds text until it is released or dropped, then passes everything on."""

    def __init__(self, target: Any) -> None:
        self._target = target
        self._held: list[str] | None = []

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if self._held is None:
            self._target.write(text)
        else:
            self._held.append(text)
        return len(text)

    def flush(self) -> None:
        if self._held is None:
            self._target.flush()

    def drop(self) -> None:
        """Drop held output."""
        self._held = []

    def release(self) -> None:
        """Pass on held output and all that follows."""
        held, self._held = self._held, None
        for text in held or ():
            self._target.write(text)


def _is_users(module: Any) -> bool:
    """Whether a module is the script's own: not mspc's, the standard library's, or an installed one."""
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or not isinstance(module, ModuleType):
        return False
    return not is_library(file)


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
    """The compiles that the ranks' launchers share: a graph is compiled by the first rank that launches it.

    Ranks launch their own copies of one network; the copies are identified by the order in which a rank launches them,
    and are the same program when the front end finds the same graph in them.
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
    """A launcher that looks for compiles of other ranks."""

    has_own_process: ClassVar[bool] = False

    def __init__(self, job: Job, script_folder: str, shared: SharedCompiles, strategies: Path | None = None) -> None:
        super().__init__(job, True, script_folder, strategies)
        self._shared = shared
        self._compiles = 0

    def compiled(self, call: TracedCall) -> Compiled:
        self._compiles += 1
        return self._shared.compiled(self._compiles, call, super().compiled)


def simulate_script(
    path: Path, ranks: int, only_rank: int | None, arguments: Sequence[str], wishes: Wishes | None = None,
    profiler: Callable[[], Any] = lambda: None, strategies: Path | None = None,
) -> None:  # fmt: skip
    """Run a script on `ranks` simulated ranks. `profiler` makes an object that times the steps of one rank. strategies:
    a file by which operators are sharded.

    Raises:
        MspcError: the first failure of a rank, with the rank's number in its message. SystemExit: a rank's own.
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
        user.handler = SimulatedCalls(job, str(path.resolve().parent), shared, strategies)
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
        super().__init__(error.message, code=error.code)
        self.exit_status = error.exit_status
        self._rank, self._error = rank, error

    def render(self, width: int | None = None) -> str:
        return f"rank {self._rank} failed:\n{self._error.render(width)}"
