"""Callbacks that write numbered checkpoints, the folders of checkpoints, and resumption of training from one."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from pathlib import Path
from typing import Any

from mspc.checkpoint.files import make_synced_folder, sync_folder, write_slices
from mspc.checkpoint.sets import (
    CHECKPOINT_NAME,
    FoundCheckpoint,
    find_sets,
    mindspore_files,
    next_sequence,
    open_checkpoint,
    prefixes_in,
    publish,
    rank_file,
    rank_state,
    remove_set,
    remove_unfinished,
    set_name,
    unreadable,
)
from mspc.checkpoint.stored_tensors import Checkpoint
from mspc.ir.diagnostics import MspcError
from mspc.ir.files.atomic_writing import check_folder, shown_path
from mspc.ir.late_dataclass import dataclass
from mspc.mindspore_api import call_handler, state
from mspc.mindspore_api.common.parameter import Parameter, StoredValue
from mspc.mindspore_api.common.tensor import Tensor
from mspc.mindspore_api.context import share_a_run
from mspc.mindspore_api.errors import ApiRuntimeError, ApiTypeError, ApiValueError
from mspc.mindspore_api.nn.cell import Cell
from mspc.mindspore_api.setting_kind import say_once
from mspc.mindspore_api.train.callback import Callback, CallbackParam, RunContext
from mspc.mindspore_api.train.model import Model, restore, state_of, state_of_rank
from mspc.mindspore_api.train.serialization import (
    CKPT,
    MAX_LISTED,
    SUFFIX,
    background,
    load_param_into_net,
    say_what_is_unchecked,
    spread,
    taken,
    without_texts,
    write_values,
)

__all__ = ["CheckpointConfig", "ModelCheckpoint", "Resumed", "resume_training"]


class ModelCheckpoint(Callback):
    """Saves parameters and the progress of the run to `<directory>/<prefix>-<epoch>_<step>.safetensors`.

    A sharded parameter is gathered first, so every rank writes full parameters. With `integrated_save=False` every rank
    writes its slices: with one directory for all ranks to one set, the folder `<prefix>-<epoch>_<step>`, which exists
    once all have written; with one directory per rank to a file in it. In both cases all ranks must use this callback.

    Args:
        prefix: of names, or a function that returns it from the run's facts. directory: the output folder, or such a
            function.
    """

    def __init__(self, prefix: str | Callable[..., str] = "CKP", directory: Any = None, config: Any = None) -> None:
        if not callable(prefix):
            _check_prefix(prefix)
        if config is not None and not isinstance(config, CheckpointConfig):
            raise ApiTypeError(f"ModelCheckpoint: config must be a CheckpointConfig, not {type(config).__name__}")
        if directory is not None and not isinstance(directory, str | os.PathLike) and not callable(directory):
            wanted = "the name of a folder or a function"
            raise ApiTypeError(f"ModelCheckpoint: directory must be {wanted}, not {type(directory).__name__}")
        self._prefix = prefix
        self._directory = directory
        self._config = config or CheckpointConfig()
        self._savers: dict[tuple[Path, str], Saver] = {}
        self._saved: list[Path] = []
        self._last_step = 0
        self._last_time = time.monotonic()

    @property
    def latest_ckpt_file_name(self) -> str:
        """The newest complete checkpoint; "" before the first."""

        return latest(self._saved)

    def begin(self, run_context: RunContext) -> None:
        """Check before the first step that files can be written. Raise MspcError if they cannot."""
        param = run_context.original_args()
        self._last_step = max(self._last_step, param.get("cur_step_num", 0))
        if callable(self._directory):
            return
        folder = Path(str(self._directory if self._directory is not None else "."))
        try:
            prefix = "" if callable(self._prefix) else self._prefix
            last = f"{prefix}-{param.get('epoch_num', 1)}_{param.get('batch_num', 1)}.safetensors"
            check_folder(folder, last)
            if not callable(self._prefix) and not call_handler.shows_types_only():
                self._saver(folder, self._prefix, param)
        except ApiValueError:
            raise
        except MspcError as error:
            raise MspcError(f"ModelCheckpoint: {error.message}") from None

    def step_end(self, run_context: RunContext) -> None:
        param = run_context.original_args()
        self._go_on(wait=False)
        if self._due(param.cur_step_num, self._ranks(param)):
            self._save(param)

    def end(self, run_context: RunContext) -> None:
        param = run_context.original_args()
        if param.cur_step_num != self._last_step:
            self._save(param)
        self._go_on(wait=True)

    def on_eval_begin(self, run_context: RunContext) -> None:
        """Save nothing, because an evaluation changes no parameter."""

    on_eval_step_end = on_eval_end = on_eval_begin

    def _ranks(self, param: CallbackParam) -> Ranks:
        session = state.current()
        network = param.get("train_network")
        together = network is not None and share_a_run(network)
        return Ranks(session.rank, session.size) if together else Ranks(0, 1)

    def _due(self, step: int, ranks: Ranks) -> bool:
        config = self._config
        if config.save_checkpoint_steps:
            return step >= self._last_step + config.save_checkpoint_steps
        due = time.monotonic() - self._last_time >= config.save_checkpoint_seconds
        return bool(ranks.all(float(due))[0])  # the clock of one rank decides for all

    def _saver(self, folder: Path, prefix: str, param: CallbackParam) -> Saver:
        if (folder, prefix) not in self._savers:
            self._savers[folder, prefix] = Saver(self._config, folder, prefix, self._ranks(param))
        return self._savers[folder, prefix]

    def _save(self, param: CallbackParam) -> None:
        self._go_on(wait=True)
        prefix = _check_prefix(self._prefix(param)) if callable(self._prefix) else self._prefix
        given = self._directory(param) if callable(self._directory) else self._directory
        folder = Path(str(given if given is not None else "."))
        self._last_step = param.cur_step_num
        self._last_time = time.monotonic()
        network = self._config.saved_network or param.train_network
        entries = {parameter.name: parameter for parameter in network.get_parameters()}
        common = state_of(param)
        moment = SavedStep(entries, self._extra(param), common["epoch"], common["step"], common, state_of_rank())
        self._guarded(lambda: self._saver(folder, prefix, param).save(moment, background()))

    def _go_on(self, wait: bool) -> None:
        for saver in self._savers.values():
            if saver.pending is not None:
                self._guarded(lambda saver=saver: saver.go_on(wait))

    def _guarded(self, work: Callable[[], Path | None]) -> None:
        try:
            path = work()
        except ApiValueError:
            raise
        except MspcError as error:
            if self._config.on_failure == "stop":
                raise

            if isinstance(error, FailedElsewhere):  # that rank reports the reason
                return
            print(f"warning: {error.message}; training continues", file=sys.stderr, flush=True)
            return
        if path is not None:
            self._saved = [*(known for known in self._saved if known != path), path]

    def _extra(self, param: CallbackParam) -> dict[str, Any]:
        known = {"epoch_num": param.cur_epoch_num, "step_num": param.cur_step_num}
        found: dict[str, Any] = {}
        for entry in self._config.append_info:
            found |= entry if isinstance(entry, dict) else {entry: known[entry]}
        return found


def _check_prefix(prefix: Any) -> str:
    if not isinstance(prefix, str) or not prefix or "/" in prefix or "\0" in prefix:
        raise ApiValueError(f"ModelCheckpoint: prefix {prefix!r} must be a string without '/'")
    return prefix


_COUNTS = (
    "save_checkpoint_steps", "save_checkpoint_seconds", "keep_checkpoint_max", "keep_checkpoint_per_n_minutes",
)  # fmt: skip
_KNOWN = ("epoch_num", "step_num")


class CheckpointConfig:
    """Time and form of the checkpoints of ModelCheckpoint.

    Args:
        save_checkpoint_steps: number of steps between checkpoints. save_checkpoint_seconds: number of seconds between
            them, if steps is 0.
        keep_checkpoint_max: older checkpoints are removed beyond that number, 0 keeps all. The newest complete one
            always stays. keep_checkpoint_per_n_minutes: if keep_checkpoint_max is 0, keep one checkpoint for every
            period of that many minutes, and the newest.
        integrated_save: global parameters. False: every rank writes its slices, and all of them together are one set,
            which any number of ranks can read.
        async_save: write while training continues; True, "thread" and "process" are a thread.
        saved_network: its parameters are saved instead of the training network's.
        append_info: further entries, "epoch_num", "step_num" or {name: number}.
        exception_save: changes nothing: the last complete checkpoint exists in any case.
        crc_check: a checksum at the end of a file of MindSpore's format; safetensors always have one for every tensor.
        remove_redundancy: slices, as without integrated_save; a slice of several ranks is written once.
        format: "safetensors", the default, or "ckpt", MindSpore's.
        on_failure: the effect of a checkpoint that cannot be written: "stop" ends training with the error, "continue"
            warns and trains on; in both cases older checkpoints stay.

    Raises ValueError or TypeError if an argument is of the wrong kind, or has no use here.
    """

    def __init__(
        self, save_checkpoint_steps: int = 1, save_checkpoint_seconds: int = 0, keep_checkpoint_max: int = 5,
        keep_checkpoint_per_n_minutes: int = 0, integrated_save: bool = True, async_save: Any = False,
        saved_network: Any = None, append_info: Any = None, enc_key: Any = None, enc_mode: str = "AES-GCM",
        exception_save: bool = False, crc_check: bool = False, remove_redundancy: bool = False,
        format: str | None = None, on_failure: str = "stop",
        **kwargs: Any,
    ) -> None:  # fmt: skip
        given = dict(locals())
        for name in _COUNTS:
            value = given[name]
            if value is not None and (isinstance(value, bool) or not isinstance(value, int) or value < 0):
                raise ApiValueError(f"CheckpointConfig: {name} {value!r} must be an integer, 0 or more")
        if not save_checkpoint_steps and not save_checkpoint_seconds:
            raise ApiValueError("CheckpointConfig: save_checkpoint_steps or save_checkpoint_seconds must be given")
        if enc_key is not None:
            raise ApiValueError("CheckpointConfig: encryption is not supported")
        _check_choices(async_save, format, on_failure, saved_network, kwargs)
        self.save_checkpoint_steps = save_checkpoint_steps or 0
        self.save_checkpoint_seconds = 0 if save_checkpoint_steps else save_checkpoint_seconds or 0
        self.keep_checkpoint_max = keep_checkpoint_max or 0
        self.keep_checkpoint_per_n_minutes = keep_checkpoint_per_n_minutes or 0
        self.integrated_save = integrated_save
        self.async_save = bool(async_save)
        self.saved_network = saved_network
        self.append_info = _checked_info(append_info)
        self.crc_check = crc_check
        self.remove_redundancy = remove_redundancy
        self.format = format or "safetensors"
        self.on_failure = on_failure
        self._say_what_counts_not(exception_save)

    @property
    def sliced(self) -> bool:
        """Return whether ranks write their slices."""
        return self.remove_redundancy or not self.integrated_save

    def _say_what_counts_not(self, exception_save: bool) -> None:
        """Warn once which arguments change nothing."""
        said: dict[str, str] = {}
        if self.keep_checkpoint_per_n_minutes and self.keep_checkpoint_max:
            said[f"keep_checkpoint_per_n_minutes={self.keep_checkpoint_per_n_minutes}"] = (
                "it counts if keep_checkpoint_max is 0"
            )
        if exception_save:
            said["exception_save=True"] = "the last complete checkpoint stays, whatever ends the run"
        if self.crc_check and self.format == "safetensors":
            said["crc_check=True"] = "every tensor of a safetensors file has a checksum always"
        for given, why in said.items():
            name = given.partition("=")[0]
            say_once(f"CheckpointConfig {name}", f"CheckpointConfig({given}) changes nothing here: {why}")


def _check_choices(async_save: Any, format: Any, on_failure: Any, network: Any, others: dict[str, Any]) -> None:
    if async_save not in (True, False, "thread", "process"):
        raise ApiValueError(f"CheckpointConfig: async_save {async_save!r} is not True, False, 'thread' or 'process'")
    if format not in (None, "ckpt", "safetensors"):
        raise ApiValueError(f"CheckpointConfig: format {format!r} is not one of 'ckpt', 'safetensors'")
    if on_failure not in ("stop", "continue"):
        raise ApiValueError(f"CheckpointConfig: on_failure {on_failure!r} is not one of 'stop', 'continue'")
    if network is not None and not isinstance(network, Cell):
        raise ApiTypeError(f"CheckpointConfig: saved_network must be a Cell, not {type(network).__name__}")
    for name in others:
        raise ApiTypeError(f"CheckpointConfig has no argument {name!r}")


def _checked_info(info: Any) -> list[Any]:
    if info is None:
        return []
    if not isinstance(info, list):
        raise ApiTypeError(f"CheckpointConfig: append_info must be a list, not {type(info).__name__}")
    for entry in info:
        if not (isinstance(entry, dict) or entry in _KNOWN):
            raise ApiTypeError(f"CheckpointConfig: append_info takes 'epoch_num', 'step_num' and dicts, not {entry!r}")
    return info


SAVES = "saves a checkpoint"
TOGETHER = "all ranks write a checkpoint together, so ModelCheckpoint must be among the callbacks of every rank"
UNDER_WAY, DONE, FAILED = 0.0, 1.0, 2.0


@dataclass(frozen=True)
class SavedStep:
    """Values saved at the end of a step. entries: tensors by name. append: additional numbers and texts. common, own:
    the state of the run, and this rank's part of it."""

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
        """Return the numbers of all ranks."""
        return [number] if self.size == 1 else call_handler.current().gather_numbers(number, SAVES, TOGETHER)

    def share(self, folder: Path) -> list[int]:
        """Return the ranks that write to the same folder as this one."""
        digest = hashlib.sha256(os.fsencode(os.path.realpath(folder))).digest()
        mine = float(int.from_bytes(digest[:6], "big"))
        return [rank for rank, other in enumerate(self.all(mine)) if other == mine]


@dataclass
class CheckpointFolder:
    """Folder with the checkpoints of one prefix, and those that this run may remove.

    saved: the published ones, the oldest first.
    """

    folder: Path
    prefix: str
    saved: list[Path] = field(default_factory=list)
    times: dict[Path, float] = field(default_factory=dict)

    def note(self, path: Path) -> None:
        """Record a published checkpoint."""
        if path in self.saved:
            self.saved.remove(path)
        self.saved.append(path)
        self.times[path] = time.monotonic()

    def superfluous(self, config: CheckpointConfig) -> list[Path]:
        """Return the checkpoints to remove, never the newest."""
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


class Saver:
    """Writes the checkpoints of a run. Each rank that shares the run has one saver; they work together."""

    def __init__(self, config: CheckpointConfig, folder: Path, prefix: str, ranks: Ranks) -> None:
        self.config = config
        self.place = CheckpointFolder(folder, prefix)
        self.ranks = ranks
        self.members = ranks.share(folder)
        self.is_set = config.sliced and len(self.members) == ranks.size > 1
        self._check(folder, prefix)
        if (os.path.realpath(folder), prefix) in state.current().resumed:
            for entry in find_sets(folder, prefix):  # it resumes from one of them: they count as its own
                self.place.note(entry.path)
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
        """Write a checkpoint. With async_save it is only started, and `go_on` publishes it.

        Returns: The newest published checkpoint; None if there is none yet, or this one has failed.
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
        """Publish the checkpoint once all ranks have written. Raise MspcError on all ranks if one has failed."""
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
        """Return the error of this rank, or one that names another failed rank, or None."""
        together = self.ranks.size > 1
        states = self.ranks.all(DONE if error is None else FAILED + _number_of(error)) if together else []
        others = [rank for rank, found in enumerate(states) if found >= FAILED]
        if error is None and others:
            number = int(states[others[0]] - FAILED)
            why = f": {os.strerror(number)}" if number else ""
            return FailedElsewhere(f"ModelCheckpoint: rank {others[0]} could not write its part of a checkpoint{why}")
        return error

    def go_on(self, wait: bool) -> Path | None:
        """Handle a checkpoint in progress at the end of a step; all ranks do that together.

        Returns: The checkpoint if it has just been published, else None. Raises MspcError if it has failed.
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


FINDS = "looks for the newest checkpoint"
MUST_HAVE = "ranks with folders of their own must all have saved it; give `checkpoint`"
DEFAULT_PREFIX = "CKP"
RESUMED_TOGETHER = "all ranks resume from one checkpoint: call resume_training on every rank"


@dataclass(frozen=True)
class Resumed:
    """Position at which a run resumes.

    epoch, step: the last saved step; 0 for a new run. initial_epoch: number of finished epochs, for Model.train.
    total_step: steps in all. file: the checkpoint, "" if there was none.
    """

    epoch: int = 0
    step: int = 0
    initial_epoch: int = 0
    total_step: int = 0
    file: str = ""


def resume_training(
    network: Any, directory: Any = ".", prefix: str | None = None, train_dataset: Any = None, checkpoint: Any = None
) -> Resumed:
    """Load the newest complete checkpoint that `ModelCheckpoint(prefix, directory)` has written, if there is one.

    Without `prefix` the folder's checkpoints must have one prefix, which is used.

    Parameters, states of the optimizer, counters and the loss scale, random numbers and the data set's position are
    restored to the time of the checkpoint. Every rank reads its slices, whatever ranks and strategies wrote them. The
    run resumes with `model.train(epochs, data, ..., initial_epoch=resumed.initial_epoch)`.

    Args:
        network: the Model, or the training network. directory, prefix: place of the checkpoints.
        train_dataset: continues at its position. checkpoint: the one to load instead of the newest.

    Returns: the progress of the run.

    Raises:
        ValueError: the checkpoint is of another network; all names and shapes that differ are listed. Or the folder has
            checkpoints, but none of `prefix`, or, without one, of several prefixes.
        MspcError: the checkpoint is damaged. TypeError: an argument is of the wrong kind.
    """
    target = network.train_network if isinstance(network, Model) else network
    if not isinstance(target, Cell):
        raise ApiTypeError(f"resume_training takes a Model or a Cell, not {type(network).__name__}")
    if not isinstance(prefix, str | None):
        raise ApiTypeError(f"resume_training: prefix must be a string, not {prefix!r}")
    folder = Path(str(directory))
    if checkpoint is not None:
        path = Path(str(checkpoint))
        called = CHECKPOINT_NAME.fullmatch(path.name)
        prefix = prefix if prefix is not None else called[1] if called else DEFAULT_PREFIX
    else:
        prefix = _prefix_of(folder, prefix)
        found = _newest(folder, prefix, share_a_run(target))
        if found is None:
            return Resumed()
        path = found
    source = open_checkpoint(path)
    source.prefer = state.current().rank
    say_what_is_unchecked(source)
    _load(target, source)
    done = _restored(source, train_dataset, str(path))
    state.current().resumed.add((os.path.realpath(folder), prefix))
    return done


def _prefix_of(folder: Path, given: str | None) -> str:
    """Return the prefix of the checkpoints to resume from. Raise ValueError if the folder has only checkpoints of other
    prefixes, or of several without a given one: a new run could overwrite a checkpoint that was meant to be resumed."""
    there = prefixes_in(folder)
    if given in there or not there:
        prefix = DEFAULT_PREFIX if given is None else given
    elif given is None and len(there) == 1:
        prefix = there[0]
    else:
        newest = [(prefix, find_sets(folder, prefix)) for prefix in there]
        listed = [f"{prefix!r}, the newest {found[-1].path.name}" for prefix, found in newest if found]
        listed += [f"{prefix!r}, all damaged" for prefix, found in newest if not found]
        none = f"{shown_path(folder)} has no checkpoint of prefix {given!r}, and some of"
        several = f"{shown_path(folder)} has checkpoints of {len(there)} prefixes:"
        raise ApiValueError(
            f"resume_training: {several if given is None else none} {'; '.join(listed[:MAX_LISTED])}",
            [f"say which: prefix={there[0]!r}; a run that is to begin needs a folder without checkpoints"],
        )
    files = mindspore_files(folder, prefix)
    if files and not there:
        raise ApiValueError(
            f"resume_training: {shown_path(folder / files[-1])} is of MindSpore's format, which does not state the "
            "position of its run",
            ["load it with load_checkpoint, and write safetensors, which do; or begin in a folder without checkpoints"],
        )
    return prefix


def _newest(folder: Path, prefix: str, together: bool) -> Path | None:
    """Return the newest checkpoint that all ranks see, or None."""
    found: list[FoundCheckpoint] = find_sets(folder, prefix)
    for other in unreadable(folder, prefix, found):
        why = "it is damaged, cannot be read, or does not state the position of its run"
        say_once(f"resume_training {other}", f"resume_training passes over {other}: {why}")
    last = found[-1].sequence if found else 0
    if together:
        of_ranks = call_handler.current().gather_numbers(float(last), FINDS, RESUMED_TOGETHER)
        without = [rank for rank, number in enumerate(of_ranks) if not number]
        if 0 < len(without) < len(of_ranks):
            raise MspcError(
                f"resume_training: rank {without[0]} finds no checkpoint to resume from, and "
                f"{len(of_ranks) - len(without)} of {len(of_ranks)} ranks find one",
                notes=[f"rank {state.current().rank} looks in {shown_path(folder)}", MUST_HAVE], code="E0601",
            )
        last = int(min(of_ranks))
    fitting = [entry.path for entry in found if entry.sequence == last]
    if last and not fitting:
        raise MspcError(
            f"resume_training: rank {state.current().rank} finds no checkpoint number {last} in {folder}",
            notes=[MUST_HAVE], code="E0601",
        )
    return fitting[-1] if fitting else None


def _load(network: Cell, source: Checkpoint) -> None:
    """Load the parameters. Raise ValueError if the checkpoint is of another network."""
    values = {name: Parameter(Tensor(StoredValue(source, name)), name) for name in source.tensors}
    wanted = {parameter.name: parameter for parameter in network.get_parameters()}
    wrong = [f"it has no parameter '{name}'" for name in wanted if name not in values]
    wrong += [
        f"parameter '{name}' has shape {parameter.shape}, in the checkpoint {values[name].shape}"
        for name, parameter in wanted.items()
        if name in values and values[name].shape != parameter.shape
    ]
    if not wrong:
        load_param_into_net(network, {name: values[name] for name in wanted})
        return
    unknown = [name for name in values if name not in wanted]
    wrong += [f"the network has no parameter '{name}'" for name in unknown]
    more = [f"and {len(wrong) - MAX_LISTED} more"] if len(wrong) > MAX_LISTED else []
    raise ApiValueError(
        f"resume_training: {source.name} is a checkpoint of another network", [*wrong[:MAX_LISTED], *more]
    )


def _restored(source: Checkpoint, dataset: Any, file: str) -> Resumed:
    saved: Any = source.state
    if not saved:
        raise ApiRuntimeError(
            f"resume_training: {file} does not state the position of its run", ["load it with load_checkpoint"]
        )
    try:
        own = rank_state(source, state.current().rank)
        restore(saved, own)
        if not own:
            why = "the state of NumPy's and Python's generators: they continue as the script has them"
            say_once(f"resume_training own {file}", f"{file} does not say {why}")
        epoch, step, batches, total = (int(saved[key]) for key in ("epoch", "step", "batches", "total_step"))
        position = saved["data"]
        if dataset is not None and position is not None:
            dataset.set_init_step(int(position))
    except (KeyError, TypeError, ValueError, AttributeError, OverflowError) as error:
        raise MspcError(f"resume_training: the state of the run in {file} is damaged: {error}", code="E0116") from None
    return Resumed(epoch, step, epoch if step == batches else epoch - 1, total, file)
