"""Programs of all ranks: one for all, unless the script builds different networks on different ranks."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import field

from mspc.compiler.call import describe_call
from mspc.compiler.config import Config
from mspc.compiler.driver import Compiled, DumpPoint, TracedCall, compile_traced, trace_call
from mspc.engine.capture import CapturedCall
from mspc.engine.script import is_rank_used_only_in_names
from mspc.ir.diagnostics import Location
from mspc.ir.late_dataclass import dataclass
from mspc.mindspore_api.errors import caller_location
from mspc.mindspore_api.state import Session
from mspc.output.dumps import NO_FILES, File, StageFiles
from mspc.passes.base import OnPass

PROBES = 8
"""Maximum number of ranks that are tried to see whether the network depends on the rank."""


@dataclass
class ObservedSession(Session):
    """Session that records the first read of the rank other than for file names: only then can ranks differ. seen: the
    line of the script that read it first, or [None] if other code did."""

    seen: list[Location | None] = field(default_factory=list[Location | None])

    def __getattribute__(self, name: str) -> object:
        if name in ("rank", "local_rank"):
            seen = super().__getattribute__("seen")
            if not seen and not is_rank_used_only_in_names(sys._getframe(1)):
                seen.append(caller_location())
        return super().__getattribute__(name)

    @property
    def rank_was_asked(self) -> bool:
        return bool(self.seen)


Rerun = Callable[[int], AbstractContextManager[CapturedCall]]
"""Function that runs the script again as another rank; `construct` must be traced within the context."""


@dataclass(frozen=True)
class CompiledLaunch:
    """A compiled launch. shared: files of the stages that all ranks share. text: the traced graph, "" if it is not
    compared. network: the graph after the frontend with its header, "" if no files are stored."""

    compiled: Compiled
    shared: list[File]
    text: str
    network: str = ""


def compile_for(
    captured: CapturedCall, ranks: int, level: int, compared: Callable[[], bool] = lambda: False,
    on_pass: OnPass | None = None,
) -> CompiledLaunch:
    """Compile `captured` for `ranks` ranks. Store the files that `level` selects, and the text of the graph if it will
    be compared with launches of other ranks. compared: returns whether it will; called after `construct` was traced,
    which may read the rank. on_pass: called for every pass."""
    files = StageFiles(level)
    call = _traced(captured, ranks)
    text = call.text if compared() else ""
    network: list[str] = []

    def on_stage(stage: DumpPoint) -> None:
        files(stage)
        if stage.name == "frontend" and level != NO_FILES:
            network.append(stage.text())

    with captured.errors_at_launch():
        compiled = compile_traced(call, on_stage, on_pass)
    return CompiledLaunch(compiled, files.files, text, "".join(network))


def _traced(captured: CapturedCall, ranks: int) -> TracedCall:
    with captured.errors_at_launch():
        config = config_of(captured, ranks)
        return trace_call(captured.target, describe_call(captured.args, []), config, captured.global_types)


def config_of(captured: CapturedCall, ranks: int) -> Config:
    """Return the compiler's settings, taken from the script's context."""
    return Config.from_context(captured.context, ranks, os.path.dirname(os.path.abspath(captured.script)))


class Programs:
    """Programs of all ranks.

    If the script reads its rank, it is run again silently as other ranks (all wanted ranks, or a sample of many). Only
    if one of them launches a different graph is the script run for every rank. All graphs then carry the compile id of
    rank 0. runs: number of runs of the script for this.

    first: program of the first wanted rank. wanted: all wanted ranks, ascending. asked: the script read its rank.
    rerun: returns the script's launch as another rank; within its context that rank's session is active. apart: run the
    script for every rank even if graphs are equal.
    """

    def __init__(
        self, first: CompiledLaunch, wanted: Sequence[int], asked: bool, level: int, rerun: Rerun, apart: bool = False
    ) -> None:
        self.first = first
        self._first_rank = wanted[0]
        self._level = level
        self._rerun = rerun
        others = sorted({0, *_spread(wanted)} - {wanted[0]}) if asked else []
        ranks = first.compiled.config.all_ranks
        self.runs = 1
        self.differ = apart or any(self._text(rank, ranks) != first.text for rank in others)
        self._identity = first.compiled.compile_id
        if self.differ and self._first_rank != 0:
            self._identity = self._compiled(0, ranks, NO_FILES).compiled.compile_id
            first.compiled.graph.attrs["compile_id"] = self._identity

    def of_rank(self, rank: int) -> CompiledLaunch:
        """Return the program from which the graph of `rank` is sliced."""
        if not self.differ or rank == self._first_rank:
            return self.first
        built = self._compiled(rank, self.first.compiled.config.all_ranks, self._level)
        built.compiled.graph.attrs["compile_id"] = self._identity
        return built

    def _text(self, rank: int, ranks: int) -> str:
        self.runs += 1
        with self._rerun(rank) as captured:
            return _traced(captured, ranks).text

    def _compiled(self, rank: int, ranks: int, level: int) -> CompiledLaunch:
        with self._rerun(rank) as captured:
            return compile_for(captured, ranks, level)


def _spread(wanted: Sequence[int]) -> set[int]:
    """Return all of a few ranks; of many the first four, two in the middle and the last two."""
    if len(wanted) <= PROBES:
        return set(wanted)
    middle = len(wanted) // 2
    return {*wanted[:4], *wanted[middle : middle + 2], *wanted[-2:]}
