"""The checkpoints of a run are global tensors, the slices of one rank, or sets that all ranks write; each has its
place."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from mspc.api import call_handler, state
from mspc.api.errors import ApiValueError
from mspc.api.setting_kind import say_once
from mspc.api.train.checkpoint_config import CheckpointConfig
from mspc.api.train.entries import spread, taken, without_texts
from mspc.api.train.serialization import CKPT, SUFFIX, write_values
from mspc.checkpoint.sets import find_sets, next_sequence, publish, rank_file, remove_set, remove_unfinished, set_name
from mspc.checkpoint.writing import make_synced_folder, sync_folder, write_slices
from mspc.ir.diagnostics import MspcError
from mspc.ir.late_dataclass import dataclass

__all__: tuple[str, ...] = ()

SAVES = "saves a checkpoint"
TOGETHER = "all ranks write a checkpoint together, so ModelCheckpoint must be among the callbacks of every rank"
UNDER_WAY, DONE, FAILED = 0.0, 1.0, 2.0


@dataclass(frozen=True)
class SavedStep:
    """What is saved at the end of a step. entries: tensors by name. append: numbers and texts beside them. common, own:
    the state of the run, and what of it is this rank's."""

    entries: Mapping[str, Any]
    append: Mapping[str, Any]
    epoch: int
    step: int
    common: dict[str, Any]
    own: dict[str, Any]


@dataclass
class Ranks:
    """The ranks that save together, and this one among them."""

    rank: int
    size: int

    def all(self, number: float) -> list[float]:
        """The numbers of all ranks."""
        return [number] if self.size == 1 else call_handler.current().of_all_ranks(number, SAVES, TOGETHER)

    def share(self, folder: Path) -> list[int]:
        """The ranks that write to the same folder as this one."""
        digest = hashlib.sha256(os.fsencode(os.path.realpath(folder))).digest()
        mine = float(int.from_bytes(digest[:6], "big"))
        return [rank for rank, other in enumerate(self.all(mine)) if other == mine]


@dataclass
class CheckpointFolder:
    """A folder with the checkpoints of one prefix, and what of them this run may remove.

    saved: the published ones, the oldest first.
    """

    folder: Path
    prefix: str
    saved: list[Path] = field(default_factory=list)
    times: dict[Path, float] = field(default_factory=dict)

    def note(self, path: Path) -> None:
        """A checkpoint has been published."""
        if path in self.saved:
            self.saved.remove(path)
        self.saved.append(path)
        self.times[path] = time.monotonic()

    def superfluous(self, config: CheckpointConfig) -> list[Path]:
        """What is removed; the newest never is."""
        found: list[Path] = []
        if config.keep_checkpoint_max:
            found = self.saved[: -config.keep_checkpoint_max]
        elif config.keep_checkpoint_per_n_minutes:
            window = 60.0 * config.keep_checkpoint_per_n_minutes
            last: float | None = None
            for path in self.saved[:-1]:
                if last is not None and self.times[path] - last < window:
                    found.append(path)
                else:
                    last = self.times[path]
        self.saved = [path for path in self.saved if path not in found]
        return found

    def take_over(self) -> None:
        """Count what is there as this run's own: it resumes from one of them."""
        for entry in find_sets(self.folder, self.prefix):
            self.note(entry.path)


class Saver:
    """Writes the checkpoints of a run. One saver of every rank that shares the run works with those of the others."""

    def __init__(self, config: CheckpointConfig, folder: Path, prefix: str, ranks: Ranks) -> None:
        self.config = config
        self.place = CheckpointFolder(folder, prefix)
        self.ranks = ranks
        self.members = ranks.share(folder)
        self.is_set = config.sliced and len(self.members) == ranks.size > 1
        self._check(folder, prefix)
        if (os.path.realpath(folder), prefix) in state.current().resumed:
            self.place.take_over()
        if ranks.rank == 0 and self.is_set:
            remove_unfinished(folder, prefix)
        self._sequence = next_sequence(folder, prefix)
        self.pending: _Pending | None = None

    def _check(self, folder: Path, prefix: str) -> None:
        config, several = self.config, self.ranks.size > 1
        if config.remove_redundancy and not self.is_set:
            why = "a file that is no part of a set has all of its rank" if several else "no other rank shares the run"
            name = "CheckpointConfig remove_redundancy"
            say_once(name, f"CheckpointConfig(remove_redundancy=True) changes nothing here: {why}")
        if config.sliced and several and not self.is_set and len(self.members) > 1:
            raise ApiValueError(
                f"ModelCheckpoint: of {self.ranks.size} ranks {len(self.members)} write their slices to {folder}",
                ["give all ranks one directory, or every rank one of its own"],
            )
        if self.is_set and config.format == "ckpt":
            raise ApiValueError(
                "ModelCheckpoint: slices in MindSpore's format need a directory for every rank",
                ['write directory=f"rank_{get_rank()}", or leave format at "safetensors", which makes one set'],
            )

    @property
    def _suffix(self) -> str:
        return CKPT if self.config.format == "ckpt" else SUFFIX

    def path_of(self, moment: SavedStep) -> Path:
        name = set_name(self.place.prefix, moment.epoch, moment.step)
        return self.place.folder / (name if self.is_set else f"{name}{self._suffix}")

    def save(self, moment: SavedStep, background: Any) -> Path | None:
        """Write a checkpoint; with async_save it is under way then, and `go_on` publishes it.

        Returns:
            The newest checkpoint that is published; None where there is none yet, or this one has failed.
        """
        path = self.path_of(moment)
        number = int(self.ranks.all(float(self._sequence))[0]) if self.is_set else self._sequence
        self._sequence = number + 1
        work = self._work(path, moment, number)
        if self.config.async_save:
            background.start(work)
            self.pending = _Pending(path, number, moment.common, background)
            return None
        error: MspcError | None = None
        try:
            work()
        except MspcError as found:
            error = found
        return self._publish(path, number, moment.common, error)

    def _work(self, path: Path, moment: SavedStep, number: int) -> Callable[[], None]:
        """What writes this rank's file; the values are taken now, by all ranks together."""
        config, ranks = self.config, self.ranks
        entries, texts = without_texts(moment.entries, moment.append)
        writes = spread(ranks.rank, ranks.size) if config.remove_redundancy and self.is_set else _always
        values = taken(entries, not config.sliced, config.async_save, None, writes)
        about = {"sequence": number, "state": moment.common, "own": moment.own}
        if not self.is_set:

            def alone() -> None:
                if ranks.rank == self.members[0]:  # those that write to one folder have the same to write
                    write_values(path, values, ranks.rank, texts, config.crc_check, about)
                    with contextlib.suppress(OSError):
                        sync_folder(path.parent)

            return alone
        slices = [value.slice_of(ranks.rank) for value in values]
        said = {**about, **({"texts": texts} if texts else {})}

        def in_set() -> None:
            make_synced_folder(path)
            write_slices(path / rank_file(ranks.rank, number), slices, said)

        return in_set

    def _publish(self, path: Path, number: int, common: dict[str, Any], error: MspcError | None) -> Path | None:
        """Make the checkpoint known once all ranks have written. Raises MspcError on all ranks where one has failed."""
        failed = self._failed(error)
        if failed is None and self.is_set and self.ranks.rank == 0:
            try:
                publish(path, number, self.ranks.size, common)
            except MspcError as found:
                error = found
        failed = failed or (self._failed(error) if self.is_set else None)
        if failed is not None:
            if self.is_set and self.ranks.rank == 0:
                remove_unfinished(self.place.folder, self.place.prefix)
            raise failed
        self.place.note(path)
        for old in self.place.superfluous(self.config):
            if self.ranks.rank == self.members[0]:
                remove_set(old)
        return path

    def _failed(self, error: MspcError | None) -> MspcError | None:
        """The error of this rank, or one that says which other has failed."""
        together = self.ranks.size > 1
        states = self.ranks.all(DONE if error is None else FAILED + _number_of(error)) if together else []
        others = [rank for rank, found in enumerate(states) if found >= FAILED]
        if error is None and others:
            number = int(states[others[0]] - FAILED)
            why = f": {os.strerror(number)}" if number else ""
            return FailedElsewhere(f"ModelCheckpoint: rank {others[0]} could not write its part of a checkpoint{why}")
        return error

    def go_on(self, wait: bool) -> Path | None:
        """Look after a checkpoint that is under way, at the end of a step: all ranks do that together.

        Returns:
            The checkpoint if it has been published now. Raises MspcError where it has failed.
        """
        pending = self.pending
        if pending is None:
            return None
        states = self.ranks.all(UNDER_WAY if pending.background.is_busy and not wait else DONE)
        if not wait and UNDER_WAY in states:
            return None
        self.pending = None
        error: MspcError | None = None
        try:
            pending.background.wait()
        except MspcError as found:
            error = found
        return self._publish(pending.path, pending.number, pending.common, error)


class FailedElsewhere(MspcError):
    """Another rank could not write its part."""


def _number_of(error: MspcError) -> int:
    """The number that the system has for what an error says last, so that other ranks can say it, too; 0 for none."""
    return next((n for n in errno.errorcode if error.message.endswith(os.strerror(n))), 0)


@dataclass(frozen=True)
class _Pending:
    """A checkpoint that is being written."""

    path: Path
    number: int
    common: dict[str, Any]
    background: Any


def _always(number: int, layout: Any) -> bool:
    return True


def latest(paths: Sequence[Path]) -> str:
    return str(paths[-1]) if paths else ""
