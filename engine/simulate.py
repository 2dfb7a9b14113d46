"""Simulation of ranks for `--simulate`: every rank runs the whole script in a thread of this process, one at a time."""

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
from mspc.runtime.device_choice import DeviceOptions, Hardware
from mspc.runtime.faults.record import StoppedByOther

# All global state that a script can see and change is swapped, so that every simulated rank has its own.


class UserState:
    """Modules, random generators, arguments, working folder, session and output of one simulated rank.

    This rank's script runs between `enter` and `leave`; only one rank is active at a time.

    session: of the rank. shown: whether its output is printed. shared_modules: names of modules that ranks share.
    Modules of mspc, Python and installed libraries that are loaded later are added. Other imports of a script are
    removed while other ranks run. handler: called by the rank's cells.
    """

    def __init__(self, session: state.Session, shown: bool, shared_modules: set[str]) -> None:
        self._session = session
        self.handler: call_handler.CallHandler | None = None
        # Unseeded ranks differ, like processes, but reproducibly.
        self._bits: Any = np.random.MT19937(np.random.SeedSequence((0x72616E6B, session.rank)))
        self._random = random.Random(session.rank).getstate()
        self._modules: dict[str, ModuleType] = {}
        self._aside: dict[str, ModuleType] = {}
        self._shared = shared_modules
        self._arguments = list(sys.argv)
        self._path = list(sys.path)
        self._folder = os.getcwd()
        self._output: Any = LineWriter(sys.stdout) if shown else DiscardedOutput()
        self._before: tuple[Any, ...] = ()
        self._main = sys.modules["__main__"]

    def enter(self) -> None:
        """Install this rank's state."""
        self._before = (
            state.swap(self._session), call_handler.install(self.handler), np.random.get_bit_generator(),
            random.getstate(), sys.argv, sys.path, sys.stdout,
        )  # fmt: skip
        np.random.set_bit_generator(self._bits)
        random.setstate(self._random)
        self._aside = self._removed_modules()
        sys.modules.update(self._modules)
        sys.argv, sys.path, sys.stdout = self._arguments, self._path, self._output
        if os.getcwd() != self._folder:
            os.chdir(self._folder)

    def leave(self) -> None:
        """Save and remove this rank's state."""
        self._bits = np.random.get_bit_generator()
        self._random = random.getstate()
        self._arguments, self._path, self._output = sys.argv, sys.path, sys.stdout
        self._folder = os.getcwd()
        main = sys.modules.pop("__main__")
        self._modules = {"__main__": main, **self._removed_modules()}
        sys.modules.update({**self._aside, "__main__": self._main})
        session, handler, bits, numbers, sys.argv, sys.path, sys.stdout = self._before
        state.swap(session)
        call_handler.install(handler)
        np.random.set_bit_generator(bits)
        random.setstate(numbers)

    def _removed_modules(self) -> dict[str, ModuleType]:
        """Remove and return the script's own modules, except `__main__`."""
        fresh = sys.modules.keys() - self._shared
        if not fresh:
            return {}
        # A copy, because reading `__file__` of a lazily imported module may import others.
        own = [name for name, module in list(sys.modules.items()) if name in fresh and _is_user_module(module)]
        self._shared |= fresh.difference(own)
        return {name: sys.modules.pop(name) for name in own if name != "__main__"}

    def close(self) -> None:
        """Print the rest of an unfinished line."""
        self._output.flush_line()


class LineWriter(TextIOBase):
    """Stream that passes on complete lines, so that lines of several ranks do not mix."""

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


class DiscardedOutput(TextIOBase):
    """Stream that discards text."""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        return len(text)

    def flush_line(self) -> None:
        """Do nothing."""


class BufferedOutput(TextIOBase):
    """Stream that buffers text until it is released or dropped, then passes everything on."""

    def __init__(self, target: Any) -> None:
        self._target = target
        self._buffer: list[str] | None = []

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if self._buffer is None:
            self._target.write(text)
        else:
            self._buffer.append(text)
        return len(text)

    def flush(self) -> None:
        if self._buffer is None:
            self._target.flush()

    def drop(self) -> None:
        """Drop the buffered output."""
        self._buffer = []

    def release(self) -> None:
        """Pass on the buffered output and everything after it."""
        buffer, self._buffer = self._buffer, None
        for text in buffer or ():
            self._target.write(text)


def _is_user_module(module: Any) -> bool:
    """Return whether a module is the script's own: not mspc's, the standard library's, or installed."""
    file = getattr(module, "__file__", None)
    if not isinstance(file, str) or not isinstance(module, ModuleType):
        return False
    return not is_library(file)


class SimulatedJob(Job):
    """Job of one simulated rank, whose state is active only while its script runs."""

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
    """Compiles shared by the ranks' handlers: a graph is compiled by the first rank that launches it.

    Ranks launch their own copies of one network. The copies are matched by launch order, and share a program if the
    front end finds the same graph in them.
    """

    def __init__(self, ranks: int) -> None:
        self._ranks = ranks
        self._compiled: dict[int, dict[tuple[Config, str], Compiled]] = {}
        self._compiles: Counter[int] = Counter()

    def compiled(self, number: int, call: TracedCall, compiled: Callable[[TracedCall], Compiled]) -> Compiled:
        """Return the program of a rank's compile with this number: another rank's, or a new one made by `compiled`. It
        is stored until every rank has reached this number."""
        known, key = self._compiled.setdefault(number, {}), (call.config, call.text)
        found = known.get(key)
        if found is None:
            found = known[key] = compiled(call)
        self._compiles[number] += 1
        if self._compiles[number] == self._ranks:
            del self._compiled[number], self._compiles[number]
        return found


class SimulatedCalls(RankCalls):
    """Call handler that reuses compiles of other ranks."""

    has_own_process: ClassVar[bool] = False

    def __init__(self, job: Job, script_folder: str, shared: SharedCompiles, strategies: Path | None = None) -> None:
        super().__init__(job, True, script_folder, strategies)
        self._shared = shared
        self._compiles = 0

    def compiled(self, call: TracedCall) -> Compiled:
        self._compiles += 1
        return self._shared.compiled(self._compiles, call, super().compiled)


def simulate_script(
    path: Path, ranks: int, only_rank: int | None, arguments: Sequence[str], wishes: DeviceOptions | None = None,
    profiler: Callable[[], Any] = lambda: None, strategies: Path | None = None,
) -> None:  # fmt: skip
    """Run a script on `ranks` simulated ranks. profiler: makes an object that times the steps of one rank. strategies:
    a file that shards operators. Raise MspcError for the first failure of a rank, with its number in the message, and a
    rank's own SystemExit."""
    shared = SharedCompiles(ranks)
    users: list[UserState] = []
    modules = set(sys.modules)

    def main(comm: LocalComm) -> None:
        session = state.Session.of_rank(comm.rank, ranks)
        user = UserState(session, only_rank is None or only_rank == comm.rank, modules)
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


def simulated_hardware(wishes: DeviceOptions | None, rank: int) -> Hardware:
    """Return the device of a simulated rank; rank 0 warns if it is not the requested one."""

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
    except (ScriptError, ExecutionError) as error:
        is_named = isinstance(error, ExecutionError) and f"rank {rank}" in error.message
        if ranks == 1 or is_named:
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
