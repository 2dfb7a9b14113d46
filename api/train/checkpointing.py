"""Checkpoints are written here while a network is trained."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mspc.api import call_handler, state
from mspc.api.errors import ApiTypeError, ApiValueError
from mspc.api.train.callback_base import Callback, CallbackParam, RunContext
from mspc.api.train.checkpoint_config import CheckpointConfig
from mspc.ir.diagnostics import MspcError
from mspc.ir.files.atomic_writing import check_folder

if TYPE_CHECKING:  # what writes files is imported when there is something to write
    from mspc.api.train.checkpoint_folders import Ranks, Saver

__all__ = ["CheckpointConfig", "ModelCheckpoint"]


class ModelCheckpoint(Callback):
    """Saves parameters, and how far the run is, to `<directory>/<prefix>-<epoch>_<step>.safetensors`.

    A sharded parameter is gathered first, so every rank writes full parameters. With `integrated_save=False` every rank
    writes its slices: in one directory for all ranks to one set, the folder `<prefix>-<epoch>_<step>`, which is there
    once all have written; in a directory for each rank to a file there. Either way all ranks must use this callback.

    Args:
        prefix: of names, or a function of what callbacks are told that gives one. directory: where to write, or such
            a function.
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
        from mspc.api.train.checkpoint_folders import latest

        return latest(self._saved)

    def begin(self, run_context: RunContext) -> None:
        """Find out before the first step whether files can be written. Raises MspcError where they cannot."""
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
        """An evaluation changes no parameter, so nothing is saved."""

    on_eval_step_end = on_eval_end = on_eval_begin

    def _ranks(self, param: CallbackParam) -> Ranks:
        from mspc.api.train.checkpoint_folders import Ranks
        from mspc.api.train.rank_agreement import share_a_run

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
        from mspc.api.train.checkpoint_folders import Saver

        if (folder, prefix) not in self._savers:
            self._savers[folder, prefix] = Saver(self._config, folder, prefix, self._ranks(param))
        return self._savers[folder, prefix]

    def _save(self, param: CallbackParam) -> None:
        from mspc.api.train.checkpoint_folders import SavedStep
        from mspc.api.train.run_state import state_of, state_of_rank
        from mspc.api.train.serialization import background

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
        """Do what may publish a checkpoint; a failure ends training or is printed as a warning, as was asked."""
        try:
            path = work()
        except ApiValueError:
            raise
        except MspcError as error:
            if self._config.on_failure == "stop":
                raise
            from mspc.api.train.checkpoint_folders import FailedElsewhere

            if isinstance(error, FailedElsewhere):  # that rank says why
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
